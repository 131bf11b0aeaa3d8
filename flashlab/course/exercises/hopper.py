"""The exercises on hopper: barriers and their phases, registers that change hands, who computes which tile."""

from typing import NamedTuple

import numpy as np

from flashlab.course.exercise import Case, Exercise, Mistake, Question

exponentials = Question(
    answer=1024,
    because="128 × 128 exponentials, 16 a clock: half as long as the products, and on a unit of its own.",
    hints=(
        "How many entries has a block of scores, and how many exponentials does each of them take?",
        "128 × 128 entries, one exponential each. 16 are done in a cycle.",
        "128 * 128 / 16",
    ),
    wrong=(
        (2048, "That is what the products take. The exponentials: 128 × 128 of them, 16 a cycle."),
        (16384, "So many exponentials there are. 16 of them are done in a cycle."),
        (1056, "You are ahead: that counts alphas, too, two for each thread. The scores alone are asked for."),
        (8, "That is one row. There are 128 of them."),
        (128, "That is with one exponential for each row of 16. Each of the 128 × 128 entries takes one."),
        (131072, "d does not enter: an entry of S takes one exponential, however long the vectors were."),
    ),
)


def stage_and_phase(it, stages):
    """Where step ``it`` finds its tiles, and which phase of that stage's ``full`` barrier it waits for."""
    return it % stages, it // stages & 1


phase = Exercise(
    reference=stage_and_phase,
    cases=lambda: [
        Case("the first step", (0, 2)),
        Case("the second step, which has a stage of its own", (1, 2)),
        Case("the third of two stages' steps: stage 0 for the second time", (2, 2)),
        Case("stage 0 for the third time: a bit can only be 0 or 1", (4, 2)),
        Case("three stages", (5, 3)),
        Case("one stage, used again and again", (7, 1)),
        Case("a program's thousandth step", (999, 4)),
    ],
    level=1,
    minutes=5,
    hints=(
        "Write down stage and phase for the steps 0 to 5 with two stages. When does a stage come up a second time?",
        "The stages take turns, so the stage is it % stages. It was used it // stages times before, and each use flips "
        "its bit.",
        "return it % stages, (it // stages) & 1",
    ),
    mistakes=(
        Mistake("the bit flipped with every step: it flips when the same stage is used again.",
                "it // stages & 1", "it & 1"),
        Mistake("uses of a stage were counted: a barrier has one bit, so take the count modulo 2.",
                "it // stages & 1", "it // stages"),
        Mistake("the bit is the wrong way round: the first filling of a stage ends phase 0. (A producer that waits for "
                "an empty stage asks for the other one.)", "it // stages & 1", "it // stages & 1 ^ 1"),
        Mistake("stage and phase are in the wrong order: the stage first.",
                "it % stages, it // stages & 1", "it // stages & 1, it % stages"),
        Mistake("two stages were assumed: use `stages`.", "it % stages, it // stages & 1", "it % 2, it // 2 & 1"),
        Mistake("the stages were taken in blocks: they take turns, step by step.",
                "it % stages,", "it // stages % stages,"),
        Mistake("the phase never changed: a stage that is used again has the other one.", "it // stages & 1", "0"),
    ),
)  # fmt: skip

arrivals = Question(
    answer=2,
    because="One arrival from each consumer: only when both have read the stage may the producer fill it again.",
    hints=(
        "Who must be done with a stage before it may be overwritten?",
        "Both consumers read the same K and V. Each of them arrives once; the producer only waits.",
        "As many as there are consumers.",
    ),
    wrong=(
        (1, "Then the faster consumer alone would open the stage, and the other one would read what comes next."),
        (3, "The producer waits at `empty`, it does not arrive there: phase 0 would never end."),
        (256, "A consumer arrives once, when all of its 128 threads are done; not once a thread."),
        (0, "Then there would be nothing to wait for, and tiles would be overwritten while they are read."),
    ),
    minutes=1,
)

first_wait = Question(
    answer=1,
    because="A new barrier is in phase 0, and phase 1 counts as over: the producer walks through. Hence its `^ 1`.",
    hints=(
        "At the first step nobody has read anything yet. Must the producer wait?",
        "wait(phase) blocks while the barrier is in that phase, and a new barrier is in phase 0.",
        "It must ask for the phase in which the barrier is not.",
    ),
    wrong=(
        (0, "Phase 0 of `empty` ends when the consumers have read the stage, which nobody has filled. Try it below."),
        (2, "A phase is one bit."),
    ),
    minutes=2,
)


