"""hopper: right solutions pass however they are written; each mistake is told by its name."""

import heapq

import pytest

from flashlab.course.check import check
from flashlab.course.judge import first_failure
from flashlab.course.registry import find


def phase_with_divmod(it, stages):
    uses, stage = divmod(it, stages)
    return stage, uses % 2


def phase_by_walking(it, stages):
    stage, bit = 0, False
    for _ in range(it):
        stage += 1
        if stage == stages:
            stage, bit = 0, not bit
    return stage, bit


def phase_in_two_rounds(it, stages):
    return it % stages, int(it % (2 * stages) >= stages)


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


def schedule_that_empties_its_argument(work, programs):
    tiles, blocks = [[] for _ in range(programs)], [0] * programs
    for _ in range(len(work)):
        tile = work.index(max(work))
        least = blocks.index(min(blocks))
        tiles[least].append(tile)
        blocks[least] += work[tile]
        work[tile] = -1
    return tiles


RIGHT = {
    "hopper.phase": [phase_with_divmod, phase_by_walking, phase_in_two_rounds],
    "hopper.registers": [registers_from_the_pool, registers_in_bytes, registers_by_trying],
    "hopper.longest_first": [schedule_with_a_heap, schedule_as_tuples, schedule_that_empties_its_argument],
}


@pytest.mark.parametrize("name, solution", [(name, right) for name in RIGHT for right in RIGHT[name]])
def test_a_right_solution_passes_however_it_is_written(name, solution):
    assert first_failure(find(name), solution) is None


def test_the_numbers_that_flash_attention_3_uses():
    hand_over = find("hopper.registers").reference
    assert (hand_over(2, 24), hand_over(3, 32)) == (240, 160)


@pytest.mark.parametrize(
    "tiles, says",
    [
        (None, "expected a list of 2 lists, one a program, got None"),
        ([[0, 1]], "expected a list of 2 lists, one a program, got [[0, 1]]"),
        ([[0], [0]], "each of the tiles 0 to 1 is due once, got [0, 0]"),
        ([[0], []], "each of the tiles 0 to 1 is due once, got [0]"),
    ],
)
def test_an_assignment_of_the_wrong_form_is_told_so(tiles, says, capsys):
    check("hopper.longest_first", lambda work, programs: tiles)
    assert says in capsys.readouterr().out
