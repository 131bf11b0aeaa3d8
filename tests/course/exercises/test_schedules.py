"""schedules: right solutions pass however they are written; answers agree with the hardware table and the schedule."""

import heapq

import numpy as np
import pytest

from flashlab.course.check import check
from flashlab.course.registry import find
from flashlab.kernels.hopper import schedule
from flashlab.machine.hardware import CARDS
from tests.course.exercises import right


def schedule_with_a_heap(work, programs):
    heap, tiles = [(0, program) for program in range(programs)], [[] for _ in range(programs)]
    for blocks, tile in sorted(((blocks, tile) for tile, blocks in enumerate(work)), reverse=True):
        busy, program = heapq.heappop(heap)
        tiles[program].append(tile)
        heapq.heappush(heap, (busy + blocks, program))
    return tiles


def schedule_as_tuples(work, programs):
    tiles = [()] * programs
    for tile in sorted(range(len(work)), key=work.__getitem__)[::-1]:
        least = min(range(programs), key=lambda program: sum(work[t] for t in tiles[program]))
        tiles[least] = (tile, *tiles[least])
    return tuple(tiles)


def schedule_that_empties_a_copy(work, programs):
    work = work.copy()
    tiles, blocks = [[] for _ in range(programs)], [0] * programs
    for _ in range(len(work)):
        tile = work.index(max(work))
        least = blocks.index(min(blocks))
        tiles[least].append(tile)
        blocks[least] += work[tile]
        work[tile] = -1
    return tiles


def time_by_a_clock(lists, work, t_b, t_o):
    """Add up in another order: far more terms."""
    clocks = []
    for tiles in lists:
        clock = 0.0
        for tile in tiles:
            clock += t_o
            for _ in range(work[tile]):
                clock += t_b
        clocks.append(clock)
    return max(clocks)


RIGHT = {
    "schedules.longest_first": [schedule_with_a_heap, schedule_as_tuples, schedule_that_empties_a_copy],
    "schedules.time_of": [time_by_a_clock],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_kernels_schedule_is_as_even_as_the_exercise():
    work = sorted([*range(1, 33)] * 8, reverse=True)
    mine = [sum(work[tile] for tile in own) for own in find("schedules.longest_first").reference(work, 132)]
    assert sorted(np.bincount(schedule.assign(work, 132), work)) == sorted(mine)


def test_the_answers_are_those_of_the_card():
    card = CARDS["H200 SXM"]
    assert find("schedules.rounds").answer == -(-16384 // 128 * 16 // card.sms)
    megabytes = card.sms * 2 * 2 * 1024 * 128 / 1e6
    assert find("schedules.megabytes").answer == round(megabytes, 1) and megabytes > card.l2_bytes / 1e6


@pytest.mark.parametrize(
    "tiles, message",
    [
        (None, "expected a list of 2 lists, one per program, got None"),
        ([[0, 1]], "expected a list of 2 lists, one per program, got [[0, 1]]"),
        ([[0], [0]], "expected each of the tiles 0 to 1 once, got [0, 0]"),
        ([[0], []], "expected each of the tiles 0 to 1 once, got [0]"),
    ],
)
def test_an_assignment_of_the_wrong_form_gets_a_sentence(tiles, message, capsys):
    check("schedules.longest_first", lambda work, programs: tiles)
    assert message in capsys.readouterr().out
