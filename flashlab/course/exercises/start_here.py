"""The exercises on start_here: how a check works."""

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question


def matrix_bytes(N):
    """Return the bytes of an N x N matrix of float16."""
    return 2 * N * N


score = Question(
    answer=1,
    because="(0, 2, 2, 0) · (1, 0, 1, 0) = 2, divided by √4 = 2.",
    hints=(
        "The query of river is the second row of Q, the key of bank is the third row of K.",
        "Multiply entry by entry and add up: 0·1 + 2·0 + 2·1 + 0·0. Then divide by √d, with d = 4.",
        "2 / 2",
    ),
    wrong=(
        (2, "That is the dot product. Divide it by √d, and √4 is 2."),
        (0.5, "That is divided by d. Divide by its root: √4 is 2."),
        (0, 'That is the query of bank and the key of "the". The question is about the query of river: (0, 2, 2, 0).'),
        (4, "That would be 2·2. Multiply entry by entry: (0, 2, 2, 0) and (1, 0, 1, 0)."),
    ),
    minutes=2,
)

twice = Question(
    answer=4,
    because="Twice as many rows, and each of them twice as long.",
    hints=(
        "Draw the matrix of four words as a square. Then that of eight.",
        "A matrix of N rows and N columns has N * N entries.",
        "(2 N)² = 4 N²",
    ),
    wrong=(
        (2, "Every row gets twice as long, and there are twice as many rows."),
        (8, "That would be a cube: there are rows and columns, and nothing else."),
    ),
    minutes=1,
)

first = Exercise(
    reference=matrix_bytes,
    edges=(
        Case("a matrix of one entry", (1,)),
        Case("two rows of two entries", (2,)),
        Case("1,024 tokens: 2 MiB", (1024,)),
        Case("100,000 tokens: 20 GB", (100_000,)),
    ),
    draw=lambda rng, size: (whole(rng, size, 10**5),),
    mistakes=(
        Mistake("counted entries, not bytes.", "A float16 has 2 bytes.", "2 * N * N", "N * N"),
        Mistake("counted 4 bytes for each entry, as for float32.", "A float16 has 2.", "2 * N * N", "4 * N * N"),
        Mistake("counted bits.", "8 bits are a byte.", "2 * N * N", "16 * N * N"),
        Mistake("counted one row.", "The matrix has N of them.", "2 * N * N", "2 * N"),
    ),
    minutes=2,
    hints=(
        "How many entries has a matrix of N rows and N columns, and how many bytes has one of them?",
        "float16 means 16 bits, and 8 bits are a byte.",
        "return 2 * N * N",
    ),
)
