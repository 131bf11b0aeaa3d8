"""The exercises on eight bits: rounding, a rotation, keys without their mean, weights, and sums on two levels."""

import math

import numpy as np

from flashlab.grading.draws import lengths
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import eight_bits as reference
from flashlab.reference.eight_bits import TensorCore, numbers_of_e4m3, to_e4m3

next_to_one = Question(
    answer=0.125,
    because="From 1 to 2 there are 8 steps, as 3 bits of mantissa say: 1, 1.125, 1.25, ... From 2 to 4, 8 too.",
    hints=(
        "How many numbers does e4m3 have from 1 up to 2, where only the mantissa changes?",
        "3 bits of mantissa: 8 of them, evenly spaced.",
        "1 / 8",
    ),
    wrong=(
        (0.0625, "That is the largest error of rounding, half a step."),
        (1, "That is the step of int8. e4m3 has 8 steps from 1 to 2."),
        (2**-9, "That is the smallest number of all. The step grows with the number."),
    ),
    minutes=2,
)


NUMBERS = np.sort(numbers_of_e4m3()[:127])  # 0 to 448
TIES = (NUMBERS[1:] + NUMBERS[:-1]) / 2  # [126]


def _numbers(*values):
    return (np.float32(values),)


def _draw_nearest(rng, size):
    """Draw numbers of any size, numbers of e4m3, ties, and the numbers of float32 next to ties."""
    N = int(rng.integers(1, 4 * size + 1))
    ties = np.float32(rng.choice(TIES, N))  # [N]
    beside = np.nextafter(ties, np.float32(rng.choice([0, 1000])))  # [N]
    kinds = 2.0 ** rng.uniform(-12, 10, N), 10.0 ** rng.uniform(-38, 38, N), rng.choice(NUMBERS, N), ties, beside
    return (np.float32(rng.choice([-1, 1], N) * np.choose(rng.choice(5, N), kinds)),)


nearest = Exercise(
    reference=reference.to_e4m3,
    edges=(
        Case("numbers from 1 to 2", _numbers(1.0, 1.1, 1.2, 1.9)),
        Case("half way between two: the one with an even code", _numbers(1.0625, 1.1875, -17.0, 19.0)),
        Case("numbers past ±448", _numbers(449.0, 470.0, 500.0, -1e6)),
        Case("subnormal numbers, below 2^-6", _numbers(0.0146, 0.0033, -0.0041, 1e-9)),
    ),
    draw=_draw_nearest,
    mistakes=(
        Mistake("let numbers past 448 pass.", "What is larger becomes 448.", "np.clip(x, -448, 448)", "x"),
        Mistake("took 480 for the largest number.", "The last code is NaN: the largest is 448.",
                "-448, 448", "-480, 480"),
        Mistake("let the step shrink for numbers below 2^-6.", "It stays as it is there: the smallest number is 2^-9.",
                "np.maximum(exponent - 1, -6)", "(exponent - 1)"),
        Mistake("took twice the right step.", "The exponent of np.frexp is that of the power of two above x.",
                "exponent - 1, -6", "exponent, -6"),
        Mistake("cut off the remainder.", "Round to the nearest: np.rint.", "np.rint(x / step)", "np.trunc(x / step)"),
        Mistake("rounded ties up.", "A tie goes to the number with an even code: np.rint does that.",
                "np.rint(x / step)", "np.floor(x / step + 0.5)"),
    ),
    level=2,
    minutes=12,
    hints=(
        "How far apart are neighbours at x? Divide by that step, round to a whole number, multiply.",
        "For x from 2^e up to 2^(e + 1) the step is 2^(e - 3). Below 2^-6 it stays what it is at 2^-6.",
        "_, exponent = np.frexp(x); step = np.ldexp(1, np.maximum(exponent - 1, -6) - 3); np.rint rounds ties to even. "
        "Clip to ±448 first. (x.dtype.type(1) instead of 1 keeps the step in float32.)",
    ),
)  # fmt: skip


def walsh(X):
    """Return X [N, d] times the Hadamard matrix over sqrt(d), where d is a power of two."""
    Y, half = X, 1
    while half < X.shape[1]:
        pairs = Y.reshape(len(X), -1, 2, half)  # [N, d / (2 half), 2, half]
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        Y = np.stack([a + b, a - b], 2).reshape(X.shape)
        half = 2 * half
    return Y / X.shape[1] ** 0.5


