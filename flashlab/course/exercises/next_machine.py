"""The exercises on the next machine: cycles, 2^x by a polynomial, a maximum raised late, an order without waiting."""

import numpy as np

from flashlab.course.exercises.online_softmax.one_block import draw_block
from flashlab.course.exercises.online_softmax.states import state_of
from flashlab.grading import draws
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake, Question
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import next_machine as reference
from flashlab.reference import online_softmax

__all__ = [
    "cycles",
    "busy",
    "columns",
    "exp2",
    "share",
    "lazy",
    "largest_weight",
    "order",
    "pair",
]  # in the lesson's order

inf = np.inf


def cycles_of_a_block(Br, Bc, d):
    """Return the cycles of products, of reading shared memory, and of exponentials, of one SM of a B200."""
    products = 2 * 2 * Br * Bc * d / 8192
    elements = Br * d + Br // 128 * 2 * Bc * d  # Q once; K and V for each 128 rows
    return products, 2 * elements / 128, Br * Bc / 16


def _draw_sizes(rng, size):
    return 128 * int(rng.integers(1, size + 1)), draws.whole(rng, size, 1000), draws.whole(rng, size, 300)


cycles = Exercise(
    reference=cycles_of_a_block,
    edges=(
        Case("128 queries, 128 keys, d = 128", (128, 128, 128)),
        Case("256 queries: K and V are read twice", (256, 128, 128)),
        Case("a head of 64", (128, 128, 64)),
        Case("fewer keys", (128, 64, 128)),
        Case("more keys, many queries, an odd head", (512, 192, 81)),
    ),
    draw=_draw_sizes,
    minutes=8,
    hints=(
        "How many FLOPs have the two products? Which tiles are read from shared memory? How many exponentials are "
        "there?",
        "4 Br Bc d FLOPs. Of S = QKᵀ both sides are read from shared memory, of PV only V. Each 128 rows of queries "
        "read K and V once.",
        "4 * Br * Bc * d / 8192, 2 * (Br * d + Br // 128 * 2 * Bc * d) / 128, Br * Bc / 16",
    ),
    mistakes=(
        Mistake("counted half of the FLOPs.",
                "QKᵀ and PV have 2 Br Bc d each: an addition and a multiplication are two.",
                "2 * 2 * Br * Bc * d", "2 * Br * Bc * d"),
        Mistake("read K and V once.", "Each 128 rows of queries read them again.",
                "Br // 128 * 2 * Bc * d", "2 * Bc * d"),
        Mistake("read P from shared memory.", "It is in tensor memory.",
                "2 * Bc * d  # Q once; K and V for each 128 rows", "2 * Bc * d + Br * Bc"),
        Mistake("left K or V out.", "Both are read.", "Br // 128 * 2 * Bc * d", "Br // 128 * Bc * d"),
        Mistake("counted elements.", "An element has 2 bytes.", "2 * elements / 128", "elements / 128"),
        Mistake("multiplied the exponentials by d.", "An entry of S takes one exponential.",
                "Br * Bc / 16", "Br * Bc * d / 16"),
    ),
)  # fmt: skip