def hand_over(consumers, producer):
    """Registers that each thread of a consumer has in the end."""
    at_launch = 65536 // (128 * (consumers + 1)) // 8 * 8
    given_back = at_launch - producer
    return (at_launch + given_back // consumers) // 8 * 8


registers = Exercise(
    reference=hand_over,
    cases=lambda: [
        Case("two consumers, and a producer that keeps 24", (2, 24)),
        Case("three consumers, and a producer that keeps 32", (3, 32)),
        Case("three consumers, and a producer that keeps 24", (3, 24)),
        Case("a producer that keeps more", (2, 40)),
        Case("four consumers: 102 is not a multiple of 8", (4, 24)),
    ],
    level=2,
    minutes=6,
    hints=(
        "Two steps. What does every thread get at the launch, where there are consumers + 1 warpgroups of 128 threads? "
        "And how much of it does a thread of the producer give back?",
        "65,536 // (128 · (consumers + 1)), rounded down to a multiple of 8, is what all have. One warpgroup gives "
        "back all but `producer`, and the consumers share it.",
        "at_launch = 65536 // (128 * (consumers + 1)) // 8 * 8; "
        "return (at_launch + (at_launch - producer) // consumers) // 8 * 8.",
    ),
    mistakes=(
        Mistake("the producer was left out: it is a warpgroup of 128 threads too.", "consumers + 1", "consumers"),
        Mistake("not a multiple of 8: round down at the end as well.", "consumers) // 8 * 8", "consumers)"),
        Mistake("rounded up: there are no more registers than that.",
                "(at_launch + given_back // consumers) // 8 * 8", "-(-(at_launch + given_back // consumers) // 8) * 8"),
        Mistake("the launch hands out multiples of 8 too: round down twice.",
                "(128 * (consumers + 1)) // 8 * 8", "(128 * (consumers + 1))"),
        Mistake("a warpgroup has four warps: 128 threads, not 32.", "128 *", "32 *"),
        Mistake("nothing was rounded down to a multiple of 8: first what the launch gives, then what a consumer has.",
                "(at_launch + given_back // consumers) // 8 * 8", "(65536 - 128 * producer) // (128 * consumers)"),
        Mistake("that is what the launch gives: a consumer gets its part of what the producer gives back, too.",
                "(at_launch + given_back // consumers) // 8 * 8", "at_launch"),
        Mistake("65,536 are registers, not bytes.", "65536 //", "16384 //"),
        Mistake("what the producer gives back is shared: each consumer gets its part of it.",
                "given_back // consumers", "given_back"),
        Mistake("the producer keeps some: it gives back the rest.", "at_launch - producer", "at_launch"),
        Mistake("that is only what comes on top of what all had at the launch.",
                "(at_launch + given_back // consumers)", "(given_back // consumers)"),
    ),
)  # fmt: skip


class Blocks(NamedTuple):
    """What the programs have to do, sorted: who does it does not matter."""

    blocks: np.ndarray  # [programs]


def assign_longest_first(work, programs):
    """The tiles of each program: the longest comes first, and goes to the program that has the fewest blocks."""
    tiles = [[] for _ in range(programs)]
    blocks = [0] * programs
    for tile in sorted(range(len(work)), key=lambda tile: -work[tile]):
        least = blocks.index(min(blocks))
        tiles[least].append(tile)
        blocks[least] += work[tile]
    return tiles


def _blocks(assign, work, programs):
    """Run a learner's assignment and count. Raises ValueError where tiles or programs are missing."""
    tiles = assign(list(work), programs)
    if not isinstance(tiles, list | tuple) or len(tiles) != programs:
        raise ValueError(f"expected a list of {programs} lists, one a program, got {tiles!r:.60}")
    given = sorted(int(tile) for own in tiles for tile in own)
    if given != list(range(len(work))):
        raise ValueError(f"each of the tiles 0 to {len(work) - 1} is due once, got {given!r:.60}")
    return Blocks(np.sort([sum(work[tile] for tile in own) for own in tiles]))


def _schedule_cases():
    cases = [
        ("two tiles of equal length", [3, 3], 2),
        ("the longest tile lies last", [1, 1, 2], 2),
        ("one head under a causal mask", [1, 2, 3, 4], 2),
        ("more programs than tiles", [2], 3),
        ("two heads", [1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 3),
        ("a few long tiles and many short ones", [9, 1, 1, 1, 1, 1, 7, 1, 1, 1], 3),
        ("eight heads of 32 tiles on 132 programs", [*range(1, 33)] * 8, 132),
    ]
    return [Case(name, (work, programs)) for name, work, programs in cases]


longest_first = Exercise(
    reference=assign_longest_first,
    launch=_blocks,
    exact=lambda work, programs: _blocks(assign_longest_first, work, programs),
    cases=_schedule_cases,
    level=2,
    minutes=10,
    hints=(
        "Two questions, one after the other: which tile comes next, and who has least to do?",
        "sorted(range(len(work)), key=lambda tile: -work[tile]) are the tiles, longest first. Keep a list of what each "
        "program has to do so far: blocks.index(min(blocks)) is the one with least.",
        "for each tile, longest first: least = blocks.index(min(blocks)); tiles[least].append(tile); "
        "blocks[least] += work[tile].",
    ),
    mistakes=(
        Mistake("the shortest came first, or tiles were counted where blocks are due, which comes to the same: look "
                "for the fewest blocks, and give the longest tile first.", "-work[tile]", "work[tile]"),
        Mistake("the tiles were taken as they lie: sort them, longest first.",
                "sorted(range(len(work)), key=lambda tile: -work[tile])", "range(len(work))"),
        Mistake("the programs took turns, in the order of the tiles: look at what each has to do.",
                "for tile in sorted(range(len(work)), key=lambda tile: -work[tile]):\n"
                "        least = blocks.index(min(blocks))",
                "for tile in range(len(work)):\n        least = tile % programs"),
        Mistake("one program got everything: the next tile goes to whom has least, not most.",
                "min(blocks)", "max(blocks)"),
        Mistake("the lists hold numbers of blocks: put the tiles there, their places in work.",
                "append(tile)", "append(work[tile])"),
        Mistake("tiles were left out.", "return tiles", "return [own[:1] for own in tiles]"),
    ),
)  # fmt: skip
