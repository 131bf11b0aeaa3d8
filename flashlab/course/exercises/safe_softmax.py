"""The exercises on safe_softmax."""

import time

import numpy as np

from flashlab.grading.exercise import Broken, Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import FINITE, HALF, LARGER, sweep
from flashlab.grading.laws import CLIPPED, DROPPED, no_nan_replaced, nothing_added, nothing_clipped
from flashlab.reference import safe_softmax

inf = np.inf


def _cases(*named):
    return [Case(name, (np.array(x, np.float32),)) for name, x in named]


def one_row(x):
    """Softmax of one row of finite scores [N], summed in float32 or better."""
    e = np.exp(x - x.max())  # [N]
    l = e.sum(dtype=np.result_type(x, np.float32))
    return (e / l).astype(x.dtype)


IN_HALF = (
    ("scores near the least of float16", [-62000.0, -65000.0]),
    ("scores near the largest of float16", [65000.0, 62000.0]),
    ("one score above two thousand that are far below it, in float16", [0.0] + [-30.0] * 2000),
)
LATE = np.float32([*np.zeros(998), 100, 0])  # a long row whose largest score is its last but one
MANY = "one score after 16,384 whose weights are small, and all count"
MANY_SMALL = np.float32([-20.5] * 16_384 + [0])
EACH_PLACE = 100 * np.eye(5, dtype=np.float32)  # rows whose largest score is in each place once


def _row_args(draw, N):
    return (draw.scores(1, N)[0],)


def _rows_args(draw, Br, N):
    return (draw.scores(Br, N),)


def _of_a_row(softmax, x):
    return softmax(x)


def _of_one_row(softmax, x):
    return softmax(x[None])[0]


def _of_one_score(function):
    """The weight of a row's only score, or the log-sum-exp of a score of 1."""
    return function(np.ones(1))


def _of_a_row_of_one_score(function):
    return function(np.ones((1, 1)))


LONG = 131_072  # ones are twice as many as float16 holds
OVERFLOWS = "in float16 the sum of a long row overflows, as that of 65,520 ones does: keep the sum in float32."


def _long_sum(shape, due):
    """Build a law of its own inputs: what is due for a long row of equal scores in float16, of [*shape, LONG].

    It is left to the case of 4,096 scores, where sums one by one stall, if that takes so long that an attempt seems to
    go score by score: this one may then take minutes.
    """

    def law(attempt):
        begun = time.process_time()
        attempt(np.zeros((*shape, 4096), np.float16))
        if time.process_time() - begun > 0.015:
            return None
        found = np.float64(attempt(np.zeros((*shape, LONG), np.float16)))
        if np.allclose(found, due, 0.01, 0):
            return None
        lost = (np.isin(found, (0, inf)) | np.isnan(found)).all()
        says = OVERFLOWS if lost else f"expected {due:.4g}, your result is {found.flat[0]:.4g}."
        return Broken(f"{LONG:,} equal scores in float16", says)

    return law


def _nothing_left_out(lse):
    """Law of its own inputs: scores far below the largest count, many of them or, where float64 is used, one."""
    many, one = MANY_SMALL[None], np.array([[0.0, -25.0]])
    near, fine = np.array([[0.0, -15.0]]), 1e-6
    narrows = not np.isclose(lse(near), safe_softmax.lse(near), fine, 0).all()
    for what, x in (("16,384 scores of −20.5 before one of 0", many), ("scores of 0 and −25, in float64", one)):
        if x is one and narrows:
            return None
        found, due = float(np.squeeze(lse(x))), float(safe_softmax.lse(np.float64(x))[0])
        if said := DROPPED if found == 0 else CLIPPED if 2 * due < found < 1e-2 else None:
            return Broken(what, said)


