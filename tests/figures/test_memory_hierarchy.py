from itertools import product

import pytest

from figures import memory_hierarchy as figure
from figures import style
from figures.canvas import Canvas
from flashlab.machine import hardware

STATES = [figure.State(card, one_sm) for card, one_sm in product(hardware.CARDS, (False, True))]


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(8.6, 3.7), figure.build, figure.update)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_bars_reach_to_the_numbers_of_the_card_and_stay_in_the_picture(canvas, state):
    canvas.png(state)
    levels = hardware.levels(hardware.CARDS[state.card], one_sm=state.one_sm)
    for bars, limits, values in (
        (canvas.artists["capacity"], figure.CAPACITY, [level.nbytes for level in levels]),
        (canvas.artists["rate"], figure.RATE, [level.rate for level in levels]),
    ):
        for bar, value in zip(bars, values, strict=True):
            assert bar.get_x() + bar.get_width() == pytest.approx(limits[0] if value is None else value)
            assert value is None or limits[0] < value < limits[1]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_no_word_leaves_the_picture_or_enters_the_middle(canvas, state):
    canvas.png(state)
    width = canvas.figure.bbox.width
    for name, low, high in (("holds", 0, 0.4), ("latency", 0.4, 0.6), ("hands", 0.6, 1)):
        for text in canvas.artists[name]:
            box = text.get_window_extent(canvas.canvas.get_renderer())
            assert not text.get_text() or low * width <= box.x0 and box.x1 <= high * width, text.get_text()


def test_the_words_on_the_picture_are_the_ratios(canvas):
    canvas.png(figure.State())
    text = [artist.get_text() for name in ("holds", "hands", "latency") for artist in canvas.artists[name]]
    for words in ("20.2 MiB", "1/2,023 of HBM2", "19.49 TB/s", "12.5 × HBM2", "29 cycles, 21 ns", "over 1 TB"):
        assert any(words in one for one in text), words


def test_the_names_are_the_levels(canvas):
    canvas.png(figure.State("RTX 4090"))
    names = [level.name for level in figure.trace(figure.State("RTX 4090"))]
    assert canvas.artists["dram"].get_text() == names[figure.DRAM] == "GDDR6X"
    framed = {text.get_text() for text in canvas.figure.axes[0].texts}
    assert set(names) <= framed
