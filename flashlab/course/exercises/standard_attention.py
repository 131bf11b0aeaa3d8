"""The exercises on standard_attention."""

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question


def bytes_of_one_head(N, d, itemsize, mask, dropout):
    """Return the bytes that the forward pass of one head moves: the dropout mask has one byte per element."""
    square = 4 + 2 * mask + 2 * dropout  # S and P out and back; the masked S; the dropped P
    thin = 4  # Q, K, V in, O out
    return itemsize * (square * N * N + thin * N * d) + dropout * N * N


passes = Question(
    answer=4,
    because="S is written and read, P is written and read: 2 writes and 2 reads. O is N x d, and read by nobody here.",
    hints=(
        "Go through the three kernels and ask of each: which matrices of N x N does it load, which does it store?",
        "The first kernel stores S and loads no such matrix; the last one loads P and stores none.",
        "S out, S in, P out, P in.",
    ),
    wrong=(
        (2, "Those are the stores. Each of the two matrices is also loaded again by the next kernel."),
        (3, "S out and in, P out: and P in? The product with V needs it."),
        (5, "A common count, 2 writes and 3 reads. But which kernel would do the third read?"),
        (1, "Each kernel stores its result, and the next one loads it: count both, for S and for P."),
    ),
)

heads = Question(
    answer=20,
    unit="GB",
    because="100,000² = 10¹⁰ numbers of 2 bytes are 20 GB for one head. 50 heads take a terabyte.",
    hints=(
        "How many numbers does an N x N matrix hold?",
        "10⁵ · 10⁵ = 10¹⁰ numbers, 2 bytes each.",
        "2 · 10¹⁰ bytes, and a GB is 10⁹ bytes.",
    ),
    wrong=(
        (40, "That is float32. Float16 has 2 bytes."),
        (20000, "That would be 20 TB: a thousand times too much. 1 GB is 10⁹ bytes."),
        (10, "That is one byte per number. Float16 has 2."),
        (2e10, "Those are bytes. A GB is 10⁹ of them."),
        (18.63, "Those are GiB, of 2³⁰ bytes. A GB is 10⁹ bytes."),
    ),
)


def _draw(rng, size):
    N, d, itemsize = whole(rng, size, 1000), whole(rng, size, 256), int(rng.choice([1, 2, 4, 8]))
    return N, d, itemsize, bool(rng.integers(2)), bool(rng.integers(2))


bytes_moved = Exercise(
    reference=bytes_of_one_head,
    edges=(
        Case("one query, one key, one dimension", (1, 1, 2, False, False)),
        Case("matrices of N × N beside those of N × d", (8, 2, 2, False, False)),
        Case("a mask", (8, 2, 2, True, False)),
        Case("dropout", (8, 2, 2, False, True)),
        Case("dropout on float32, its own mask still one byte per weight", (8, 2, 4, False, True)),
    ),
    draw=_draw,
    mistakes=(
        Mistake("left out the loads of the matrices of N × N.", "S and P are stored and loaded: 4 passes.",
                "4 + 2 * mask", "2 + 2 * mask"),
        Mistake("counted 5 passes over N × N.", "S and P are stored once and loaded once each: 4 passes.",
                "4 + 2 * mask", "5 + 2 * mask"),
        Mistake("counted half of the scores for a mask.",
                "All are moved, as −∞ takes as many bytes as a number, and the mask's kernel adds 2 passes.",
                "4 + 2 * mask", "4 / (1 + mask)"),
        Mistake("left the dropout mask Z out.", "It is stored: one byte per weight.", " + dropout * N * N", ""),
        Mistake("counted itemsize bytes for each weight of the dropout mask.", "It has one byte per weight.",
                " + dropout * N * N", " + itemsize * dropout * N * N"),
        Mistake("counted the dropout mask alone.", "Its kernel also loads P and stores the dropped P.",
                " + 2 * dropout", ""),
    ),
    level=1,
    minutes=8,
    hints=(
        "Count the passes over N x N numbers, the passes over N x d numbers, and the passes over N x N single bytes.",
        "Without mask and dropout: 4 and 4 and 0. A mask adds 2 passes over N x N. Dropout adds 2, and N x N bytes.",
        "itemsize * (square * N * N + 4 * N * d) + dropout * N * N, with square = 4 + 2 * mask + 2 * dropout.",
    ),
)  # fmt: skip
