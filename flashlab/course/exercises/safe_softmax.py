"""The exercises on safe_softmax."""

import numpy as np

from flashlab.grading.draws import hidden, scores
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake, Question
from flashlab.grading.laws import DROPPED, no_nan_replaced, nothing_added, nothing_clipped
from flashlab.reference import safe_softmax

__all__ = ["half", "row", "underflow", "rows", "lse", "accesses"]  # in the lesson's order

inf = np.inf


def one_row(x):
    """Softmax of one row of finite scores [N], summed in float32 or better."""
    e = np.exp(x - x.max())  # [N]
    l = e.sum(dtype=np.result_type(x, np.float32))
    return (e / l).astype(x.dtype)


def _draw_row(rng, size):
    return (_scores(rng, 1, int(rng.integers(1, size + 1)))[0],)


def _draw_rows(rng, size):
    """Draw scores [R, N] with no mask, with one, or with two, one over the other."""
    R, N = rng.integers(1, size + 1, 2)
    x = _scores(rng, R, N)
    for _ in range(rng.integers(3)):
        x[hidden(rng, R, N)] = -inf
    return (x,)


def _scores(rng, R, N):
    """Draw finite scores [R, N]: in float32, of one size or of many; or in float16, near its limits or not."""
    kind = rng.choice(["float32", "many sizes", "float16"], p=[0.5, 0.2, 0.3])
    if kind == "float32":
        return scores(rng, R, N, masked=False)
    if kind == "many sizes":
        least = rng.choice([-3, 6, 33])
        return (rng.choice([-1, 1]) * 10.0 ** rng.uniform(least, 38, (R, N))).astype(np.float32)
    end = rng.choice([0, 0, -62_000, 62_000])
    return (scores(rng, R, N, largest=1000, masked=False) + end).astype(np.float16)


def _case(property, x, dtype=np.float32):
    return Case(property, (np.array(x, dtype),))


def _of_one_row(softmax, x):
    return softmax(x[None])[0]


ONES = 2941  # float16 has 2,940 and 2,942, not this sum; weight and lse tell 2,940 from it even in float16
TENTHS = 1000  # scores of log 0.1: one by one in float16, each sum from 64 on is rounded to a multiple of 1/16
NARROW = (
    f"the sum was kept in float16. There, {ONES:,} ones add up to 2,940, or to 2,048 if they are added one by one, and "
    "65,520 ones to ∞: sum in float32."
)


def _sums_in_float32(denominator):
    """Build a law with inputs of its own: the sum of exponentials of scores in float16 is not rounded to float16.

    ``denominator(attempt, x)`` returns the sum for scores x [N] of which the largest is 0, computed from the attempt's
    result.
    """

    def law(attempt):
        tenths = np.float16([0] + [np.log(0.1)] * TENTHS)  # [1 + TENTHS]
        if denominator(attempt, np.zeros(ONES, np.float16)) < ONES - 0.5:
            return Broken(f"{ONES:,} scores of 0 in float16", NARROW, if_right=True)
        if not np.isclose(denominator(attempt, tenths), 1 + TENTHS / 10, 0.01):
            return Broken(f"a score of 0 and {TENTHS:,} of log 0.1 in float16", NARROW, if_right=True)
        return None

    return law


def _small_ones_count(lse):
    """Law with inputs of its own: exponentials far below the largest one are not set to 0."""
    x = np.full((1, 2**20), -14, np.float32)
    x[0, 0] = 0
    dropped = np.asarray(lse(x))[0] == 0
    return Broken("a score of 0 before a million scores of −14", DROPPED, if_right=True) if dropped else None


