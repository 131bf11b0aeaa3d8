"""The exercises on standard_attention."""

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake


def moved(N, d, itemsize, mask, dropout):
    """Return the bytes that the forward pass of one head moves: the dropout mask has one byte per element."""
    square = 4 + 2 * mask + 2 * dropout  # S and P out and back; the masked S; the dropped P
    thin = 4  # Q, K, V in, O out
    return itemsize * (square * N * N + thin * N * d) + dropout * N * N


def _moved_cases():
    def case(name, N, d, itemsize, mask=False, dropout=False):
        return Case(name, (N, d, itemsize, mask, dropout))

    return [
        case("one query, one key, one dimension", 1, 1, 1),
        case("numbers of two bytes", 1, 1, 2),
        case("matrices of N x N beside those of N x d", 8, 2, 2),
        case("a mask", 8, 2, 2, mask=True),
        case("dropout", 8, 2, 2, dropout=True),
        case("mask and dropout", 8, 2, 2, mask=True, dropout=True),
        case("dropout on float32, its own mask still one byte per element", 8, 2, 4, dropout=True),
        case("one head of the paper's configuration", 1024, 64, 2, mask=True, dropout=True),
        *(
            case(f"N = {N}, d = {d}, {itemsize} bytes, mask {mask}, dropout {dropout}", N, d, itemsize, mask, dropout)
            for N, d in ((1, 64), (77, 3), (300, 40))
            for itemsize in (2, 4)
            for mask in (False, True)
            for dropout in (False, True)
        ),
    ]


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
    because="100,000² = 10¹⁰ numbers of 2 bytes are 20 GB for one head. A terabyte takes 50 heads.",
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

bytes_moved = Exercise(
    reference=moved,
    cases=_moved_cases,
    level=1,
    minutes=8,
    hints=(
        "Count the passes over N x N numbers, the passes over N x d numbers, and the passes over N x N single bytes.",
        "Without mask and dropout: 4 and 4 and 0. A mask adds 2 passes over N x N. Dropout adds 2, and N x N bytes.",
        "itemsize * (square * N * N + 4 * N * d) + dropout * N * N, with square = 4 + 2 * mask + 2 * dropout.",
    ),
    mistakes=(
        Mistake("the matrices of N x N are stored, but their loads are missing.", "4 + 2 * mask", "2 + 2 * mask"),
        Mistake("a matrix of N x N was read once too often: 2 writes and 2 reads.", "4 + 2 * mask", "5 + 2 * mask"),
        Mistake("the thin matrices Q, K, V and O are missing.", "thin = 4", "thin = 0"),
        Mistake("O is missing: it is stored.", "thin = 4", "thin = 3"),
        Mistake("the mask kernel loads S and stores the masked S: 2 passes.", "2 * mask", "1 * mask"),
        Mistake("the mask moves nothing here, but it should: it loads S and stores another matrix.", " + 2 * mask", ""),
        Mistake("dropout loads P and stores the dropped P: 2 passes, and its mask.", "2 * dropout", "1 * dropout"),
        Mistake("the dropout mask Z is missing: one byte per element is stored.", " + dropout * N * N", ""),
        Mistake(
            "the dropout mask has one byte per element, whatever the itemsize.",
            " + dropout * N * N",
            " + itemsize * dropout * N * N",
        ),
        Mistake("these are numbers, not bytes: each has itemsize bytes.", "itemsize * (", "1 * ("),
        Mistake("a number has itemsize bytes, and not always 2.", "itemsize * (", "2 * ("),
        Mistake(
            "a mask forbids half of the scores, but moves all of them: −∞ takes as many bytes as any number.",
            "4 + 2 * mask",
            "4 / (1 + mask)",
        ),
        Mistake(
            "the mask kernel stores no bytes of its own beside the masked S; only dropout does.",
            "dropout * N * N",
            "(dropout + mask) * N * N",
        ),
        Mistake(
            "dropout is a kernel, too: it loads P and stores the dropped P, beside its mask.", " + 2 * dropout", ""
        ),
        Mistake(
            "half a pass for the dropout mask is right in float16 only: it has one byte, whatever the itemsize.",
            " + dropout * N * N",
            " + itemsize / 2 * dropout * N * N",
        ),
        Mistake(
            "the forward pass stores the dropout mask and does not read it: that is left to the backward pass.",
            " + dropout * N * N",
            " + 2 * dropout * N * N",
        ),
    ),
)