def _draw_hadamard(rng, size):
    """Draw rows of which some have an outlier."""
    N, d = int(rng.integers(1, size + 1)), 2 ** int(rng.integers(0, min(size, 9) + 1))
    outliers = 1 + rng.choice([0, 100]) * (np.arange(d) == rng.integers(d, size=(N, 1)))  # [N, d]
    return ((outliers * rng.normal(size=(N, d))).astype(np.float32),)


hadamard = Exercise(
    reference=walsh,
    edges=(
        Case("two columns", (np.float32([[3, 1], [0, 2]]),)),
        Case("an outlier in the first of four columns", (np.float32([[100, 0, 0, 0]]),)),
        Case("an outlier in the last of four columns", (np.float32([[0, 0, 0, 100]]),)),
        Case("one column", (np.float32([[5], [-2]]),)),
    ),
    draw=_draw_hadamard,
    sways=True,
    mistakes=(
        Mistake("did not normalise.", "Divide by √d, or scores become d times too large.", " / X.shape[1] ** 0.5", ""),
        Mistake("divided by d.", "Divide by √d: the lengths of rows stay.", "X.shape[1] ** 0.5", "X.shape[1]"),
        Mistake("did the first round only.", "Go on with half = 2, 4, ... while it is below d.",
                "half = 2 * half", "half = X.shape[1]"),
        Mistake("left out the last round.", "In the last one half is d / 2.", "half < X.shape[1]:",
                "2 * half < X.shape[1]:"),
        Mistake("subtracted the wrong way round.", "The difference is the first half less the second.",
                "a - b", "b - a"),
        Mistake("put sums and differences side by side.", "Sums go to the first half, differences to the second.",
                "np.stack([a + b, a - b], 2)", "np.stack([a + b, a - b], 3)"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Two columns: (a + b, a - b) / sqrt(2). Four: do that to neighbours, then to neighbouring pairs.",
        "half = 1, 2, 4, ...: cut the columns into stretches of 2 half; the first half of a stretch becomes a + b, the "
        "second a - b. At the end divide by sqrt(d).",
        "pairs = Y.reshape(N, -1, 2, half); a, b = pairs[:, :, 0], pairs[:, :, 1]; "
        "Y = np.stack([a + b, a - b], 2).reshape(N, d); half = 2 * half, while half < d.",
    ),
)  # fmt: skip


def less_mean(Q, K, scale):
    """Return K [Nk, d] less its mean, and by how much that lowers the lse of each query [Nq]."""
    mean = K.mean(0)  # [d]
    return K - mean, scale * (Q @ mean)


def _draw_without_mean(rng, size):
    """Draw queries and keys, the keys with a common part, and a scale."""
    Nq, Nk, d = lengths(rng, size, 3)
    K = rng.normal(size=(Nk, d)) + rng.choice([0, 1, 30]) * rng.normal(size=d)  # [Nk, d]
    scale = float(rng.choice([d**-0.5, rng.uniform(0.05, 2)]))
    return rng.normal(size=(Nq, d)).astype(np.float32), K.astype(np.float32), scale


without_mean = Exercise(
    reference=less_mean,
    edges=(
        Case("one query, three keys, two columns", (np.float32([[2, 0]]), np.float32([[1, 2], [5, 0], [3, 1]]), 0.5)),
        Case("two queries, two columns", (np.float32([[1, 0], [0, 1]]), np.float32([[1, 5], [3, 7]]), 0.5)),
        Case("one key: nothing is left of it", (np.float32([[1, 2]]), np.float32([[3, 4]]), 1.0)),
    ),
    draw=_draw_without_mean,
    sways=True,
    mistakes=(
        Mistake("took the mean of each key's numbers.", "Take the mean over the keys, one number per column.",
                "mean = K.mean(0)", "mean = np.resize(K.mean(1), K.shape[1])"),
        Mistake("did not scale the correction of lse.", "lse is of scaled scores.", "scale * (Q @ mean)", "Q @ mean"),
        Mistake("returned the correction of lse with the wrong sign.",
                "Scores fell, and lse with them: the correction is added to lse.",
                "scale * (Q @ mean)", "-scale * (Q @ mean)"),
        Mistake("did not correct lse.", "Every score of query i fell by scale · Q_i · mean.",
                "scale * (Q @ mean)", "0 * (Q @ mean)"),
        Mistake("returned the same number for all queries.", "Each query has its own product with the mean.",
                "scale * (Q @ mean)", "scale * np.full(len(Q), (Q @ mean).mean(), Q.dtype)"),
        Mistake("took the sum of the keys.", "Divide it by their number.", "K.mean(0)", "K.sum(0)"),
    ),
    minutes=6,
    hints=(
        "By how much does every score of a query fall if the same vector is taken from all keys?",
        "Q_i · (K_j − mean) = Q_i · K_j − Q_i · mean: by the same for all keys, so the weights stay. What of lse?",
        "mean = K.mean(0); K - mean, and scale * (Q @ mean) is to be added to lse.",
    ),
)  # fmt: skip

vanish = Question(
    answer=2.0**-10,
    because="The smallest number is 2^-9. Half of it and less becomes 0: ties go to the even code.",
    hints=(
        "Which is the smallest positive number of e4m3? Which numbers are rounded to it?",
        "2^-6 / 8 = 2^-9. Everything nearer to it than to 0 becomes 2^-9.",
        "Half of 2^-9.",
    ),
    wrong=(
        (2.0**-6, "That is the smallest normal number. Below it there are seven more."),
        (2.0**-9, "That is the smallest number. Numbers above half of it are rounded up to it."),
        (2.0**-7, "E = 0 has the exponent of E = 1, and a mantissa without the leading 1."),
        (1 / 448, "The largest number does not say how small the smallest is: the exponent has 4 bits."),
    ),
    minutes=3,
)


def rounded_row(S, V, largest):
    """Return O [Nq, dv] and lse [Nq] of scores S [Nq, Nk] and V [Nk, dv], with weights in e4m3 up to ``largest``."""
    m = S.max(1) - math.log(largest)  # [Nq]
    P = np.exp(S - m[:, None])  # [Nq, Nk]
    l = P.sum(1)  # [Nq]
    return to_e4m3(P) @ V / l[:, None], m + np.log(l)


def _two_keys(largest, *scores):
    return np.float32([scores]), np.float32([[0], [1]]), largest


def _near_a_tie(S, largest):
    """Return which weights of scores [Nq, Nk] a rounding might move to the other side of a tie."""
    P = largest * np.exp(np.float64(S) - S.max(1, keepdims=True))  # [Nq, Nk]
    room = 4e-7 * (1 + np.abs(S[np.isfinite(S)]).max()) * P  # [Nq, Nk]
    return (np.abs(P[..., None] - TIES) <= room[..., None]).any(-1)


def _draw_weights(rng, size):
    """Draw scores: one of each row is the largest, some are masked. No weight is near a tie, and no lse near 0."""
    Nq, Nk, dv = lengths(rng, min(size, 100), 3)
    largest, reach = int(rng.choice([1, 16, 64, 256, 448])), rng.choice([2, 15])
    top = rng.choice([2, -8]) * (1 + rng.choice([0, 1, 60, 1000]) * rng.random((Nq, 1)))  # [Nq, 1]
    first = np.arange(Nk) == rng.integers(Nk, size=(Nq, 1))  # [Nq, Nk]
    S = np.where(first, top, -np.inf).astype(np.float32)
    to_draw = ~first & (rng.random((Nq, Nk)) < rng.choice([0.7, 1]))  # [Nq, Nk]
    while to_draw.any():
        S[to_draw] = (top - reach * rng.random((Nq, Nk)))[to_draw]
        to_draw = _near_a_tie(S, largest)
    return S, rng.normal(size=(Nk, dv)).astype(np.float32), largest


weights = Exercise(
    reference=rounded_row,
    edges=(
        Case("a small weight, which survives if the largest is 256", _two_keys(256, 8, 0)),
        Case("a small weight, which vanishes if the largest is 1", _two_keys(1, 8, 0)),
        Case("a weight between two numbers of e4m3", _two_keys(256, 3, 2)),
        Case("scores whose exponentials overflow", _two_keys(16, 500, 499)),
        Case("a masked key", _two_keys(16, 3, -np.inf)),
    ),
    draw=_draw_weights,
    sways=True,
    mistakes=(
        Mistake("left the factor out of l.", "It must be in P and in l, and cancels.",
                "l = P.sum(1)", "l = P.sum(1) / largest"),
        Mistake("added the maximum to log l.", "l has the factor: add the number that was subtracted.",
                "m + np.log(l)", "S.max(1) + np.log(l)"),
        Mistake("let the largest weight be 1, and small ones vanish.", "Subtract log(largest) less.",
                "S.max(1) - math.log(largest)", "S.max(1)"),
        Mistake("let the largest weight be 1 / largest.", "Subtract less than the maximum: maximum − log(largest).",
                "- math.log(largest)", "+ math.log(largest)"),
        Mistake("did not round the weights.", "Use eight_bits.to_e4m3.", "to_e4m3(P)", "P"),
        Mistake("divided before you rounded: weights are small again.", "Divide last.",
                "to_e4m3(P) @ V / l[:, None]", "to_e4m3(P / l[:, None]) @ V"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Softmax may subtract any number, not only the maximum. Which one makes the largest weight 256?",
        "Subtract m = (maximum − log 256). The factor is in P and in l, so it cancels in O, and lse = m + log l.",
        "m = S.max(1) - math.log(largest); P = np.exp(S - m[:, None]); l = P.sum(1); "
        "eight_bits.to_e4m3(P) @ V / l[:, None], m + np.log(l).",
    ),
)  # fmt: skip

growth = Question(
    answer="N",
    because="Near the end the sum is of size N, and each step cuts off up to 2^-13 of it. There are N / 32 steps.",
    hints=(
        "How much does one step lose, when the sum is large? How many steps are there?",
        "A part of 2^-13 of the sum at most. Cuts are always towards zero, so they do not cancel.",
        "N / 32 steps, each of which loses about the same part.",
    ),
    wrong=(
        ("not", "Each step loses something, and there are more of them."),
        ("sqrt(N)", "So it would be if losses had either sign. They are cut off, towards zero."),
    ),
    minutes=3,
)


def in_two_levels(P, V, flush):
    """Return P [M, N] @ V [N, dv], where every ``flush`` keys get an accumulator that starts from zero."""
    total = np.zeros((len(P), V.shape[1]), P.dtype)  # [M, dv]
    for start in range(0, P.shape[1], flush):
        keys = slice(start, start + flush)
        total = total + TensorCore()(np.zeros_like(total), P[:, keys], V[keys])  # [M, dv]
    return total


def _equal(N, flush):
    return np.full((1, N), 99, np.float32), np.full((N, 1), 99, np.float32), flush


def _draw_two_level(rng, size):
    """Draw whole numbers, whose sums are exact in float32, and a flush of some instructions, 32 products each."""
    M, dv = (int(n) for n in rng.integers(1, min(size, 10) + 1, 2))
    N = int(rng.integers(1, 64 * min(size, 40) + 1))
    P, V = rng.integers(0, 64, (M, N)), rng.integers(rng.choice([0, -63]), 64, (N, dv))  # [M, N], [N, dv]
    return P.astype(np.float32), V.astype(np.float32), 32 * int(rng.integers(1, size + 2))


two_level = Exercise(
    reference=in_two_levels,
    edges=(
        Case("fewer keys than one flush", _equal(16, 64)),
        Case("two flushes", _equal(128, 64)),
        Case("a last part with fewer keys", _equal(80, 64)),
    ),
    draw=_draw_two_level,
    mistakes=(
        Mistake("did not empty the accumulator after `flush` keys.",
                "Start each part from zeros, and add parts outside.",
                "total + TensorCore()(np.zeros_like(total), P[:, keys], V[keys])",
                "TensorCore()(total, P[:, keys], V[keys])"),
        Mistake("counted earlier parts more than once.", "The accumulator starts each part from zeros.",
                "TensorCore()(np.zeros_like(total),", "TensorCore()(total,"),
        Mistake("left out the last part.", "It may have fewer keys.",
                "range(0, P.shape[1], flush)", "range(0, P.shape[1] - flush + 1, flush)"),
        Mistake("returned the exact product, or cut the keys into parts that are too short.",
                "The tensor core cuts longer sums: call TensorCore() on `flush` keys at a time.",
                "TensorCore()(np.zeros_like(total), P[:, keys], V[keys])", "P[:, keys] @ V[keys]"),
        Mistake("returned the last part.", "Add the parts up.", "total = total + ", "total = "),
    ),
    level=2,
    minutes=8,
    hints=(
        "Which sum may be long without losing anything? Which is kept short?",
        "For each stretch of `flush` keys: start the tensor core from zeros, and add its result to a total.",
        "for start in range(0, N, flush): total = total + TensorCore()(zeros, P[:, start : start + flush], "
        "V[start : start + flush]).",
    ),
)  # fmt: skip

at_most = Question(
    answer=1.5,
    because="0.125 + 0.0625 clocks become 0.0625 + 0.0625: products take half the time, exponentials the same.",
    hints=(
        "How many clocks do the products of one score take in float16, and its exponential? Add them.",
        "512 / 4096 = 0.125 for the products, 1 / 16 = 0.0625 for the exponential. In float8?",
        "(0.125 + 0.0625) / (0.0625 + 0.0625)",
    ),
    wrong=(
        (2, "Products are twice as fast. The exponential takes as long as before."),
        (1.33, "That would be 4 : 3. The products' 0.125 clocks become 0.0625."),
        (1, "Products do get faster: 512 FLOPs at 8192 per clock instead of 4096."),
    ),
    minutes=4,
)