busy = Question(
    answer=0.5,
    because="256 queries, 128 keys, d = 64: products take 1,024 cycles, exponentials 2,048. Whatever the schedule, the "
    "tensor core waits for half of the time.",
    hints=(
        "Which of the three numbers change with d, and which does not?",
        "At d = 64, products take half of what they take at 128; exponentials the same.",
        "1024 / 2048",
    ),
    wrong=(
        (1, "That would be so if nothing else took longer. Exponentials do."),
        (0.25, "The cycles of products are proportional to d, not to d²."),
        (2, "A share is at most 1: exchange numerator and denominator."),
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


def _draw_exp2(rng, size):
    """Draw numbers near each other, since errors are measured against the largest, and a polynomial from 1 to 2."""
    shape = rng.integers(1, size + 1, rng.integers(3))
    x = rng.choice([0, 127, rng.uniform(-127, 127)]) - rng.choice([0.01, 1, 10]) * rng.exponential(size=shape)
    whole = np.ceil(x).astype(np.float32)
    x = rng.choice(3, p=[0.6, 0.2, 0.2], size=shape).choose([x, whole, np.nextafter(whole, np.float32(-inf))])
    x = np.where(rng.random(shape) < 0.1, rng.choice([-inf, -1e30, -1000, -130]), x)
    rising = rng.exponential(size=rng.integers(1, size + 1))
    coefficients = reference.minimax(int(rng.integers(1, 7))).copy()
    if rng.random() < 0.5:
        coefficients = np.float32([1, *(rising / rising.sum())])  # all after the first sum to 1
    return np.asarray(x, np.float32), coefficients


def _in_float32(exp2, x, coefficients):
    """Law: results are in float32."""
    dtype = np.asarray(exp2(x, coefficients)).dtype
    return None if dtype == np.float32 else f"the numbers are right, but they are in {dtype}: return float32, like x."


def _as_good_as_0(exp2):
    """Law: for x far below 0 the result is at most 2^-127."""
    found = np.asarray(exp2(np.float32([-1000, -inf]), STRAIGHT))
    if (found > 2.0**-127).any():
        return Broken("x = −1000 and x = −∞", "the result is larger than 2^-127: raise x to −127, no further.")


STRAIGHT, BENT = np.float32([1, 1]), np.float32([1, 0.66, 0.33])

exp2 = Exercise(
    reference=exp2_by_polynomial,
    exact=_exact_exp2,
    edges=(
        Case("2^0 is 1, exactly", (np.float32([0]), STRAIGHT)),
        Case("a fraction, by the straight line 1 + x", (np.float32([0.25, 0.5]), STRAIGHT)),
        Case("a negative number: −0.25 = −1 + 0.75", (np.float32([-0.25]), STRAIGHT)),
        Case("a polynomial of degree 2", (np.float32([0.5, -7.5]), BENT)),
        Case("numbers so low that 2^x is 0 for float32, beside −1", (np.float32([-1, -200, -1e6, -inf]), STRAIGHT)),
    ),
    draw=_draw_exp2,
    laws=(_in_float32,),
    once=(_as_good_as_0,),
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
        Mistake("did not rescale the polynomial.", "Add n to the bits of its exponent.",
                " + (n.astype(np.int32) << 23)", ""),
        Mistake("rounded n towards 0.", "For negative x that leaves a negative fraction: take the floor.",
                "np.floor(x)", "np.trunc(x)"),
        Mistake("took the coefficients in the wrong order.", "The lowest comes first in the array.",
                "p = np.full_like(f, coefficients[-1])\n    for c in coefficients[-2::-1]:",
                "p = np.full_like(f, coefficients[0])\n    for c in coefficients[1:]:"),
        Mistake("put the whole x into the polynomial.", "Only its fraction f goes there.", "f = x - n", "f = x"),
        Mistake("let low x overflow the exponent's bits.", "Raise x to −127 first.",
                "np.maximum(x, np.float32(-127))", "x"),
        Mistake("computed 2^x itself.", "Take the polynomial for 2^f.",
                "return (p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)", "return np.exp2(x)"),
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


def _draw_lazy(rng, size):
    """Draw a state, a block and a threshold. Some rises are near the threshold, none so near that rounding decides."""
    state, S_ij, V_j = draw_block(rng, size)
    threshold, top = float(rng.choice([0, 8, rng.uniform(0, 40)])), S_ij.max(1)  # [Br]
    below = top - threshold * reference.LN_2 * (1 + rng.choice([-3e-3, 3e-3, 0.1]))  # [Br]
    state = state._replace(m=np.where((np.abs(top) < 100) & (state.m > -inf), below, state.m).astype(np.float32))
    m = np.float64(state.m)  # [Br]
    with np.errstate(invalid="ignore"):  # -inf - (-inf)
        near = np.abs(top - m - threshold * reference.LN_2) < 1e-5 + 1e-6 * np.abs(m)
    return state._replace(m=np.where(near, top, state.m)), S_ij, V_j.astype(np.float32), threshold


SEEN, NOTHING, THREE = state_of([0], [1], [[2]]), online_softmax.identity(1, 1), np.float32([[3]])

lazy = Exercise(
    reference=reference.lazy_update,
    edges=(
        Case("a maximum that rises by 5, 7.2 in units of log2", (SEEN, np.float32([[5]]), THREE, 8.0)),
        Case("a maximum that rises by 10, 14.4 in units of log2, where 30 is the threshold",
             (SEEN, np.float32([[10]]), THREE, 30.0)),
        Case("maxima that rise by 6, 9 and 12, all by more than 8 in units of log2",
             (state_of([0] * 3, [1] * 3, [[2]] * 3), np.float32([[6], [9], [12]]), THREE, 8.0)),
        Case("a first block, of a score far below 0", (NOTHING, np.float32([[-2e9]]), THREE, 8.0)),
        Case("a first block that is masked out altogether", (NOTHING, np.float32([[-inf]]), THREE, 8.0)),
    ),
    draw=_draw_lazy,
    laws=(no_nan_replaced,),
    sways=True,
    level=2,
    minutes=12,
    hints=(
        "Take the six lines of `online_softmax.update`. Which one decides what m is? Everything after it may stay.",
        "One line more, after the maximum: where it would not rise by more than the threshold, keep m_i. The scores "
        "are natural, the threshold is in units of log2: times ln 2.",
        "m_new = np.where(m_new > m_i + threshold * np.log(2), m_new, m_i)",
    ),
    mistakes=(
        Mistake("compared scores with the threshold as it is.",
                "It is in units of log2: threshold · ln 2 in units of scores.", "threshold * LN_2", "threshold"),
        Mistake("divided the threshold by ln 2.", "Multiply: 1 in units of log2 is ln 2 in units of scores.",
                "threshold * LN_2", "threshold / LN_2"),
        Mistake("always raised m.", "Keep it where it rises by no more than the threshold.",
                "np.where(m_new > m_i + threshold * LN_2, m_new, m_i)", "m_new"),
        Mistake("raised all rows for one.", "Each row decides for itself.",
                "m_new > m_i + threshold * LN_2", "(m_new > m_i + threshold * LN_2).any()"),
        Mistake("took 8 for the threshold.", "It is an argument.", "threshold * LN_2", "8 * LN_2"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m is −∞, subtract 0 instead.",
                "np.where(m_new == -np.inf, 0, m_new)", "m_new"),
    ),
)  # fmt: skip

largest_weight = Question(
    answer=256,
    because="2^8. It is as precise in bfloat16 as 1, and a sum of 2^20 of them is far from float32's largest number.",
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
    because="2 (128 + d) columns ≤ 512. At d = 128 tensor memory is full: P overwrites S.",
    hints=(
        "How many columns of 128 numbers of 4 bytes has tensor memory?",
        "256 · 1024 / (128 · 4) = 512. Each tile of queries needs 128 columns for S, and d for O.",
        "2 * (128 + d) = 512",
    ),
    wrong=(
        (256, "Two tiles of queries are under way, each with an S and an O."),
        (384, "That is one tile. Two are under way."),
        (192, "P overwrites S, so it takes no room, but S has 128 columns of 4 bytes for each of two tiles."),
        (64, "P needs no columns of its own: it overwrites S."),
    ),
    minutes=3,
)


def visiting_order(program, T, causal):
    """Return the tiles of queries that a program visits, in order: from its own up and, without a mask, from 0 on."""
    return (program + np.arange(T - program if causal else T)) % T


def _draw_program(rng, size):
    T = draws.whole(rng, size, 200_000)
    return int(rng.integers(T)), T, bool(rng.random() < 0.5)


order = Exercise(
    reference=visiting_order,
    edges=(
        Case("the first program, no mask", (0, 4, False)),
        Case("another program: past the last tile comes tile 0", (2, 4, False)),
        Case("the first program, causal: all tiles see its keys", (0, 4, True)),
        Case("another program, causal: earlier tiles do not see its keys", (2, 4, True)),
        Case("one tile", (0, 1, True)),
    ),
    draw=_draw_program,
    minutes=6,
    hints=(
        "Write down, for four programs, which tile each has in steps 0, 1 and 2. In one step no tile may come twice.",
        "In step s, program j has tile j + s, modulo T. Causal: stop at the last tile.",
        "return (program + np.arange(T - program if causal else T)) % T",
    ),
    mistakes=(
        Mistake("let all programs begin at the first tile, so that all want to add to the same dQ.",
                "Program j begins at tile j.",
                "(program + np.arange(T - program if causal else T)) % T", "np.arange(program if causal else 0, T)"),
        Mistake("went on past the last tile.", "After it comes tile 0: take the number modulo T.",
                "(program + np.arange(T - program if causal else T)) % T",
                "program + np.arange(T - program if causal else T)"),
        Mistake("visited tiles that do not see the keys.", "Under a causal mask stop at the last tile.",
                "T - program if causal else T", "T"),
        Mistake("visited the tiles up to the program's own under a causal mask.",
                "Those after it see its keys: go up from it.",
                "(program + np.arange(T - program if causal else T)) % T",
                "np.arange(program + 1) if causal else (program + np.arange(T)) % T"),
        Mistake("went down.", "From its own tile the order goes up.", "(program + np.arange", "(program - np.arange"),
        Mistake("began at the next tile.", "The program's own comes first.",
                "(program + np.arange", "(program + 1 + np.arange"),
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
