"""The exercises on the next machine: cycles, 2^x without its unit, a late maximum, an order without waiting."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import sweep
from flashlab.reference import next_machine as reference
from flashlab.reference import online_softmax


def cycles_of_a_block(Br, Bc, d):
    """Return the cycles of products, of reading shared memory, and of exponentials, of one SM of a B200."""
    products = 2 * 2 * Br * Bc * d / 8192
    elements = Br * d + Br // 128 * 2 * Bc * d  # Q once; K and V for each 128 rows
    return products, 2 * elements / 128, Br * Bc / 16


cycles = Exercise(
    reference=cycles_of_a_block,
    cases=lambda: [
        Case("128 queries, 128 keys, d = 128", (128, 128, 128)),
        Case("256 queries: K and V are read twice", (256, 128, 128)),
        Case("a head of 64", (128, 128, 64)),
        Case("fewer keys", (128, 64, 128)),
        Case("more keys, many queries, an odd head", (512, 192, 80)),
    ],
    minutes=8,
    hints=(
        "How many FLOPs have the two products? Which tiles are read from shared memory? How many exponentials are "
        "there?",
        "4 Br Bc d FLOPs. Of S = QKᵀ both sides are read from shared memory, of PV only V. Each 128 rows of queries "
        "read K and V once more.",
        "4 * Br * Bc * d / 8192, 2 * (Br * d + Br // 128 * 2 * Bc * d) / 128, Br * Bc / 16",
    ),
    mistakes=(
        Mistake("half of the FLOPs are missing: QKᵀ and PV have 2 Br Bc d each (an addition and a multiplication are "
                "two).", "2 * 2 * Br * Bc * d", "2 * Br * Bc * d"),
        Mistake("K and V were read once: each 128 rows of queries read them again.",
                "Br // 128 * 2 * Bc * d", "2 * Bc * d"),
        Mistake("P is in tensor memory, so it is not read from shared memory.",
                "2 * Bc * d  # Q once; K and V for each 128 rows", "2 * Bc * d + Br * Bc"),
        Mistake("V was forgotten: K and V are read.", "Br // 128 * 2 * Bc * d", "Br // 128 * Bc * d"),
        Mistake("elements were counted: an element has 2 bytes.", "2 * elements / 128", "elements / 128"),
        Mistake("that is Hopper: a B200 does 8192 FLOPs per cycle.", "8192", "4096"),
        Mistake("d does not enter: an entry of S takes one exponential.", "Br * Bc / 16", "Br * Bc * d / 16"),
        Mistake("each of the Br Bc scores takes an exponential, not each row.", "Br * Bc / 16", "Br / 16"),
    ),
)  # fmt: skip

busy = Question(
    answer=0.5,
    because="256 queries, 128 keys, d = 64: products take 1,024 cycles, exponentials 2,048. Whatever the schedule, the "
    "tensor core waits for half of the time.",
    hints=(
        "Which of the three numbers changes with d?",
        "At d = 64, products take half of what they take at 128; exponentials the same.",
        "1024 / 2048",
    ),
    wrong=(
        (1, "That would be so if nothing else took longer. Exponentials do."),
        (0.25, "Products depend on d once, not twice."),
        (2, "A share is at most 1. You have it upside down."),
    ),
    minutes=2,
)


def exp2_by_polynomial(x, coefficients):
    """Return 2^x, float32 like x, with a polynomial for the fraction of x and the exponent's bits for the rest."""
    x = np.maximum(x, np.float32(-127))
    n = np.floor(x)
    f = x - n
    p = np.full_like(f, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = reference.multiply_add(p, f, c)
    return (p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)


def _exact_exp2(x, coefficients):
    n = np.floor(np.maximum(x, -127))
    f = np.maximum(x, -127) - n
    return np.polynomial.polynomial.polyval(f, coefficients) * 2.0**n * (x >= -126)


def _exp2_cases():
    straight, bent, cubic, best = np.float32([1, 1]), np.float32([1, 0.66, 0.33]), *map(reference.minimax, (3, 5))
    draw = np.random.default_rng(0)
    return [
        Case("2^0 is 1, exactly", (np.float32([0]), straight)),
        Case("a fraction, by the straight line 1 + x", (np.float32([0.25, 0.5]), straight)),
        Case("whole numbers", (np.float32([1, 3, -1, -20, -126]), straight)),
        Case("a small number: 2^−20.5", (np.float32([-20.5]), cubic)),
        Case("a negative number: −0.25 = −1 + 0.75", (np.float32([-0.25]), straight)),
        Case("negative numbers, a polynomial of degree 2", (np.float32([-0.1, -1.9, -7.5]), bent)),
        Case("scores below a maximum, degree 3", (-draw.exponential(6, 50).astype(np.float32), cubic)),
        Case("rows and columns", (-draw.exponential(6, (4, 5)).astype(np.float32), cubic)),
        Case("degree 5", (draw.uniform(-30, 10, 50).astype(np.float32), best)),
        Case("numbers just below 0", (np.float32([-1e-3, -1e-6, -1e-9]), best)),
        Case("numbers so low that 2^x is 0 for float32", (np.float32([-1, -200, -1000, -1e6]), cubic)),
        Case("a masked score: −∞", (np.float32([-np.inf, -1]), cubic)),
    ]  # fmt: skip


exp2 = Exercise(
    reference=exp2_by_polynomial,
    exact=_exact_exp2,
    cases=_exp2_cases,
    sways=True,
    level=2,
    minutes=20,
    hints=(
        "Write x as n + f, n whole, f from 0 to 1. Which of the two goes into the polynomial? What does 2^n do to a "
        "float?",
        "n = floor(x), also for negative x. Evaluate from the highest coefficient: p = p · f + c. Then add n to the "
        "exponent: its lowest bit is bit 23. Before all that: x below −127 becomes −127.",
        "x = np.maximum(x, -127); n = np.floor(x); f = x - n; p by Horner; "
        "(p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)",
    ),
    mistakes=(
        Mistake("the polynomial was not rescaled: add n to the bits of its exponent.",
                " + (n.astype(np.int32) << 23)", ""),
        Mistake("n was rounded towards 0: for negative x that leaves a negative fraction. Take the floor.",
                "np.floor(x)", "np.trunc(x)"),
        Mistake("n was rounded to the nearest: that leaves fractions below 0. Take the floor.",
                "np.floor(x)", "np.round(x)"),
        Mistake("n was added one bit too high: the exponent's lowest bit is bit 23.", "<< 23", "<< 24"),
        Mistake("n was added one bit too low, into the digits: the exponent's lowest bit is bit 23.", "<< 23", "<< 22"),
        Mistake("the coefficients were taken in the wrong order: the lowest comes first in the array.",
                "p = np.full_like(f, coefficients[-1])\n    for c in coefficients[-2::-1]:",
                "p = np.full_like(f, coefficients[0])\n    for c in coefficients[1:]:"),
        Mistake("the lowest coefficient is missing: the last step adds it.",
                "coefficients[-2::-1]", "coefficients[-2:0:-1]"),
        Mistake("the highest coefficient is missing: begin with it.",
                "np.full_like(f, coefficients[-1])", "np.full_like(f, 0 * coefficients[-1])"),
        Mistake("the whole x went into the polynomial: only its fraction f may.", "f = x - n", "f = x"),
        Mistake("low x overflowed the exponent's bits: raise x to −127 first.", "np.maximum(x, np.float32(-127))", "x"),
        Mistake("that is 2^x itself: write it with the polynomial.",
                "return (p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)", "return np.exp2(x)"),
        Mistake("x is in units of log2 already: 2^x, not e^x.",
                "x = np.maximum(x, np.float32(-127))", "x = np.maximum(x * np.float32(1.442695), np.float32(-127))"),
    ),
)  # fmt: skip

share = Question(
    answer=2 / 9,
    because="Then both take 796 of the 1,024 cycles. Where exponentials are the limit, that is 1.29 times as fast.",
    hints=(
        "If a share s is polynomials, how many cycles does each of the two units take?",
        "The exponential unit 1024 (1 − s), the ordinary units 512 + 1280 s.",
        "1024 - 512 = (1280 + 1024) s",
    ),
    wrong=(
        (0.4, "The exponential unit gets less to do as well: 1024 (1 − s)."),
        (0.5, "Half would be right if the ordinary units were idle and as fast."),
        (4 / 9, "The ordinary units have 512 cycles of other work already."),
    ),
    rel=0.02,
    minutes=4,
)


def _state(m, l, O):
    return online_softmax.State(*(np.array(part, np.float32) for part in (m, l, O)))


def _lazy_cases():
    seen, column = _state([0.0], [1.0], [[2.0]]), [[3.0]]
    cases = [
        ("a first block", online_softmax.identity(1, 1), [[0.0, 1.0]], [[1.0], [2.0]], 8.0),
        ("a maximum that rises by 5, 7.2 in units of log2", seen, [[5.0]], column, 8.0),
        ("a maximum that rises by 6, 8.7 in units of log2", seen, [[6.0]], column, 8.0),
        ("a maximum that rises by 100", seen, [[100.0]], column, 8.0),
        ("a maximum that rises by 5, with a threshold of 0", seen, [[5.0]], column, 0.0),
        ("two keys above the old maximum", seen, [[2.0, 4.0]], [[1.0], [5.0]], 8.0),
        ("a block of lower scores", seen, [[-3.0]], column, 8.0),
        ("a block that is masked out altogether", seen, [[-np.inf]], column, 8.0),
        ("a first block that is masked out altogether", online_softmax.identity(1, 1), [[-np.inf]], column, 8.0),
        ("two rows, of which one rises enough", _state([0, 0], [1, 1], [[2], [2]]), [[1.0], [9.0]], column, 8.0),
    ]
    small = [
        Case(name, (state, np.array(S, np.float32), np.array(V, np.float32), threshold))
        for name, state, S, V, threshold in cases
    ]
    return [*small, *sweep(_lazy_args)]


def _lazy_args(draw, Br, Bc, dv):
    S, V = draw.scores(Br, 2 * Bc), draw.normal(2 * Bc, dv)  # a block has come before; regimes mask halves
    state = reference.lazy_update(online_softmax.identity(Br, dv, draw.dtype), S[:, :Bc], V[:Bc])
    return state, S[:, Bc:], V[Bc:], 8.0


lazy = Exercise(
    reference=reference.lazy_update,
    cases=_lazy_cases,
    level=2,
    minutes=12,
    hints=(
        "Take the six lines of `online_softmax.update`. Which one decides what m is? Everything after it may stay.",
        "One line more, after the maximum: where it would not rise by more than the threshold, keep m_i. The scores "
        "are natural, the threshold is in units of log2: times ln 2.",
        "m_new = np.where(m_new > m_i + threshold * np.log(2), m_new, m_i)",
    ),
    mistakes=(
        Mistake("the threshold was taken as natural: it is in units of log2, so it is threshold · ln 2 in scores.",
                "threshold * LN_2", "threshold"),
        Mistake("the threshold was converted the wrong way: log2 units times ln 2 are natural ones.",
                "threshold * LN_2", "threshold / LN_2"),
        Mistake("m was raised always: keep it where it rises by no more than the threshold.",
                "np.where(m_new > m_i + threshold * LN_2, m_new, m_i)", "m_new"),
        Mistake("m was never raised: with scores far above it, weights overflow.",
                "m_new > m_i + threshold * LN_2", "m_i == -np.inf"),
        Mistake("a row raised all rows: each row decides for itself.",
                "m_new > m_i + threshold * LN_2", "(m_new > m_i + threshold * LN_2).any()"),
        Mistake("the threshold is an argument, not always 8.", "threshold * LN_2", "8 * LN_2"),
        Mistake("the two cases are exchanged: raise where it rises by more.",
                "threshold * LN_2, m_new, m_i)", "threshold * LN_2, m_i, m_new)"),
        Mistake("the old m was kept for O only: l needs the same weights.",
                "P_ij.sum(-1)", "np.exp(S_ij - np.maximum(m_safe, S_ij.max(-1))[:, None]).sum(-1)"),
        Mistake("the old m was kept for l only: O needs the same weights.",
                "P_ij @ V_j", "np.exp(S_ij - np.maximum(m_safe, S_ij.max(-1))[:, None]) @ V_j"),
        Mistake("where a row has met no key, −∞ − (−∞) is NaN: keep the guard, m_safe.",
                "np.where(m_new == -np.inf, 0, m_new)", "m_new"),
        Mistake("l was not rescaled where m rose.", "alpha * l_i", "l_i"),
        Mistake("O was not rescaled where m rose.", "alpha[:, None] * O_i", "O_i"),
    ),
)  # fmt: skip

largest_weight = Question(
    answer=256,
    because="2^8. In bfloat16 it has as many digits as 1, and the sum of 2^20 of them is far from float32's end.",
    hints=(
        "By how much may a score be above m, in units of log2?",
        "By 8. The weight is 2 to that power.",
        "2**8",
    ),
    wrong=(
        (1, "That is so if m is the true maximum. It may be too low by the threshold."),
        (8, "That is the threshold: the exponent of 2."),
        (2980.96, "That is e^8: the threshold is in units of log2."),
    ),
    minutes=1,
)

columns = Question(
    answer=128,
    because="2 (128 + d) columns ≤ 512. At d = 128 it is full: P has no room of its own, so it overwrites S.",
    hints=(
        "How many columns of 128 numbers of 4 bytes has tensor memory?",
        "256 · 1024 / (128 · 4) = 512. Each tile of queries needs 128 columns for S, and d for O.",
        "2 * (128 + d) = 512",
    ),
    wrong=(
        (256, "Two tiles of queries are under way, each with an S and an O."),
        (384, "That is one tile. Two are under way."),
        (192, "P overwrites S, so it takes no room, but S has 128 columns of 4 bytes for each of two tiles."),
        (64, "There is more room: 512 columns."),
    ),
    minutes=3,
)


def visiting_order(program, T, causal):
    """Return the tiles of queries that a program visits, in order: its own first, then up, past the end from 0 on."""
    return (program + np.arange(T - program if causal else T)) % T


order = Exercise(
    reference=visiting_order,
    cases=lambda: [
        Case("the first program, no mask", (0, 4, False)),
        Case("another program: past the last tile comes tile 0", (2, 4, False)),
        Case("the first program, causal: all tiles see its keys", (0, 4, True)),
        Case("another program, causal: earlier tiles do not see its keys", (2, 4, True)),
        Case("the last program, causal", (3, 4, True)),
        Case("one tile", (0, 1, True)),
        Case("many tiles", (5, 12, False)),
        Case("many tiles, causal", (5, 12, True)),
    ],
    minutes=6,
    hints=(
        "Write down, for four programs, which tile each has in step 0, 1, 2. No column may hold a tile twice.",
        "In step s, program j has tile j + s, modulo T. Causal: stop at the last tile.",
        "return (program + np.arange(T - program if causal else T)) % T",
    ),
    mistakes=(
        Mistake("all programs begin at the first tile, so all want to add to the same dQ: begin at your own.",
                "(program + np.arange(T - program if causal else T)) % T", "np.arange(program if causal else 0, T)"),
        Mistake("the tile past the last one is tile 0: modulo T.",
                "(program + np.arange(T - program if causal else T)) % T",
                "program + np.arange(T - program if causal else T)"),
        Mistake("a causal mask hides keys from earlier tiles: stop at the last tile.",
                "T - program if causal else T", "T"),
        Mistake("causal: the tiles that see a program's keys are those that its keys precede, up from its own.",
                "(program + np.arange(T - program if causal else T)) % T",
                "np.arange(program + 1) if causal else (program + np.arange(T)) % T"),
        Mistake("the order goes down: from its own tile it goes up.", "(program + np.arange", "(program - np.arange"),
        Mistake("the program's own tile is its first.", "(program + np.arange", "(program + 1 + np.arange"),
    ),
)  # fmt: skip

pair = Question(
    answer=17,
    because="Tile i meets i + 1 blocks of keys, tile 15 − i meets 16 − i: together 17, whatever i is.",
    hints=(
        "How many blocks of keys does tile i meet under a causal mask?",
        "i + 1, counting the one on the diagonal.",
        "(i + 1) + (15 - i + 1)",
    ),
    wrong=(
        (16, "Count the blocks on the diagonal of both tiles."),
        (15, "That is the sum of their numbers. A tile meets one block more than its number."),
        (8.5, "That is the average tile. A program has two."),
    ),
    minutes=2,
)