def _row_cases():
    small = _cases(
        ("one score", [3.0]),
        ("two scores", [0.0, 1.0]),
        ("scores too large to be exponentiated", [100.0, 99.0]),
        ("scores that are large only in the negative", [-200.0, -201.0]),
        ("a largest score that does not come first", [0.0, 95.0, 94.0]),
        ("scores that lie far apart", [300.0, 0.0, 200.0]),
        ("scores of both signs that lie far apart", [0.0, 1000.0, -1000.0]),
        ("a score far below 0 beside others", [10.0, 9.0, -1000.0]),
        ("equal scores", [7.0, 7.0, 7.0, 7.0]),
        ("two scores below any number that one would take for −∞", [-2e9, -3e9]),
        ("two scores below −10³⁸", [-3.2e38, -3.3e38]),
        ("two scores above 10³⁸", [3.2e38, 3.3e38]),
        ("one score above four thousand that are far below it", [0.0] + [-30.0] * 4000),
        ("ten thousand scores whose exponentials fit, but not their sum", [79.9] * 10_000),
    )
    equal = Case("4,096 equal scores in float16", (np.zeros(4096, np.float16),))  # added one by one: 2,048
    far = [Case(f"a score of 100 at place {place}, zeros elsewhere", (row,)) for place, row in enumerate(EACH_PLACE)]
    half = [Case(name, (np.array(x, np.float16),)) for name, x in IN_HALF]
    half += sweep(_row_args, regimes=[it for it in FINITE if it in HALF], sizes=LARGER, dtype=np.float16)
    late = Case("a thousand scores, the last but one the largest by far", (LATE,))
    swept = sweep(_row_args, regimes=FINITE, sizes=LARGER)
    return [*small, *far, late, *swept, Case(MANY, (3 + MANY_SMALL,)), equal, *half]


def _lse_cases():
    small = _cases(
        ("one row of one score", [[3.0]]),
        ("one row of two scores", [[0.0, 1.0]]),
        ("a score near 0", [[5e-4]]),
        ("scores too large to be exponentiated", [[1000.0, 1000.0]]),
        ("scores so small that their exponentials vanish", [[-500.0, -501.0]]),
        ("rows of different size", [[1000.0, 999.0], [-1000.0, -999.0]]),
        ("a masked score", [[0.0, -inf]]),
        ("a row of nothing but masked scores", [[-inf, -inf]]),
        ("a masked score beside scores far below 0", [[-2000.0, -inf, -2001.0]]),
        ("a score below any number that one would take for −∞", [[-2e9, -inf]]),
    )
    return [*small, *_swept_rows()]


def _swept_rows():
    each = Case("the largest score in another place in each row", (EACH_PLACE,))
    half = [Case(name, (np.array([x + [-inf]], np.float16),)) for name, x in IN_HALF]
    half += sweep(_rows_args, regimes=HALF, sizes=LARGER, dtype=np.float16)
    late = Case("a thousand scores, the last but one the largest by far", (LATE[None],))
    equal = Case("4,096 equal scores in float16", (np.zeros((1, 4096), np.float16),))
    return [each, late, *sweep(_rows_args, sizes=LARGER), Case(MANY, (3 + MANY_SMALL[None],)), equal, *half]


def _rows_cases():
    small = _cases(
        ("one row", [[0.0, 1.0]]),
        ("two rows, each its own softmax", [[0.0, 1.0], [1.0, 1.0]]),
        ("rows of different size", [[1000.0, 999.0], [-1000.0, -999.0]]),
        ("a row far above another", [[300.0, 299.0], [1.0, 2.0]]),
        ("a masked score", [[0.0, -inf, 1.0]]),
        ("a row of nothing but masked scores", [[-inf, -inf]]),
        ("a masked score beside scores far below 0", [[-2000.0, -inf, -2001.0]]),
        ("a score below any number that one would take for −∞", [[-2e9, -inf]]),
        ("a masked row beside others", [[1.0, 2.0], [-inf, -inf], [-300.0, -inf]]),
    )
    return [*small, *_swept_rows()]


STALLS = "added one by one in float16, a sum stalls at 2,048: keep it in float32."

