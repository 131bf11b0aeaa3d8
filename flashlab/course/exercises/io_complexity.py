"""The exercises on io_complexity."""

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import io_complexity

doubling = Question(
    answer=4,
    because="Rows are twice as long, and half as many keys fit: Q and O, twice as large, pass by twice as many tiles.",
    hints=(
        "A tile of keys is M / 4d rows. How many tiles of keys are there with twice the d?",
        "Twice as many, and each of them has all of Q and O pass by, whose rows are twice as long.",
        "2 × 2",
    ),
    wrong=(
        (2, "Each row is twice as long, true. But how many rows fit into the same memory?"),
        (1, "That is nearly standard attention: its N × N matrices have no d. Here rows of d numbers travel."),
        (8, "Twice the tiles of keys, times twice the length of a row. There is no third factor."),
    ),
    rel=0.05,
)


def _draw(rng, size):
    return whole(rng, size, 10**4), whole(rng, size, 256), whole(rng, size, 10**6)


elements = Exercise(
    reference=io_complexity.predicted,
    edges=(
        Case("all keys in one tile", (64, 16, 4096)),
        Case("two tiles of keys", (64, 16, 2048)),
        Case("keys that the tiles do not divide", (100, 16, 2048)),
        Case("a tile whose size is rounded up", (100, 8, 300)),
        Case("a head of GPT-2 medium, with room for 5,000 elements", (1024, 64, 5000)),
    ),
    draw=_draw,
    mistakes=(
        Mistake("read O before it was written.", "For the first tile of keys there is no O to read.",
                "3 * Tc + 1", "3 * Tc + 2"),
        Mistake("moved O once.", "It is written for every tile of keys, and read for all but the first.",
                "3 * Tc + 1", "Tc + 3"),
        Mistake("read Q once, or never read O.", "Q is read for every tile of keys, O for all but the first.",
                "3 * Tc + 1", "2 * Tc + 2"),
        Mistake("dropped the last tile of keys, which is not full.", "Round the number of tiles up.",
                "-(-N // Bc)", "N // Bc"),
        Mistake("rounded Bc down.", "⌈ ⌉ rounds up.", "_, Bc = block_size.formula(M, d)", "Bc = M // (4 * d)"),
        Mistake("returned the law for large N.", "The exact count has whole tiles, and K and V as well.",
                "return N * d * (3 * Tc + 1)", "return 12 * N * N * d * d / M"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Bc = ceil(M / 4d) keys per tile, so Tc = ceil(N / Bc) tiles. Which tensors move once, and which Tc times?",
        "K and V move once. Q is read Tc times, O is written Tc times, and read once less.",
        "N d (1 + 1 + Tc + Tc + Tc - 1).",
    ),
)  # fmt: skip

crossing = Question(
    answer=128,
    because="12 N² d² / M = 4 N² gives d² = M / 3, and the square root of 16,384 is 128.",
    hints=(
        "Standard attention moves 4 N² elements, the fused one 3 Tc N d. Both leave out terms that grow more slowly.",
        "Tc = N / Bc with Bc = M / 4d makes 12 N² d² / M. Set it equal to 4 N².",
        "d² = M / 3 with M = 49,152.",
    ),
    wrong=(
        (221.7, "That is d² = M, which the exponents alone would say. The constants are 12 and 4."),
        (222, "That is d² = M, which the exponents alone would say. The constants are 12 and 4."),
        (64, "There the fused way still moves a quarter as many."),
        (256, "There standard attention has long been moving less."),
        (16384, "That is d²."),
    ),
    rel=0.04,
    minutes=4,
)

longest = Question(
    answer=2,
    because="Memory is linear in N; twice the memory holds twice the tokens.",
    hints=(
        "What does the fused way keep for each token?",
        "Rows of Q, K, V, O and their gradients: a fixed number of bytes per token.",
        "A fixed number of bytes per token: twice the bytes, twice the tokens.",
    ),
    wrong=(
        (1.414, "That is the square root of 2, as for the standard way, whose memory grows with N²."),
        (4, "Time grows so. Memory is linear, so tokens are in proportion to bytes."),
    ),
)

quiz_tiles = Question(
    answer=36,
    because="Eight tiles on the diagonal, and the 28 below it.",
    hints=(
        "1,024 / 128 = 8 tiles each way. Which of the 64 are above the diagonal?",
        "Row i of tiles, counted from 0, has i + 1 tiles up to the diagonal.",
        "1 + 2 + ... + 8",
    ),
    wrong=(
        (64, "Those are all tiles. The ones above the diagonal are skipped."),
        (28, "Those are below the diagonal. The eight that it crosses are visited too, and masked."),
        (32, "Almost half are skipped, but the eight on the diagonal are visited whole."),
    ),
)

quiz_passes = Question(
    answer=31,
    because="K and V once: 2. Q ten times: 10. O written ten times and read nine times: 19.",
    hints=(
        "Which tensors stay, and which come round for every tile of keys?",
        "K and V cross once. Q is read 10 times. And O?",
        "2 + 10 + 10 + 9",
    ),
    wrong=(
        (22, "That is queries outside: Q and O once, K and V ten times."),
        (32, "In the first pass there is no O to read yet."),
        (13, "You moved O once. It is written for every tile of keys, and read back for all but the first."),
    ),
)

quiz_stages = Question(
    answer=112,
    unit="KiB",
    because="A tile of 128 × 64 numbers in float16 is 16 KiB: one of Q, three of K, three of V.",
    hints=(
        "How many KiB has one tile of 128 rows, d = 64, in float16?",
        "16 KiB. Q has one place; K and V have one per stage.",
        "16 + 3 · (16 + 16)",
    ),
    wrong=(
        (96, "Those are K and V. Q is there as well."),
        (48, "That is one stage."),
        (80, "That is two stages."),
        (144, "Q has one place only: it stays."),
    ),
)

quiz_rebuilt = Question(
    answer=0.25,
    because="e^(2 − 2 − ln 4) = 1/4.",
    hints=("The second time around, softmax is one exponential.", "e^(S − lse)", "e^(−ln 4)"),
    wrong=((4, "The sign: it is e^(S − lse), and a weight is at most 1."),),
)

quiz_gradient = Question(
    answer=-0.5,
    because="delta = 0.5 · 1 + 0.5 · 3 = 2, and 0.5 · (1 − 2) = −0.5.",
    hints=(
        "dS = P ∘ (dP − delta), with delta the sum of P ∘ dP over the row.",
        "delta = 0.5 · 1 + 0.5 · 3 = 2",
        "0.5 · (1 − 2)",
    ),
    wrong=(
        (0.5, "The sign: dP − delta, not delta − dP. (0.5 is dS of the second key.)"),
        (-1, "That is dP − delta. It is multiplied by P."),
    ),
)

quiz_law = Question(
    answer=1,
    because="d² / M: 4 / 4.",
    hints=("The traffic grows as N² d² / M.", "Twice the d makes it four times as much.", "4 / 4"),
    wrong=(
        (0.5, "d counts twice: rows are longer, and fewer of them fit."),
        (4, "That is the head dimension alone. Four times the memory holds four times the keys."),
        (0.25, "That is the memory alone."),
        (2, "d counts squared, and M divides once: 4 / 4."),
    ),
)

quiz_linear = Question(
    answer="memory",
    because="It holds rows only, and no squares. All pairs of tokens are still computed, and their tiles still travel.",
    hints=(
        "Which of them was linear in the last cell before this quiz?",
        "At twice the length there are four times as many tiles to compute.",
        "It is what must be held at once.",
    ),
    wrong=(
        ("traffic", "N² d² / M is smaller than 4 N², but quadratic as well."),
        ("time", "Every query still meets every key: 4 N² d FLOPs."),
    ),
)