row = Exercise(
    reference=one_row,
    edges=(
        _case("two scores", [0, 1]),
        _case("scores too large to be exponentiated", [100, 99]),
        _case("a largest score that is neither first nor last; another has a larger absolute value", [-2000, 895, 894]),
        _case("scores too small to be exponentiated", [-800, -801]),
        _case("scores near the least of float16", [-62000, -65000], np.float16),
    ),
    draw=_draw_row,
    laws=(no_nan_replaced,),
    once=(
        nothing_added(lambda softmax: softmax(np.ones(1))),
        nothing_clipped(lambda softmax, x: softmax(x)),
        _sums_in_float32(lambda softmax, x: 1 / np.float64(softmax(x)[0])),
    ),
    mistakes=(
        Mistake("did not subtract the maximum.",
                "In float32, exp overflows above 88.72, and underflows below about −104.", "x - x.max()", "x"),
        Mistake("did not divide the exponentials by their sum.", "The weights of a row add up to 1.", "e / l", "e"),
        Mistake("subtracted the maximum in the numerator only.", "Subtract it in the denominator, too.",
                "e / l", "e / np.exp(x).sum()"),
        Mistake("subtracted the largest absolute value.",
                "Where a negative score has it, it is far above all scores: subtract the largest score.",
                "x.max()", "np.abs(x).max()"),
        Mistake("only moved the limits: in float64, exp overflows above 709 and underflows below −745.",
                "Subtract the maximum.",
                "np.exp(x - x.max())  # [N]\n    l = e.sum(dtype=np.result_type(x, np.float32))",
                "np.exp(np.float64(x))\n    l = e.sum()"),
        Mistake("lost digits in exp(x − lse): a large lse is rounded like any large number.",
                "Divide by the sum instead.", "e / l", "np.exp(x - (x.max() + np.log(l)))"),
    ),
    level=1,
    minutes=4,
    hints=(
        "Nothing above 88.7 may reach exp. What can be subtracted from every score without changing the result?",
        "Subtract the largest score from all of them: then the largest exponent is 0.",
        "e = np.exp(x - x.max()), and the result is e / e.sum(dtype=np.float32).",
    ),
)  # fmt: skip

GUARD = "np.where(m == -np.inf, 0, m)"

lse = Exercise(
    reference=safe_softmax.lse,
    edges=(
        _case("one row of two scores", [[0, 1]]),
        _case("rows far above 0 and far below", [[1000, 999], [-1000, -999]]),
        _case("a masked score beside scores far below 0", [[-2000, -inf, -2001]]),
        _case("a row of nothing but masked scores", [[-inf, -inf]]),
        _case("a score below −1e9, which is often used for −∞", [[-2e9, -inf]]),
    ),
    draw=_draw_rows,
    laws=(no_nan_replaced,),
    once=(
        nothing_added(lambda lse: lse(np.ones((1, 1)))),
        _small_ones_count,
        _sums_in_float32(lambda lse, x: np.exp(np.float64(lse(x[None])[0]))),
    ),
    mistakes=(
        Mistake("did not add the maximum back.", "The sum is relative to it: lse is m + log l.",
                "m_safe + np.log", "np.log"),
        Mistake("did not subtract the maximum.", "Without it exp overflows, or is 0 in a whole row.",
                GUARD, "np.zeros_like(m)"),
        Mistake("subtracted one maximum from all rows.", "Each row needs its own.",
                "x.max(-1, initial=-np.inf)", "np.full(x.shape[:-1], x.max())"),
        Mistake("took the logarithm to base 2.", "lse is a natural logarithm.", "np.log(", "np.log2("),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where the maximum is −∞, subtract 0 instead.", GUARD, "m"),
        Mistake("gave a row of nothing but masked scores lse = 0.", "Its sum is 0, and log 0 = −∞.",
                "np.where(l == 0, -np.inf, ", "np.where(l == 0, 0, "),
    ),
    level=2,
    minutes=6,
    hints=(
        "Pull e^m out of the sum. What does the logarithm make of a product?",
        "log Σ e^x = m + log Σ e^(x − m), row by row. Where is the guard needed?",
        "m = x.max(-1); m_safe = m, but 0 where it is -inf; l = np.exp(x - m_safe[:, None]).sum(-1, "
        "dtype=np.float32); the result is m_safe + log(l), and -inf where l is 0.",
    ),
)  # fmt: skip