row = Exercise(
    reference=one_row,
    cases=_row_cases,
    laws=(no_nan_replaced,),
    once=(nothing_added(_of_one_score), nothing_clipped(_of_a_row), _long_sum((), 1 / LONG)),
    level=1,
    minutes=4,
    hints=(
        "Nothing above 88.7 may reach exp. What can be subtracted from every score without changing the result?",
        "Subtract the largest score from all of them: then the largest exponent is 0.",
        "e = np.exp(x - x.max()), and the result is e / e.sum(dtype=np.float32).",
    ),
    mistakes=(
        Mistake(
            "no maximum was subtracted: exp overflows above 88.72, and underflows below about −104.", "x - x.max()", "x"
        ),
        Mistake(
            "divided by the largest score: that changes the differences, and with them the softmax.",
            "x - x.max()",
            "x / x.max()",
        ),
        Mistake(
            "the smallest score was subtracted: the largest exponent is now the spread of the row.",
            "x.max()",
            "x.min()",
        ),
        Mistake(
            "the larger of the first and the last score was subtracted: the largest may lie between them.",
            "x.max()",
            "max(x[0], x[-1])",
        ),
        Mistake(
            "the largest magnitude was subtracted: where all scores are negative it is far from all of them.",
            "x.max()",
            "np.abs(x).max()",
        ),
        Mistake("the first score was subtracted: it is not always near the largest.", "x.max()", "x[0]"),
        Mistake("the last score was subtracted: it is not always near the largest.", "x.max()", "x[-1]"),
        Mistake("the mean was subtracted: the largest score may be far above it.", "x.max()", "x.mean()"),
        Mistake("the exponentials were not divided by their sum.", "e / l", "e"),
        Mistake(
            "the maximum was subtracted above the line only: below it, too, or the factor does not cancel.",
            "e / l",
            "e / np.exp(x).sum()",
        ),
        Mistake(
            "exp(x − lse) loses digits: a large lse is rounded like any large number. Divide by the sum instead.",
            "e / l",
            "np.exp(x - (x.max() + np.log(l)))",
        ),
        Mistake(
            "float64 only moves the limit: exp overflows above 709, and underflows below −745. Subtract the maximum.",
            "np.exp(x - x.max())  # [N]\n    l = e.sum(dtype=np.result_type(x, np.float32))",
            "np.exp(np.float64(x))\n    l = e.sum()",
        ),
        Mistake("the median was subtracted: the largest score may be far above it.", "x.max()", "np.median(x)"),
        Mistake(
            "a percentile was subtracted: the largest score may be far above it.", "x.max()", "np.percentile(x, 90)"
        ),
        Mistake(
            "0 was subtracted where the maximum is negative: a row far below 0 underflows.",
            "x.max()",
            "max(x.max(), 0)",
        ),
        Mistake(
            "scores were clipped: all that lie beyond the limit become equal. Subtract the maximum instead.",
            "np.exp(x - x.max())",
            "np.exp(np.clip(x, -80, 80))",
        ),
        Mistake(
            "exponents were clipped: each weight is then at least e^−20 of the largest, and many of them add up.",
            "x - x.max()",
            "np.maximum(x - x.max(), -20)",
        ),
        Mistake(
            "nan_to_num hides what overflowed: the largest weights became 0. Subtract the maximum instead.",
            "e / l",
            "np.nan_to_num(np.exp(x) / np.exp(x).sum())",
        ),
        Mistake(
            "the sum of exponentials overflows before its logarithm is taken: subtract the maximum first.",
            "e / l",
            "np.exp(x - np.log(np.exp(x).sum()))",
        ),
        Mistake("a constant was subtracted: scores may lie anywhere, so subtract their maximum.", "x.max()", "50"),
        Mistake("the exponentials were divided by N: divide by their sum.", "e / l", "e / len(e)"),
        Mistake(
            "the sign is inverted: e^(x − m), so that larger scores get larger weights.",
            "np.exp(x - x.max())",
            "np.exp(x.min() - x)",
        ),
        Mistake(
            "those are the logarithms of the weights: return the weights.",
            "e / l",
            "x - x.max() - np.log(l)",
        ),
        Mistake(
            "weights were rounded: nothing is to be approximated.",
            "e / l",
            "np.round(e / l, 6)",
        ),
        Mistake(STALLS, "e.sum(dtype=np.result_type(x, np.float32))", "e.cumsum()[-1]"),
    ),
)

