"""What the chip has: the thread that holds a number of a tile, instructions, and registers that change hands."""

from flashlab.grading.exercise import Case, Exercise, Mistake, Question


def holder(i, j):
    """Return the thread, 0 to 127, that holds the number in row i and column j of a warpgroup's product."""
    return i // 16 * 32 + i % 8 * 4 + j % 8 // 2


def _draw_place(rng, size):
    return int(rng.integers(min(64, 7 * size))), int(rng.integers(min(256, 26 * size)))


thread = Exercise(
    reference=holder,
    edges=(
        Case("columns 0 and 1 belong to one thread", (0, 1)),
        Case("columns 8 to 15: the same four threads again", (0, 10)),
        Case("the second row", (1, 0)),
        Case("rows 8 to 15: the same threads again", (9, 0)),
        Case("row 16, with which the second warp begins", (16, 0)),
    ),
    draw=_draw_place,
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
        Mistake("gave a warp 8 rows.", "It has 16: rows 8 to 15 belong to the threads of rows 0 to 7.",
                "i // 16 * 32 + i % 8 * 4", "i // 8 * 32 + i % 8 * 4"),
        Mistake("gave rows 8 to 15 threads of their own.", "They belong to the threads of rows 0 to 7.",
                "i % 8", "i % 16"),
        Mistake("gave neighbouring columns to different threads.", "Columns 0 and 1 belong to one thread.",
                "j % 8 // 2", "j % 4"),
        Mistake("went on to other threads after eight columns.", "There the same four threads come again.",
                "j % 8 // 2", "j // 2"),
        Mistake("left the warps out.", "After 16 rows come the next 32 threads.", "i // 16 * 32 + ", ""),
        Mistake("gave a row eight threads.", "Four share it.", "i % 8 * 4", "i % 8 * 8"),
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


AT_LAUNCH = (2, 168), (3, 128)  # consumers, and registers per thread at the launch: the producer keeps no more


def _draw_registers(rng, size):
    (consumers, at_launch), step = AT_LAUNCH[rng.integers(2)], int(rng.choice([1, 8]))
    return consumers, step * int(rng.integers(1, at_launch // step + 1))


registers = Exercise(
    reference=hand_over,
    edges=(
        Case("two consumers, and a producer that keeps 24", (2, 24)),
        Case("three consumers, and a producer that keeps 32", (3, 32)),
        Case("three consumers: what each gets is not a multiple of 8", (3, 24)),
        Case("a producer that keeps more", (2, 40)),
        Case("a producer that gives nothing back", (3, 128)),
    ),
    draw=_draw_registers,
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
        Mistake("left the producer out.", "It is a warpgroup of 128 threads, too.", "consumers + 1", "consumers"),
        Mistake("returned no multiple of 8.", "Round down at the end as well.", "consumers) // 8 * 8", "consumers)"),
        Mistake("did not round down what the launch gives.", "It is a multiple of 8, too.",
                "(128 * (consumers + 1)) // 8 * 8", "(128 * (consumers + 1))"),
        Mistake("gave each consumer all that the producer gives back.", "They share it.",
                "given_back // consumers", "given_back"),
        Mistake("let the producer give back all.", "It keeps some.", "at_launch - producer", "at_launch"),
        Mistake("returned what comes on top.", "Add what every thread has at the launch.",
                "(at_launch + given_back // consumers)", "(given_back // consumers)"),
    ),
)  # fmt: skip
