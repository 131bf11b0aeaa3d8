from itertools import product

import pytest

from figures import roofline as figure
from figures import style
from figures.canvas import Canvas
from flashlab.machine import hardware
from flashlab.reference import roofline

STATES = [
    figure.State(card, d, N, dtype)
    for card, (d, N, dtype) in product(
        hardware.CARDS, ((16, 256, "float32"), (64, 1024, "float16"), (256, 16384, "float8"), (256, 16384, "float16"))
    )
]


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(8.6, 4.0), figure.build, figure.update)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_points_lie_on_the_roof_and_in_the_picture(canvas, state):
    canvas.png(state)
    card = hardware.CARDS[state.card]
    peak = getattr(card, state.dtype)
    works = roofline.attention(state.N, state.d, state.dtype)
    x, y = canvas.artists["points"].get_data()
    expected = [roofline.intensity(works[name]) for name in works if name in figure.LABELS]
    assert list(x) == pytest.approx(expected)
    for intensity, reach in zip(x, y, strict=True):
        assert figure.INTENSITY[0] < intensity < figure.INTENSITY[1]
        assert reach == pytest.approx(min(peak, intensity * card.dram_rate) / 1e12 if peak else 0)
    for mark in canvas.artists["marks"]:
        assert not peak or figure.RATE[0] < mark.get_ydata()[0] < figure.RATE[1]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_no_word_leaves_the_picture(canvas, state):
    canvas.png(state)
    for text in [*canvas.artists["values"], canvas.artists["ridge"]]:
        assert text.get_window_extent(canvas.canvas.get_renderer()).x1 <= canvas.figure.bbox.width, text.get_text()


def test_the_ridge_is_where_the_roof_bends(canvas):
    canvas.png(figure.State("H100 SXM"))
    x, y = canvas.artists["roof"].get_data()
    assert x[1] == pytest.approx(hardware.ridge(hardware.CARDS["H100 SXM"]))
    assert y[1] == y[2] == pytest.approx(989.4) and y[0] / x[0] == pytest.approx(y[1] / x[1])
    assert "ridge: 295 FLOP/B" in canvas.artists["ridge"].get_text()


def test_the_numbers_beside_the_roof_are_the_traces(canvas):
    canvas.png(figure.State())
    said = [text.get_text() for text in canvas.artists["values"]]
    assert said[0].startswith("1.25 FLOP/B") and "28.4%" in said[1] and "46.8 TFLOP/s" in said[2]


def test_a_rate_that_no_document_gives_is_said_and_not_drawn(canvas):
    state = figure.State("T4", dtype="float8")
    canvas.png(state)
    assert canvas.artists["ridge"].get_text() == "no float8 rate known for this card"
    assert not any(number.get_visible() for number in canvas.artists["numbers"])
    assert "its tensor cores have no float8" in figure.describe(state)