MASKED_AS_0 = "a masked score counted as 0 in the maximum, and a row far below 0 underflows: it must be −∞ there, too."

lse = Exercise(
    reference=safe_softmax.lse,
    cases=_lse_cases,
    laws=(no_nan_replaced,),
    once=(nothing_added(_of_a_row_of_one_score), _nothing_left_out, _long_sum((1,), np.log(LONG))),
    level=2,
    minutes=6,
    hints=(
        "Pull e^m out of the sum. What does the logarithm make of a product?",
        "log Σ e^x = m + log Σ e^(x − m), row by row. Where is the guard needed?",
        "m = x.max(-1); m_safe = m, but 0 where it is -inf; l = np.exp(x - m_safe[:, None]).sum(-1, "
        "dtype=np.float32); the result is "
        "m_safe + log(l), and -inf where l is 0.",
    ),
    mistakes=(
        Mistake("the maximum was not added back: the sum was relative to it.", "m_safe + np.log", "np.log"),
        Mistake(
            "the maximum was subtracted once more: the sum was relative to it, so add it.",
            "m_safe + np.log",
            "-m_safe + np.log",
        ),
        Mistake(
            "that is the maximum alone: the logarithm of the sum belongs to it.",
            "m_safe + np.log(np.where(l == 0, 1, l))",
            "m_safe",
        ),
        Mistake(
            "that is the sum itself: its logarithm is wanted.",
            "m_safe + np.log(np.where(l == 0, 1, l))",
            "np.exp(m_safe) * l",
        ),
        Mistake("no maximum was subtracted: exp overflows.", "np.where(m == -np.inf, 0, m)", "np.zeros_like(m)"),
        Mistake(
            "one maximum for all rows: each row needs its own.",
            "x.max(-1, initial=-np.inf)",
            "np.full(x.shape[:-1], x.max())",
        ),
        Mistake("this is in units of log₂: use the natural logarithm.", "np.log(", "np.log2("),
        Mistake("−∞ − (−∞) is NaN: where the maximum is −∞, subtract 0 instead.", "np.where(m == -np.inf, 0, m)", "m"),
        Mistake(
            "a row of nothing but masked scores has lse −∞: the sum is 0, and log 0 = −∞.",
            "np.where(l == 0, -np.inf, ",
            "np.where(l == 0, 0, ",
        ),
        Mistake(
            "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, -1e4)",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, 0)",
        ),
        Mistake(MASKED_AS_0, "x.max(-1, initial=-np.inf)", "np.where(x == -np.inf, 0, x).max(-1)"),
        Mistake("the logarithm is missing: m + log l.", "m_safe + np.log(np.where(l == 0, 1, l))", "m_safe + l"),
        Mistake("the logarithm was subtracted: m + log l.", "m_safe + np.log", "m_safe - np.log"),
        Mistake(
            "rows and columns are swapped: there is one number per row, so sum along the last axis.",
            "x.max(-1, initial=-np.inf)",
            "(x := x.T).max(-1, initial=-np.inf)",
        ),
        Mistake("log(1 + l) was taken: the maximum's own exponential is in l already.", "np.log(", "np.log1p("),
        Mistake("m and log l were multiplied: add them.", "m_safe + np.log", "m_safe * np.log"),
        Mistake("that is the mean of the exponentials: lse takes their sum.", ".sum(-1,", ".mean(-1,"),
        Mistake(
            "squeeze removes every axis of length 1: with one row, too, lse is [R].",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l))).squeeze()",
        ),
        Mistake(
            "a column came back: lse has one number per row, [R].",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))[:, None]",
        ),
        Mistake(
            "that is the sum relative to the maximum: its logarithm is wanted, and the maximum added.",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))",
            "l",
        ),
        Mistake(
            "a small number under the logarithm gives a row of nothing but masked scores a finite lse: it is −∞.",
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))",
            "m_safe + np.log(l + 1e-30)",
        ),
        Mistake(
            STALLS,
            "np.exp(x - m_safe[..., None]).sum(-1, dtype=np.result_type(x, np.float32))",
            "np.exp(x - m_safe[..., None]).cumsum(-1)[..., -1]",
        ),
        Mistake(
            STALLS,
            "np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l)))",
            "np.logaddexp.reduce(x, axis=-1)",
        ),
    ),
)

