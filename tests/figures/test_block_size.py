from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import block_size as figure
from flashlab.machine.hardware import CARDS
from flashlab.reference import block_size, tiling

STATES = [
    figure.State(7, card, d, dtype, registers)
    for card, d, dtype, registers in product(("T4", "B200"), (32, 256), ("float16", "float32"), (False, True))
]
states = pytest.mark.parametrize("state", STATES, ids=str)


@states
def test_the_largest_tile_that_fits_is_that_of_the_reference(state):
    trace = figure.trace(state)
    fits, limit = trace["fits"], trace["limits"]["shared"]
    if state.registers:
        assert fits == 0 or block_size.shared_memory(fits, fits, state.d, state.dtype) <= limit
    elif fits:
        assert fits == block_size.largest(limit, state.d, state.dtype)
    assert fits == max((size["B"] for size in trace["sizes"] if size["refused"] is None), default=0)


@states
def test_the_tiles_are_those_of_the_reference(state):
    for size in figure.trace(state)["sizes"]:
        B = size["B"]
        tiles = block_size.working_set(B, B, state.d, state.dtype)
        assert dict(size["shared"] + size["registers"]) == tiles
        expected = block_size.shared_memory(B, B, state.d, state.dtype) if state.registers else sum(tiles.values())
        assert sum(dict(size["shared"]).values()) == expected


@states
def test_the_times_are_those_of_the_reference(state):
    trace = figure.trace(state)
    if getattr(CARDS[state.card], state.dtype) is None:
        assert all(size["times"]["ratio"] is None for size in trace["sizes"]) and trace["enough"] == 0
        assert "no float32 rate documented" in figure.describe(state)
        return
    for size in trace["sizes"]:
        clocks = block_size.clocks(CARDS[state.card], figure.N, state.d, size["B"], state.dtype)
        assert size["times"]["ratio"] == clocks.bytes / clocks.arithmetic
    ratios = np.array([size["times"]["ratio"] for size in trace["sizes"]])
    assert np.all(np.diff(ratios) < 0)
    if trace["enough"]:
        at = figure.SIZES.index(trace["enough"])
        assert ratios[at] <= 1 < ratios[at - 1]


@states
def test_a_curve_exceeds_one_where_the_card_refuses(state):
    trace = figure.trace(state)
    for size in trace["sizes"]:
        memories = [size["times"][name] for name in ("shared", "registers") if size["times"][name] is not None]
        assert (len(memories) == 2) == state.registers
        assert (max(memories) <= 1) == (size["refused"] is None)
        dtype = {"float16": np.float16, "float32": np.float32}[state.dtype]
        bill = tiling.fa2_traffic(figure.N, figure.N, state.d, size["B"], size["B"], dtype=dtype)
        assert size["moved"] == bill.total()


@states
def test_a_tile_that_does_not_fit_is_refused_with_tritons_error(state):
    trace = figure.trace(state)
    limits = trace["limits"]
    for step, size in enumerate(trace["sizes"]):
        shared, registers = (sum(dict(size[where]).values()) for where in ("shared", "registers"))
        assert (size["refused"] is None) == (shared <= limits["shared"] and registers <= limits["registers"])
        if shared > limits["shared"]:
            error = f"out of resource: shared memory, Required: {shared}, Hardware limit: {limits['shared']}."
            assert size["refused"].startswith(error)
        assert ("it fits" in figure.describe(replace(state, step=step))) == (size["refused"] is None)


def test_describe_has_the_numbers():
    assert figure.describe(figure.State()) == (
        "128 × 128 on an A100 40 GB, d = 64: 145 of 163 KiB, it fits. "
        "K and V are read 64 times: bytes take 1.59 × arithmetic."
    )
    assert figure.describe(figure.State()).template.startswith("[128 × 128](step) on an A100 40 GB, [d = 64](d):")
