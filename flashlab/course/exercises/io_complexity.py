"""The exercises on io_complexity."""

from flashlab.course.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import io_complexity

doubling = Question(
    answer=4,
    because="Twice the tiles of keys, and each of them meets twice the queries.",
    hints=(
        "Q is read once for each tile of keys. How many of those are there, and how long is Q?",
        "Twice as many tiles of keys, each of which reads a Q of twice the length.",
        "2 × 2.",
    ),
    wrong=(
        (2, "That would be linear. Memory grows so; the traffic does not: each tile of keys reads all of Q again."),
        (1, "The tile's size does not depend on N, but the number of tiles does."),
        (8, "Arithmetic does not grow so fast either: twice the queries meet twice the keys."),
    ),
    rel=0.05,
)

elements = Exercise(
    reference=io_complexity.predicted,
    cases=lambda: [
        Case("all keys in one tile", (64, 16, 4096)),
        Case("two tiles of keys", (64, 16, 2048)),
        Case("keys that the tiles do not divide", (100, 16, 2048)),
        Case("a tile whose size is rounded up", (100, 8, 300)),
        Case("a small memory", (1024, 64, 4096)),
        Case("GPT-2 medium's head in 51,200 elements", (1024, 64, 51200)),
    ],
    level=2,
    minutes=8,
    hints=(
        "Bc = ceil(M / 4d) keys a tile, so Tc = ceil(N / Bc) tiles. Which tensors move once, and which Tc times?",
        "K and V move once. Q is read Tc times, O is written Tc times, and read once less.",
        "N d (1 + 1 + Tc + Tc + Tc - 1).",
    ),
    mistakes=(
        Mistake(
            "O was read before it had been written: the first tile of keys finds nothing to read.",
            "3 * Tc + 1",
            "3 * Tc + 2",
        ),
        Mistake(
            "O was forgotten on its way: it is written for every tile of keys and read back for all but one.",
            "3 * Tc + 1",
            "Tc + 3",
        ),
        Mistake(
            "that is the law for large N; the exact count has whole tiles, and K and V as well.",
            "return N * d * (3 * Tc + 1)",
            "return 12 * N * N * d * d / M",
        ),
        Mistake("K and V are missing: each is read once.", "3 * Tc + 1", "3 * Tc - 1"),
        Mistake("Q was read once: it is read past every tile of keys.", "3 * Tc + 1", "2 * Tc + 2"),
        Mistake("K and V were read again for every tile: they are outside, and read once.", "3 * Tc + 1", "5 * Tc - 1"),
        Mistake("the last tile of keys was dropped: round the number of tiles up.", "-(-N // Bc)", "N // Bc"),
        Mistake("a tile that is not full is a tile: round their number up.", "-(-N // Bc)", "N / Bc"),
        Mistake("Bc was rounded down: ⌈ ⌉ is up.", "_, Bc = block_size.formula(M, d)", "Bc = M // (4 * d)"),
        Mistake(
            "that is the share of one tile of keys: M is divided by 4 d, not by d.",
            "_, Bc = block_size.formula(M, d)",
            "Bc = -(-M // d)",
        ),
        Mistake("that is the number of tensors, not of elements: each has N d of them.", "N * d * (", "("),
        Mistake("that is bytes: count elements.", "N * d * (", "2 * N * d * ("),
        Mistake("that is bytes: count elements.", "N * d * (", "4 * N * d * ("),
    ),
)

crossing = Question(
    answer=128,
    because="12 N² d² / M = 4 N² gives d² = M / 3, and the square root of 16,384 is 128.",
    hints=(
        "Standard attention moves 4 N² elements, the fused one 3 Tc N d. Both up to what grows more slowly.",
        "Tc = N / Bc with Bc = M / 4d makes 12 N² d² / M. Set it equal to 4 N².",
        "d² = M / 3 with M = 49,152.",
    ),
    wrong=(
        (221.7, "That is d² = M, which the orders alone would say. The constants are 12 and 4."),
        (222, "That is d² = M, which the orders alone would say. The constants are 12 and 4."),
        (64, "There the fused way still moves four times fewer."),
        (256, "There standard attention has long been moving less."),
        (16384, "That is d²."),
    ),
    rel=0.04,
)

longest = Question(
    answer=2,
    because="Memory is linear in N; twice the memory holds twice the tokens.",
    hints=(
        "What does the fused way keep for each token?",
        "Rows of Q, K, V, O and their gradients: a fixed number of bytes a token.",
        "A fixed number of bytes a token: twice the bytes, twice the tokens.",
    ),
    wrong=(
        (1.414, "That is the square root of 2, as for the standard way, whose memory grows with N²."),
        (4, "Time grows so. Memory is linear, so tokens are in proportion to bytes."),
    ),
)
