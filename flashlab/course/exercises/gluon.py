"""The exercises on Gluon: who holds which number of a tile, and registers that change hands."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake


def holder(i, j):
    """Return the thread, 0 to 127, that holds the number in row i and column j of a warpgroup's product."""
    return i // 16 * 32 + i % 8 * 4 + j % 8 // 2


thread = Exercise(
    reference=holder,
    launch=lambda thread_of, i, j: np.array([[thread_of(a, b) for b in j] for a in i]),
    exact=lambda i, j: np.array([[holder(a, b) for b in j] for a in i]),
    cases=lambda: [
        Case("the first eight columns of row 0", ([0], list(range(8)))),
        Case("columns 8 to 15: the same four threads again", ([0], list(range(8, 16)))),
        Case("the first eight rows", (list(range(8)), [0])),
        Case("rows 8 to 15: the same threads again", (list(range(8, 16)), [0])),
        Case("row 16, with which the second warp begins", ([15, 16, 17], [0, 1, 2])),
        Case("the whole of 64 rows and 32 columns", (list(range(64)), list(range(32)))),
        Case("the last columns of 128", ([0, 63], list(range(96, 128)))),
    ],
    level=2,
    minutes=10,
    hints=(
        "Read the table along a row: after how many columns does the thread change, and when does it come again? Then "
        "down a column.",
        "A warp has 16 rows, so i // 16 is the warp, and each has 32 threads. Within it, eight rows have four threads "
        "each, and each of the four has two columns of eight.",
        "return i // 16 * 32 + i % 8 * 4 + j % 8 // 2",
    ),
    mistakes=(
        Mistake("a warp has 16 rows, not 8: rows 8 to 15 belong to the same threads as rows 0 to 7.",
                "i // 16 * 32 + i % 8 * 4", "i // 8 * 32 + i % 8 * 4"),
        Mistake("rows 8 to 15 got threads of their own: they are held by those of rows 0 to 7.", "i % 8", "i % 16"),
        Mistake("each thread has two neighbouring columns.", "j % 8 // 2", "j % 4"),
        Mistake("after eight columns the same four threads come again.", "j % 8 // 2", "j // 2"),
        Mistake("the warps were forgotten: 16 rows further down begins the next 32 threads.", "i // 16 * 32 + ", ""),
        Mistake("four threads share a row, not eight.", "i % 8 * 4", "i % 8 * 8"),
    ),
)  # fmt: skip

instructions = Question(
    answer=8,
    because="The sum runs over the 128 rows of the block, and one instruction takes 16 of them.",
    hints=(
        "In X^T X, over what does the sum of each product run? And how much of it does one instruction take?",
        "It runs over the rows of the block, 128 of them. One instruction takes a depth of 16.",
        "128 / 16",
    ),
    wrong=(
        (4, "That is 64 / 16: the columns. The sum runs over the rows of X, of which the block has 128."),
        (1, "One instruction takes a depth of 16. The block has 128 rows."),
        (128, "One instruction takes 16 rows of X at a time, not one."),
        (64, "64 is a side of the result. The depth is 128, in steps of 16."),
    ),
    minutes=2,
)

per_thread = Question(
    answer=64,
    because="64 × 128 numbers, shared by 128 threads.",
    hints=(
        "How many numbers are in the tile, and how many threads share them?",
        "64 · 128 numbers, and a warpgroup has 4 · 32 threads.",
        "64 * 128 / 128",
    ),
    wrong=(
        (32, "That is what a thread holds of one row. It has two rows: i and i + 8."),
        (128, "Four warps share the tile: 128 threads."),
        (256, "A warpgroup has four warps of 32 threads: 128, not 32."),
    ),
    minutes=1,
)


def hand_over(consumers, producer):
    """Return the registers that each thread of a consumer has in the end."""
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
        *(Case(f"{n} consumers, {kept} kept", (n, kept)) for n in (2, 3, 4, 5) for kept in (24, 32, 48, 56)),
    ],
    level=2,
    minutes=8,
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