rows = Exercise(
    reference=safe_softmax.safe,
    cases=_rows_cases,
    laws=(no_nan_replaced,),
    once=(nothing_added(_of_a_row_of_one_score), nothing_clipped(_of_one_row), _long_sum((1,), 1 / LONG)),
    level=2,
    minutes=8,
    hints=(
        "Two things go wrong in a row that is all −∞: the subtraction, and the division. What should stand there?",
        "Where the maximum is −∞, subtract 0: every exponential is then exp(−∞) = 0. Where the sum is 0, divide by 1.",
        "m = x.max(-1, keepdims=True); e = np.exp(x - np.where(m == -np.inf, 0, m)); l = e.sum(-1, keepdims=True, "
        "dtype=np.float32); the result is e / np.where(l == 0, 1, l).",
    ),
    mistakes=(
        Mistake(
            "one maximum for all rows: a row far below it underflows.",
            "x.max(-1, keepdims=True, initial=-np.inf)",
            "np.full((*x.shape[:-1], 1), x.max())",
        ),
        Mistake(
            "one maximum for all rows: in a row far below it every exponential is 0, and 0 / 0 is NaN.",
            "e / l",
            "e / e.sum(-1, keepdims=True)",
            of=one_row,
        ),
        Mistake(
            "without keepdims=True the sums are laid along the columns: each row is to be divided by its own.",
            "e / l",
            "e / e.sum(-1)",
            of=one_row,
        ),
        Mistake("one sum for all rows: each row has its own.", "e.sum(-1, keepdims=True,", "e.sum(keepdims=True,"),
        Mistake(
            "rows and columns are swapped: the softmax runs along the last axis.",
            "e.sum(-1, keepdims=True,",
            "e.sum(0, keepdims=True,",
        ),
        Mistake("no maximum was subtracted from the scores.", "x - np.where(m == -np.inf, 0, m)", "x"),
        Mistake("no maximum was subtracted from the scores.", "np.exp(x)", "1 * np.exp(x)", of=safe_softmax.naive),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, 0)",
        ),
        Mistake(
            "NaN comes of −∞ − (−∞) and of 0 / 0: subtract 0 where the maximum is −∞, divide by 1 where l is 0.",
            "np.where(m == -np.inf, 0, m)",
            "m",
        ),
        Mistake(
            "exp(x − lse) loses digits: a large lse is rounded like any large number. Divide by the sum instead.",
            "e / np.where(l == 0, 1, l)",
            "np.exp(x - (np.where(m == -np.inf, 0, m) + np.log(np.where(l == 0, 1, l))))",
        ),
        Mistake(
            "a row of masked scores came out uniform: as if −∞ were a large negative number.",
            "x - np.where(m == -np.inf, 0, m)",
            "np.maximum(x, -1e9) - np.maximum(m, -1e9)",
        ),
        Mistake(
            "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, -1e4)",
        ),
        Mistake(
            "masked scores were taken for 0: a score of 0 has the weight e⁰ = 1, only −∞ has none.",
            "np.exp(x - np.where(m == -np.inf, 0, m))",
            "np.exp(np.where(x == -np.inf, 0, x) - np.where(x == -np.inf, 0, x).max(-1, keepdims=True))",
        ),
        Mistake(
            MASKED_AS_0,
            "x.max(-1, keepdims=True, initial=-np.inf)",
            "np.where(x == -np.inf, 0, x).max(-1, keepdims=True)",
        ),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "e / np.where(l == 0, 1, l)",
            "np.where((l == 0).any(), 0, e / np.where(l == 0, 1, l))",
        ),
        Mistake(STALLS, "e.sum(-1, keepdims=True, dtype=np.result_type(x, np.float32))", "e.cumsum(-1)[..., -1:]"),
    ),
)

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
        ("inf", "The sum is inf. But it stands below the line."),
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
