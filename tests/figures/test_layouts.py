import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from figures import layouts as figure
from flashlab.kernels.hopper.products import accumulator
from flashlab.machine import chip

EVERY = pytest.mark.parametrize("layout", figure.LAYOUTS)


def combined(places, number):
    """Return the XOR of the places of those bits that are 1 in a number."""
    return np.bitwise_xor.reduce([place for bit, place in enumerate(places) if number >> bit & 1] or [0 * places[0]])


@EVERY
def test_every_number_has_one_register(layout):
    places = figure.numbers_of(layout).reshape(-1, 2)
    assert len(np.unique(places, axis=0)) == len(places) == figure.SIZE**2


@EVERY
def test_places_per_bit_are_the_whole_layout(layout):
    trace, places = figure.trace(figure.State(layout=layout)), figure.numbers_of(layout)
    of_thread, of_register = np.array(trace["of_thread"]), np.array(trace["of_register"])
    for thread, register in itertools.product(range(0, figure.THREADS, 7), range(places.shape[1])):
        place = combined(of_thread, thread) ^ combined(of_register, register)
        assert place.tolist() == places[thread, register].tolist()


@pytest.mark.parametrize("swizzled", [False, True])
def test_offsets_per_bit_are_the_whole_layout(swizzled):
    trace, offsets = figure.trace(figure.State(swizzled=swizzled)), figure.offsets(swizzled)
    for row, column in np.ndindex(offsets.shape):
        offset = combined(np.array(trace["offset_of_row"]), row) ^ combined(np.array(trace["offset_of_column"]), column)
        assert offset == offsets[row, column]
        piece, rest = divmod(column, 8)
        assert offset == row * 64 + (piece ^ row % 8 * swizzled) * 8 + rest, "the rule of the lesson"


def test_the_accumulator_is_that_of_the_lesson():
    assert figure.LAYOUTS["accumulator of wgmma"] == accumulator(figure.SIZE)
    places = figure.numbers_of("accumulator of wgmma")  # [THREADS, registers, 2]
    owners = np.empty((figure.SIZE, figure.SIZE), int)
    owners[places[..., 0], places[..., 1]] = np.arange(figure.THREADS)[:, None]
    np.testing.assert_array_equal(owners, chip.owners(figure.SIZE, figure.SIZE))


@EVERY
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("register", figure.REGISTERS)
def test_each_group_of_lanes_moves_as_many_different_words_as_there_are_banks(layout, swizzled, register):
    groups = figure.words(layout, swizzled, register)  # [groups, 32]
    assert all(len(set(group)) == figure.BANKS for group in groups)
    counts = figure.trace(figure.State(5, layout, register, swizzled))["banks"]
    assert [sum(it) for it in counts] == [figure.BANKS] * len(groups)
    size = figure.together(layout)
    lane = figure.numbers_of(layout)[:, register // size * size + np.arange(size)]  # [THREADS, size, 2]
    assert (np.diff(lane[..., 1]) == 1).all() and (np.diff(lane[..., 0]) == 0).all(), "neighbours in a row"


def test_triton_counts_the_same_conflicts():
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_ALWAYS_COMPILE": "1"}
    command = [sys.executable, "-m", "tests.figures.bank_conflicts"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    conflicts = iter(map(int, run.stdout.split()))
    for layout, swizzled in itertools.product(figure.LAYOUTS, [False, True]):
        turns = {max(counts) for counts in figure.trace(figure.State(layout=layout, swizzled=swizzled))["banks"]}
        assert turns == {1 + next(conflicts)}, (layout, swizzled)
    assert list(conflicts) == []


def test_describe_has_the_numbers():
    first = "Thread 5, register 0: row 1, column 2. 32 lanes move 32 words at once, "
    assert figure.describe(figure.State()) == first + "in 4 of 32 banks: 8 turns."
    assert figure.describe(figure.State(swizzled=True)) == first + "in 32 of 32 banks: 1 turn."
