"""gluon: right solutions pass however they are written; layouts are the compiler's."""

import numpy as np
import pytest

from flashlab.course.registry import find
from flashlab.grading.verdict import first_failure
from flashlab.machine import chip


def registers_from_the_pool(consumers, producer):
    """All that the launch took, less the producer's, shared."""
    pool = (512 // (consumers + 1) // 8 * 8) * (consumers + 1)  # of one thread in each warpgroup
    each = (pool - producer) // consumers
    return each - each % 8


def registers_in_bytes(consumers, producer):
    threads = 32 * 4 * (consumers + 1)
    at_launch = 2**18 / 4 / threads // 8 * 8
    return (at_launch + (at_launch - producer) / consumers) // 8 * 8


def registers_by_trying(consumers, producer):
    launch = max(R for R in range(0, 256, 8) if R * 128 * (consumers + 1) <= 65536)
    room = launch * (consumers + 1)
    return max(R for R in range(0, 512, 8) if R * consumers + producer <= room)


def thread_by_quotients(i, j):
    warp, row = divmod(i, 16)
    return 32 * warp + 4 * (row if row < 8 else row - 8) + (j // 2) % 4


def thread_by_looking(i, j):
    return chip.owners(64, 256)[i, j]


RIGHT = {
    "gluon.thread": [thread_by_quotients, thread_by_looking],
    "gluon.registers": [registers_from_the_pool, registers_in_bytes, registers_by_trying],
}


@pytest.mark.parametrize("name, solution", [(name, right) for name in RIGHT for right in RIGHT[name]])
def test_a_right_solution_passes_however_it_is_written(name, solution):
    assert first_failure(find(name), solution) is None


def test_the_numbers_that_flash_attention_3_uses():
    hand_over = find("gluon.registers").reference
    assert (hand_over(2, 24), hand_over(3, 32)) == (240, 160)


def test_the_answers_follow_from_the_layout():
    owners = chip.owners(64, 128)
    assert {*np.bincount(owners.ravel())} == {find("gluon.per_thread").answer}
    assert len({*owners[5]}) == 4, "four threads share a row"
