import re
from itertools import pairwise, product

import pytest

import figures
from figures import memory_hierarchy as figure
from flashlab.machine import hardware
from tests.tools import drawn

STATES = [figure.State(0, card, one_sm) for card, one_sm in product(hardware.CARDS, (False, True))]
states = pytest.mark.parametrize("state", STATES, ids=str)


@states
def test_the_numbers_are_those_of_the_card(state):
    card, trace = hardware.CARDS[state.card], figure.trace(state)
    for level, one in zip(hardware.levels(card, one_sm=state.one_sm), trace["levels"], strict=True):
        assert (one["name"], one["nbytes"], one["rate"], one["cycles"]) == tuple(level)
        assert one["nbytes"] is None or one["part"] * one["nbytes"] == pytest.approx(card.dram_bytes)
        assert one["rate"] is None or one["times"] * trace["levels"][figure.DRAM]["rate"] == pytest.approx(one["rate"])
    assert trace["block"]["nbytes"] == card.per_sm.block_bytes < trace["levels"][1]["nbytes"]
    assert trace["levels"][figure.DRAM]["name"] == card.dram_kind


def test_all_steps_of_the_zoom_have_one_factor_and_the_last_shows_one_block():
    windows = figure.trace(figure.State())["windows"]
    assert all(wide == 4 * narrow for wide, narrow in zip(windows, windows[figure.DOUBLING :], strict=False))
    assert all(wide / narrow == pytest.approx(windows[0] / windows[1]) for wide, narrow in pairwise(windows))
    for card in hardware.CARDS.values():
        assert windows[0] > max(card.dram_bytes, card.host_bytes or 0)
        assert card.per_sm.block_bytes < windows[-1] <= card.per_sm.register_bytes


@pytest.mark.skipif(drawn.NODE is None, reason="needs node")
@pytest.mark.parametrize("width", [340, 960])
def test_areas_are_to_scale(width):
    """All squares that fit in the picture have one linear scale."""
    for state in (figure.State(53), figure.State(16), figure.State(88, "H100 SXM", True)):
        trace = figure.trace(state)
        squares = areas(drawn.draw(figure, [state], width)[0]["markup"].split("how fast")[0])
        high = 264 if width == 960 else 200
        sizes = [trace["block"]["nbytes"], *(trace["levels"][at]["nbytes"] for at in (1, 0, 2, 3, 4))]
        whole = [(size, *box) for size, box in zip(sizes, squares, strict=False) if box[1] < high]
        assert whole
        for nbytes, _, height in whole:
            assert height**2 / high**2 == pytest.approx(nbytes / trace["windows"][state.zoom], rel=1e-6)
        beyond = [box for size, box in zip(sizes, squares, strict=False) if size > 1.1 * trace["windows"][state.zoom]]
        assert beyond and all(height > high for _, height in beyond), "they go on into the torn edge"


def areas(markup):
    """Return width and height of each square, in the order of the drawing."""
    sides = r'width="([\d.e-]+)" height="([\d.e-]+)" fill="var\(--\w+\)" fill-opacity="[\d.]+" class="grow"'
    return [tuple(map(float, square)) for square in re.findall(sides, markup)]


def test_words_have_the_numbers():
    assert figure.describe(figure.State()) == (
        "A100 40 GB, full-height square: 64 GiB. HBM2 is 62% of it, the shared memory and L1 of all 108 SMs "
        "0.031% of it. A block of threads gets 163 KiB. Shared memory is 12.5 times as fast as HBM2."
    )
    assert "HBM2 is 163,840 squares" in figure.describe(figure.State(88))
    assert "GDDR6X" in figure.describe(figure.State(card="RTX 4090"))
    for state in figures.states(figure):
        assert "nan" not in figure.describe(state)