rows = Exercise(
    reference=safe_softmax.safe,
    edges=(
        _case("two rows, each its own softmax", [[0, 1], [1, 1]]),
        _case("rows far above 0 and far below", [[1000, 999], [-1000, -999]]),
        _case("a masked score beside scores far below 0", [[-2000, -inf, -2001]]),
        _case("a row of nothing but masked scores", [[-inf, -inf]]),
        _case("a score below −1e9, which is often used for −∞", [[-2e9, -inf]]),
    ),
    draw=_draw_rows,
    laws=(no_nan_replaced,),
    once=(
        nothing_added(lambda softmax: softmax(np.ones((1, 1)))),
        nothing_clipped(_of_one_row),
        _sums_in_float32(lambda softmax, x: 1 / np.float64(_of_one_row(softmax, x)[0])),
    ),
    mistakes=(
        Mistake("did not subtract the maximum.", "Without it exp overflows, or is 0 in a whole row.",
                f"x - {GUARD}", "x"),
        Mistake("subtracted one maximum from all rows, and a row far below it underflows.", "Each row needs its own.",
                "x.max(-1, keepdims=True, initial=-np.inf)", "np.full((*x.shape[:-1], 1), x.max())"),
        Mistake("divided column i, not row i, by the sum of row i.",
                "keepdims=True makes a column of the sums: one for each row.",
                "e.sum(-1, keepdims=True,", "e.sum(-1,"),
        Mistake("got NaN in a row of nothing but masked scores.",
                "Subtract 0 where the maximum is −∞, and divide by 1 where the sum is 0.", GUARD, "m"),
        Mistake("gave a row of masked scores equal weights, as if −∞ were a large negative number.",
                "Its weights are 0: guard −∞ instead.",
                f"x - {GUARD}", "np.maximum(x, -1e9) - np.maximum(m, -1e9)"),
        Mistake("lost digits in exp(x − lse): a large lse is rounded like any large number.",
                "Divide by the sum instead.",
                "e / np.where(l == 0, 1, l)", f"np.exp(x - ({GUARD} + np.log(np.where(l == 0, 1, l))))"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Two things go wrong in a row that is all −∞: the subtraction, and the division. What should stand there?",
        "Where the maximum is −∞, subtract 0: every exponential is then exp(−∞) = 0. Where the sum is 0, divide by 1.",
        "m = x.max(-1, keepdims=True); e = np.exp(x - np.where(m == -np.inf, 0, m)); l = e.sum(-1, keepdims=True, "
        "dtype=np.float32); the result is e / np.where(l == 0, 1, l).",
    ),
)  # fmt: skip

half = Question(
    answer="zeros",
    because="e¹¹ = 59,874 still fits into float16, but the sum of two does not: it is inf, and 59,874 / inf = 0.",
    hints=(
        "The largest float16 is 65,504. Which of the three steps (exp, sum, divide) first leaves that range?",
        "e¹¹ is 59,874, which fits. Twice that does not.",
        "The sum is inf. A finite number divided by inf is ...",
    ),
    wrong=(
        ("right", "exp(11) = 59,874 fits into float16, but what about the sum of two of them?"),
        ("nan", "That takes inf / inf. Here the exponentials are finite, and only the sum is inf."),
        ("inf", "The sum is inf. But it is the denominator."),
    ),
)

underflow = Question(
    answer="right",
    because="e^(−100) is 3.7·10⁻⁴⁴: a subnormal float32, not 0. Divided by itself it is 1; the other two are 0.",
    hints=(
        "The smallest normal float32 is 1.2·10⁻³⁸. Is that also the smallest one above 0?",
        "There are subnormal numbers, down to 1.4·10⁻⁴⁵. e^(−100) is 3.7·10⁻⁴⁴.",
        "x / x = 1 for every x above 0, however small.",
    ),
    wrong=(
        ("nan", "0 / 0 would be NaN. But e^(−100) is not 0 in float32: run it."),
        ("zeros", "The sum is at most three times its largest term, so one weight is at least a third."),
    ),
)

accesses = Question(
    answer=4,
    because="Three loads (maximum, sum, division) and one store.",
    hints=(
        "The row does not fit into fast memory: what was loaded for one step is gone at the next.",
        "The maximum needs the whole row; the sum needs the maximum; the division needs the sum.",
        "Load, load, load and store.",
    ),
    wrong=(
        (3, "That is the naive softmax: two loads and a store. The maximum needs a pass of its own."),
        (2, "One load would be enough if the whole row stayed in fast memory. It does not fit."),
        (5, "Three loads, one for each of maximum, sum, division. How many stores?"),
    ),
)
