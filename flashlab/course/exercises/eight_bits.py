"""The exercises on eight bits: rounding, a rotation, keys without their mean, weights, and sums on two levels."""

import math

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.reference import eight_bits as reference
from flashlab.reference.eight_bits import TensorCore, to_e4m3

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


def _numbers(*values):
    return (np.array(values, np.float32),)


def _wide(seed, lowest, highest):
    rng = np.random.default_rng(seed)
    return (((rng.choice([-1, 1], 40)) * np.exp2(rng.uniform(lowest, highest, 40))).astype(np.float32),)


nearest = Exercise(
    reference=reference.to_e4m3,
    cases=lambda: [
        Case("numbers from 1 to 2", _numbers(1.0, 1.1, 1.2, 1.9)),
        Case("numbers that e4m3 has", _numbers(0.0, -1.125, 0.0625, 448.0, 2.0**-9)),
        Case("negative numbers", _numbers(-0.3, -7.7, -100.0)),
        Case("half way between two: the one with an even last bit", _numbers(1.0625, 1.1875, -17.0, 19.0)),
        Case("a little past half way, which 16 bits would round to it", _numbers(1.0625 + 2.0**-14, -17 - 2.0**-10)),
        Case("numbers past 448", _numbers(449.0, 470.0, 500.0, -1e6)),
        Case("subnormal numbers, below 2^-6", _numbers(0.0146, 0.0033, -0.0041, 2.0**-10, 3 * 2.0**-10, 1e-9)),
        Case("many sizes", _wide(0, -9, 8.5)),
        Case("very small ones", _wide(1, -20, -5)),
    ],
    level=2,
    minutes=12,
    hints=(
        "How far apart are neighbours at x? Divide by that step, round to a whole number, multiply.",
        "For x from 2^e up to 2^(e + 1) the step is 2^(e - 3). Below 2^-6 it stays what it is at 2^-6.",
        "_, exponent = np.frexp(x); step = np.ldexp(1, np.maximum(exponent - 1, -6) - 3); np.rint rounds ties to even. "
        "Clip to ±448 first. (In float32: x.dtype.type(1).)",
    ),
    mistakes=(
        Mistake("past 448 there is no number: what is larger becomes 448.", "np.clip(x, -448, 448)", "x"),
        Mistake("the largest code is NaN, so the largest number is 448, not 480.", "-448, 448", "-480, 480"),
        Mistake("below 2^-6 the step no longer shrinks: the smallest number is 2^-9.",
                "np.maximum(exponent - 1, -6)", "(exponent - 1)"),
        Mistake("the smallest exponent is -6: the step stays as it is from 2^-6 down.", "-6) - 3", "-7) - 3"),
        Mistake("the step is twice too large: np.frexp's exponent is that of the power of two above x.",
                "exponent - 1, -6", "exponent, -6"),
        Mistake("3 bits of mantissa: 8 steps per power of two, not 16.", "-6) - 3", "-6) - 4"),
        Mistake("cut off instead of rounded: np.rint takes the nearest.", "np.rint(x / step)", "np.trunc(x / step)"),
        Mistake("half way between two numbers e4m3 takes the even one: np.rint does.",
                "np.rint(x / step)", "np.floor(x / step + 0.5)"),
        Mistake("half way between two numbers went away from 0: e4m3 takes the even one, as np.rint does.",
                "np.rint(x / step)", "np.copysign(np.floor(np.abs(x / step) + 0.5), x)"),
        Mistake("the sign was lost: round the size, then give the sign back.",
                "return np.rint(x / step) * step", "return np.abs(np.rint(x / step) * step)"),
        Mistake("subnormal numbers became 0: below 2^-6 there are seven more.",
                "return np.rint(x / step) * step", "return np.where(np.abs(x) < 2.0**-6, 0, np.rint(x / step) * step)"),
        Mistake("multiply by the step again: 1.125 stays 1.125.", "np.rint(x / step) * step", "np.rint(x / step)"),
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


def _rows(seed, N, d):
    return (np.random.default_rng(seed).normal(size=(N, d)).astype(np.float32),)


hadamard = Exercise(
    reference=walsh,
    cases=lambda: [
        Case("two columns", (np.array([[3, 1]], np.float32),)),
        Case("an outlier in the first of four columns", (np.array([[100, 0, 0, 0]], np.float32),)),
        Case("an outlier in the last of four columns", (np.array([[0, 0, 0, 100]], np.float32),)),
        Case("one column", (np.array([[5], [-2]], np.float32),)),
        Case("eight columns", _rows(0, 3, 8)),
        Case("64 columns", _rows(1, 5, 64)),
    ],
    level=2,
    minutes=10,
    hints=(
        "Two columns: (a + b, a - b) / sqrt(2). Four: do that to neighbours, then to neighbouring pairs.",
        "half = 1, 2, 4, ...: cut the columns into stretches of 2 half; the first half of a stretch becomes a + b, the "
        "second a - b. At the end divide by sqrt(d).",
        "pairs = Y.reshape(N, -1, 2, half); a, b = pairs[:, :, 0], pairs[:, :, 1]; "
        "Y = np.stack([a + b, a - b], 2).reshape(N, d); half = 2 * half, while half < d.",
    ),
    mistakes=(
        Mistake("not normalised: without 1 / sqrt(d) scores become d times too large.", " / X.shape[1] ** 0.5", ""),
        Mistake("divided by d: lengths shrink by sqrt(d). Divide by sqrt(d).", "X.shape[1] ** 0.5", "X.shape[1]"),
        Mistake("only the first round was done: go on with half = 2, 4, ... until it is d.",
                "half = 2 * half", "half = X.shape[1]"),
        Mistake("the last round is missing.", "half < X.shape[1]:", "2 * half < X.shape[1]:"),
        Mistake("sums alone: the second half of a stretch is the difference.", "a - b", "a + b"),
        Mistake("the difference is the first half less the second.", "a - b", "b - a"),
        Mistake("results go back to where their inputs were: sums to the first half, differences to the second.",
                "np.stack([a + b, a - b], 2)", "np.stack([a + b, a - b], 3)"),
    ),
)  # fmt: skip


def less_mean(Q, K, scale):
    """Return K [Nk, d] less its mean, and by how much that lowers the lse of each query [Nq]."""
    mean = K.mean(0)  # [d]
    return K - mean, scale * (Q @ mean)


def _with_mean(seed, Nq, Nk, d, mean):
    rng = np.random.default_rng(seed)
    K = rng.normal(size=(Nk, d)) + mean * rng.normal(size=d)
    return rng.normal(size=(Nq, d)).astype(np.float32), K.astype(np.float32), d**-0.5


without_mean = Exercise(
    reference=less_mean,
    cases=lambda: [
        Case("one query, two keys, one column",
             (np.array([[2]], np.float32), np.array([[1], [5]], np.float32), 0.5)),
        Case("one key: nothing is left of it", _with_mean(0, 2, 1, 3, 1)),
        Case("keys with a large common part", _with_mean(1, 3, 6, 4, 10)),
        Case("more queries than keys", _with_mean(2, 7, 4, 3, 2)),
        Case("as many queries as keys and columns", _with_mean(3, 4, 4, 4, 3)),
    ],
    minutes=6,
    sways=True,
    hints=(
        "By how much does every score of a query fall if the same vector is taken from all keys?",
        "Q_i · (K_j − mean) = Q_i · K_j − Q_i · mean: by the same for all keys, so the weights stay. What of lse?",
        "mean = K.mean(0); K - mean, and scale * (Q @ mean) is to be added to lse.",
    ),
    mistakes=(
        Mistake("the mean of each key's numbers: take the mean over the keys, one number per column.",
                "mean = K.mean(0)", "mean = np.resize(K.mean(1), K.shape[1])"),
        Mistake("lse is of scaled scores: the scale belongs to what is added, too.", "scale * (Q @ mean)", "Q @ mean"),
        Mistake("the wrong sign: scores fell, so lse fell, and this is added to it.",
                "scale * (Q @ mean)", "-scale * (Q @ mean)"),
        Mistake("lse was not corrected: every score fell.", "scale * (Q @ mean)", "0 * (Q @ mean)"),
        Mistake("each query has its own: its product with the mean.",
                "scale * (Q @ mean)", "scale * np.full(len(Q), (Q @ mean).mean(), Q.dtype)"),
        Mistake("the sum of the keys was taken: divide by their number.", "K.mean(0)", "K.sum(0)"),
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
        (2.0**-9, "That is the smallest number. From half of it on, numbers are rounded up to it."),
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


def _scores(seed, Nq, Nk, largest, spread=2.0, far=0.0):
    rng = np.random.default_rng(seed)
    S = spread * rng.normal(size=(Nq, Nk)) + far
    return S.astype(np.float32), rng.normal(size=(Nk, 3)).astype(np.float32), largest


weights = Exercise(
    reference=rounded_row,
    cases=lambda: [
        Case("one key: its value", (np.array([[3]], np.float32), np.array([[7, -1]], np.float32), 256)),
        Case("one key far ahead of a small one, which survives if the largest weight is 256",
             (np.array([[0, -8]], np.float32), np.array([[0], [1]], np.float32), 256)),
        Case("the same, and the largest weight is 1",
             (np.array([[0, -8]], np.float32), np.array([[0], [1]], np.float32), 1)),
        Case("a masked key", (np.array([[1, -np.inf, 0.3]], np.float32), np.array([[1], [2], [4]], np.float32), 16)),
        Case("several queries", _scores(0, 4, 9, 256)),
        Case("scores far above zero", _scores(1, 3, 8, 256, far=500)),
        Case("scores far below zero", _scores(2, 3, 8, 64, far=-500)),
        Case("weights of very different size", _scores(3, 5, 20, 256, spread=5)),
    ],
    level=2,
    minutes=10,
    hints=(
        "Softmax may subtract any number, not only the maximum. Which one makes the largest weight 256?",
        "Subtract m = (maximum − log 256). The factor is in P and in l, so it cancels in O, and lse = m + log l.",
        "m = S.max(1) - math.log(largest); P = np.exp(S - m[:, None]); l = P.sum(1); "
        "eight_bits.to_e4m3(P) @ V / l[:, None], m + np.log(l).",
    ),
    mistakes=(
        Mistake("the factor is in P and not in l: it must be in both.",
                "l = P.sum(1)", "l = P.sum(1) / largest"),
        Mistake("lse does not know of the factor: with l of the larger weights, add the number that was subtracted.",
                "m + np.log(l)", "S.max(1) + np.log(l)"),
        Mistake("the largest weight is 1: small ones vanish.", "S.max(1) - math.log(largest)", "S.max(1)"),
        Mistake("the wrong sign: the largest weight became 1 / largest.", "- math.log(largest)", "+ math.log(largest)"),
        Mistake("a factor on weights is a summand on scores: its logarithm.", "math.log(largest)", "largest"),
        Mistake("the logarithm is natural, as the exponential is.", "math.log(largest)", "math.log2(largest)"),
        Mistake("the weights were not rounded.", "to_e4m3(P)", "P"),
        Mistake("divide last: weights that are divided before they are rounded are small again.",
                "to_e4m3(P) @ V / l[:, None]", "to_e4m3(P / l[:, None]) @ V"),
        Mistake("l is the sum of the weights before they are rounded.", "l = P.sum(1)", "l = to_e4m3(P).sum(1)"),
    ),
)  # fmt: skip

growth = Question(
    answer="N",
    because="Near the end the sum is of size N, and each step cuts off up to 2^-13 of it. There are N / 32 steps.",
    hints=(
        "How much does one step lose, when the sum is large? How many steps are there?",
        "A part of 2^-13 of the sum at most. Cuts are always towards zero, so they do not cancel.",
        "N / 32 steps, each of which loses a like part.",
    ),
    wrong=(
        ("not", "Each step loses something, and there are more of them."),
        ("sqrt(N)", "So it would be if losses had either sign. They are cut off, towards zero."),
    ),
    minutes=3,
)


def in_two_levels(P, V, flush):
    """Return P [M, N] @ V [N, dv], where each ``flush`` keys have an accumulator that starts from zero."""
    total = np.zeros((len(P), V.shape[1]), P.dtype)  # [M, dv]
    for start in range(0, P.shape[1], flush):
        keys = slice(start, start + flush)
        total = total + TensorCore()(np.zeros_like(total), P[:, keys], V[keys])  # [M, dv]
    return total


def _whole(seed, M, N, flush, dv=2):
    rng = np.random.default_rng(seed)  # whole numbers: float32 holds their sums exactly, but for what is cut off
    P, V = rng.integers(0, 64, (M, N)), rng.integers(0, 64, (N, dv))
    return P.astype(np.float32), V.astype(np.float32), flush


two_level = Exercise(
    reference=in_two_levels,
    cases=lambda: [
        Case("fewer keys than one flush", _whole(0, 1, 32, 64)),
        Case("two flushes", _whole(1, 2, 256, 128)),
        Case("a last part with fewer keys", _whole(2, 1, 320, 128)),
        Case("many keys, flushed often", _whole(3, 2, 4096, 128)),
        Case("many keys, flushed seldom", _whole(4, 2, 4096, 1024)),
        Case("flushed after every instruction", _whole(5, 1, 512, 32)),
    ],
    level=2,
    minutes=8,
    hints=(
        "Which sum may be long without losing anything? Which is kept short?",
        "For each stretch of `flush` keys: start the tensor core from zeros, and add its result to a total.",
        "for start in range(0, N, flush): total = total + TensorCore()(zeros, P[:, start : start + flush], "
        "V[start : start + flush]).",
    ),
    mistakes=(
        Mistake("the accumulator was never emptied: start each part from zeros, and add parts outside.",
                "total + TensorCore()(np.zeros_like(total), P[:, keys], V[keys])",
                "TensorCore()(total, P[:, keys], V[keys])"),
        Mistake("what was flushed stayed in the accumulator as well: earlier parts are counted twice.",
                "TensorCore()(np.zeros_like(total),", "TensorCore()(total,"),
        Mistake("the last part was left out: it may have fewer keys.",
                "range(0, P.shape[1], flush)", "range(0, P.shape[1] - flush + 1, flush)"),
        Mistake("that is the exact product, which the tensor core does not give.",
                "TensorCore()(np.zeros_like(total), P[:, keys], V[keys])", "P[:, keys] @ V[keys]"),
        Mistake("only the last part is left: add the parts up.", "total = total + ", "total = "),
    ),
)  # fmt: skip

at_most = Question(
    answer=1.5,
    because="0.125 + 0.0625 clocks become 0.0625 + 0.0625: products take half the time, exponentials what they took.",
    hints=(
        "How many clocks do the products of one score take in float16, and its exponential? Add them.",
        "512 / 4096 = 0.125 for the products, 1 / 16 = 0.0625 for the exponential. In float8?",
        "(0.125 + 0.0625) / (0.0625 + 0.0625)",
    ),
    wrong=(
        (2, "Products are twice as fast. The exponential takes what it took."),
        (1.33, "That would be 4 : 3. The products' 0.125 clocks become 0.0625."),
        (1, "Products do get faster: 512 FLOPs at 8192 per clock instead of 4096."),
    ),
    minutes=4,
)
