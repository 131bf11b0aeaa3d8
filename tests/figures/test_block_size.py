from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import block_size as figure
from figures import style
from figures.canvas import Canvas
from flashlab.machine.hardware import CARDS
from flashlab.reference import block_size

STATES = [
    figure.State(128, card, d, dtype, registers)
    for card, d, dtype, registers in product(("T4", "B200"), (32, 256), ("float16", "float32"), (False, True))
]
states = pytest.mark.parametrize("state", STATES, ids=str)


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(8.8, 5.6), figure.build, figure.update)


@states
def test_the_largest_that_fits_is_flashlabs(state):
    _, _, (limit, _), fits, _ = figure.trace(state)
    if state.registers:
        assert fits == 0 or block_size.shared_memory(fits, fits, state.d, state.dtype) <= limit
    elif fits:
        assert fits == block_size.largest(limit, state.d, state.dtype)


@states
def test_the_curves_are_flashlabs(canvas, state):
    canvas.png(state)
    B, at = 208, figure.SIZES.index(208)
    room = block_size.working_set(B, B, state.d, state.dtype)
    expected = block_size.shared_memory(B, B, state.d, state.dtype) if state.registers else sum(room.values())
    assert canvas.artists["room"].get_ydata()[at] == expected / 1024
    if getattr(CARDS[state.card], state.dtype):
        clocks = block_size.clocks(CARDS[state.card], figure.N, state.d, B, state.dtype)
        assert canvas.artists["bytes"].get_ydata()[at] == clocks.bytes / clocks.arithmetic
    else:
        assert not len(canvas.artists["bytes"].get_ydata())
        assert "no float32 rate documented" in figure.describe(state)


@states
def test_the_limit_is_crossed_visibly(canvas, state):
    for B in figure.SIZES[::3]:
        now = replace(state, B=B)
        canvas.png(now)
        rooms, _, limits, fits, _ = figure.trace(now)
        shared, kept = rooms[figure.SIZES.index(B)]
        color = canvas.artists["here"][1].get_color()
        assert color == (style.FLASH if shared > limits[0] or kept > limits[1] else style.FAST)
        refused = f"out of resource: shared memory, Required: {shared}, Hardware limit: {limits[0]}."
        assert (refused in canvas.artists["verdict"].get_text()) == (shared > limits[0])
        assert ("It fits" in figure.describe(now)) == (B <= fits)


def test_the_band_runs_from_enough_to_what_fits(canvas):
    canvas.png(figure.State(card="T4", d=32, registers=True))
    _, ratios, _, fits, enough = figure.trace(figure.State(card="T4", d=32, registers=True))
    band = canvas.artists["sweet"][0]
    low = enough if 0 < enough <= fits else fits
    assert (band.get_x(), band.get_width()) == (low - 8, fits - low + 16)
    assert np.all(np.diff(ratios) < 0)


def test_describe_has_the_numbers():
    said = figure.describe(figure.State())
    assert "K and V are read 64 times: 1.59 × arithmetic" in said and "145 KiB of 163" in said
    assert "the largest that does is 128 × 128. From B = 224 on arithmetic decides." in said
