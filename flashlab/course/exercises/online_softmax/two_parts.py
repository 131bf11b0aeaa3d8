"""Two parts that never met: ``sums`` merges their denominators, ``merge`` their states."""

import numpy as np

from flashlab.course.exercises.online_softmax.states import (
    RISES,
    nearly_equal,
    of_one_key,
    past_and_zero,
    state_of,
    taken_in,
    two_states,
)
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.generators import LARGER, sweep
from flashlab.grading.laws import LARGE, no_nan_replaced, nothing_clipped, proportional
from flashlab.reference import online_softmax

inf = np.inf


def merge_sums(m_a, l_a, m_b, l_b):
    """Return the maximum m [Br] of two parts of Br rows together, and their denominator l [Br] relative to it."""
    m = np.maximum(m_a, m_b)  # [Br]
    m_safe = np.where(m == -np.inf, 0, m)  # [Br]      a row that has met no key in either part
    return m, np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b


def _merge_cases():
    low, high, none = state_of([0.0], [1.0], [[2.0]]), state_of([1.0], [2.0], [[3.0]]), online_softmax.identity(1, 1)
    cases = [
        ("two parts of equal maximum", low, state_of([0.0], [3.0], [[5.0]])),
        ("a second part with the larger maximum", low, high),
        ("a first part with the larger maximum", high, low),
        ("two parts with maxima below 0", state_of([-3.0], [2.0], [[1.0]]), state_of([-2.0], [1.0], [[1.0]])),
        ("a second part that has met no key", high, none),
        ("a first part that has met no key", none, high),
        ("a maximum below any number that one would take for −∞", state_of([-2e9], [1.0], [[2.0]]), none),
        ("two parts that have met no key", none, none),
        (
            "rows of which each has met keys in one part only",
            state_of([-inf, 1.0, -inf], [0.0, 2.0, 0.0], [[0.0], [3.0], [0.0]]),
            state_of([2.0, -inf, -inf], [1.0, 0.0, 0.0], [[4.0], [0.0], [0.0]]),
        ),
        ("a first part of which the values are 0", state_of([0.0], [1.0], [[0.0]]), low),
        ("a second part of which the values are 0", low, state_of([0.0], [1.0], [[0.0]])),
        ("values of width 0", *(state_of([m], [2.0], np.zeros((1, 0))) for m in (0.0, 1.0))),
        (
            "maxima too large to be exponentiated",
            state_of([1000.0], [1.0], [[2.0]]),
            state_of([1001.0], [1.0], [[3.0]]),
        ),
        ("a first part of many keys, far below", state_of([0.0], [1e10], [[1e10]]), state_of([20.5], [1.0], [[1.0]])),
        ("a second part of many keys, far below", state_of([20.5], [1.0], [[1.0]]), state_of([0.0], [1e10], [[1e10]])),
        (
            "a first part of more keys, further below",
            state_of([0.0], [1e14], [[1e14]]),
            state_of([30.5], [1.0], [[1.0]]),
        ),
        ("a maximum that rises by little", of_one_key(0 * RISES), of_one_key(RISES)),
        (
            "a first part far below, of more keys still",
            state_of([0.0], [1e37], [[1e37]]),
            state_of([80.0], [1.0], [[1.0]]),
        ),
        (
            "a second part far below, of more keys still",
            state_of([80.0], [1.0], [[1.0]]),
            state_of([0.0], [1e37], [[1e37]]),
        ),
        (
            "a first part of very many keys, far below",
            state_of([0.0], [1e12], [[2e12]]),
            state_of([45.0], [1.0], [[3.0]]),
        ),
    ]
    small = [Case(name, (a, b)) for name, a, b in cases]
    for what, low, high in nearly_equal():
        a, b = of_one_key(low), of_one_key(high)
        small += [Case(f"maxima that rise, {what}", (a, b)), Case(f"maxima that fall, {what}", (b, a))]
    return [*small, *sweep(_merge_args, sizes=LARGER)]


def _sums_cases():
    return [Case(case.property, tuple(part for state in case.args for part in state[:2])) for case in _merge_cases()]


def _merge_args(draw, Br, Bc, dv):
    S, V = draw.scores(Br, 2 * Bc), draw.normal(2 * Bc, dv)  # a masked half leaves a part without keys
    return taken_in(draw, S[:, :Bc], V[:Bc]), taken_in(draw, S[:, Bc:], V[Bc:])


def _of_the_first_part(merge, x):
    m, l, O = merge(*past_and_zero(x))
    return O[:, 0]


def _of_the_second_part(merge, x):
    m, l, O = merge(*reversed(past_and_zero(x)))
    return O[:, 0]


def _sums_of_many(sums, size):
    m, l = sums(*(part for state in two_states(size, size) for part in state[:2]))
    return l


def _parts_of_many(merge, size):
    m, l, O = merge(*two_states(size, size))
    return np.column_stack([l, O])


def _parts_of_values(merge, size):
    return merge(*two_states(1, size))[2]


def _guards_of_one_part(m_a, m_b):
    """Mistakes in merging: 0 is subtracted where one part is empty, and not only where both are."""
    return [
        Mistake(
            "0 was subtracted wherever one part has met no key, but the other may have: guard m, the larger of both.",
            "np.where(m == -np.inf, 0, m)",
            f"np.where({empty}, 0, m)",
        )
        for empty in (f"{m_a} == -np.inf", f"{m_b} == -np.inf", f"np.minimum({m_a}, {m_b}) == -np.inf")
    ]


sums = Exercise(
    reference=merge_sums,
    cases=_sums_cases,
    laws=(no_nan_replaced,),
    once=(proportional(_sums_of_many, "both denominators", LARGE),),
    level=2,
    minutes=10,
    hints=(
        "Both sums must be taken relative to the same maximum before they can be added. Which one is safe for both?",
        "With m = max(m_a, m_b), the first sum is multiplied by exp(m_a - m) and the second by exp(m_b - m).",
        "m_safe is m, but 0 where m is -inf, as in the safe softmax. Then return m, and "
        "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b.",
    ),
    mistakes=(
        Mistake(
            "neither side was rescaled: right only where both maxima are equal.",
            "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b",
            "l_a + l_b",
        ),
        Mistake("the first side was not rescaled: b may hold the larger maximum.", "np.exp(m_a - m_safe) * l_a", "l_a"),
        Mistake(
            "the second side was not rescaled: a may hold the larger maximum.", "np.exp(m_b - m_safe) * l_b", "l_b"
        ),
        Mistake(
            "rescaled by the inverse: the factors are e^(m_a − m) and e^(m_b − m), never above 1.",
            "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b",
            "np.exp(m_safe - m_a) * l_a + np.exp(m_safe - m_b) * l_b",
        ),
        Mistake(
            "the factors are exchanged: each side is rescaled from its own maximum.",
            "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b",
            "np.exp(m_b - m_safe) * l_a + np.exp(m_a - m_safe) * l_b",
        ),
        Mistake(
            "the smaller maximum was kept: relative to it, the exponentials of the other part may overflow.",
            "np.maximum(m_a, m_b)",
            "np.minimum(m_a, m_b)",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a part underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, 0)",
        ),
        Mistake(
            "the guarded maximum was returned: a row without keys has m = −∞, not 0.", "return m,", "return m_safe,"
        ),
        Mistake("−∞ − (−∞) is NaN: where m is −∞, subtract 0 instead.", "np.where(m == -np.inf, 0, m)", "m"),
        *(
            Mistake(
                "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
                "np.where(m == -np.inf, 0, m)",
                f"np.maximum(m, {bound})",
            )
            for bound in (-1e4, -1e6, -1e9)
        ),
        *(
            Mistake(
                "exponents were clipped: a part far below the other has a weight of its own, however small.",
                "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b",
                f"np.exp(np.maximum(m_a - m_safe, {limit})) * (m_a > -np.inf) * l_a + "
                f"np.exp(np.maximum(m_b - m_safe, {limit})) * (m_b > -np.inf) * l_b",
            )
            for limit in (-20, -30)
        ),
        *_guards_of_one_part("m_a", "m_b"),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "np.where(m == -np.inf, 0, m)",
            "0 * l_a if (m == -np.inf).all() else m",
        ),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "    m = np.maximum(m_a, m_b)",
            "    if m_a[0] == -np.inf:\n        return 1 * m_b, 1 * l_b\n"
            "    if m_b[0] == -np.inf:\n        return 1 * m_a, 1 * l_a\n    m = np.maximum(m_a, m_b)",
        ),
    ),
)

merge = Exercise(
    reference=online_softmax.merge,
    cases=_merge_cases,
    laws=(no_nan_replaced,),
    once=(
        nothing_clipped(_of_the_first_part),
        nothing_clipped(_of_the_second_part),
        proportional(_parts_of_many, "l and O of both parts", LARGE),
        proportional(_parts_of_values, "O of both parts"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Both sides must be brought to the same reference before they can be added. Which one is safe for both?",
        "With m = max(a.m, b.m), side a is multiplied by exp(a.m - m) and side b by exp(b.m - m): l and O alike.",
        "In exp(a.m - m) put 0 for m where m is -inf, as in the safe softmax. Then State(m, alpha * a.l + beta * b.l, "
        "alpha[:, None] * a.O + beta[:, None] * b.O).",
    ),
    mistakes=(
        Mistake(
            "neither side was rescaled: right only where both maxima are equal.",
            "np.exp(a.m - m_safe), np.exp(b.m - m_safe)",
            "np.ones_like(m), np.ones_like(m)",
        ),
        Mistake(
            "the first side was not rescaled: b may hold the larger maximum.", "np.exp(a.m - m_safe)", "np.ones_like(m)"
        ),
        Mistake(
            "the second side was not rescaled: a may hold the larger maximum.",
            "np.exp(b.m - m_safe)",
            "np.ones_like(m)",
        ),
        Mistake(
            "the outputs were not rescaled: O needs the same factors as l.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "a.O + b.O",
        ),
        Mistake(
            "rescaled by the inverse: the factors are e^(m_a − m) and e^(m_b − m), never above 1.",
            "np.exp(a.m - m_safe), np.exp(b.m - m_safe)",
            "np.exp(m_safe - a.m), np.exp(m_safe - b.m)",
        ),
        Mistake(
            "the factors are exchanged: each side is rescaled from its own maximum.",
            "np.exp(a.m - m_safe), np.exp(b.m - m_safe)",
            "np.exp(b.m - m_safe), np.exp(a.m - m_safe)",
        ),
        Mistake(
            "alpha is [Br] and O is [Br, dv]: alpha[:, None] makes a column of it.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "alpha * a.O + beta * b.O",
        ),
        Mistake(
            "O was divided by l: it stays a plain sum until all keys have come.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "(alpha[:, None] * a.O + beta[:, None] * b.O) / (alpha * a.l + beta * b.l)[:, None]",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a part underflows: guard −∞ alone.",
            "np.where(m == -np.inf, 0, m)",
            "np.maximum(m, 0)",
        ),
        Mistake("−∞ − (−∞) is NaN: where m is −∞, subtract 0 instead.", "np.where(m == -np.inf, 0, m)", "m"),
        *(
            Mistake(
                "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
                "np.where(m == -np.inf, 0, m)",
                f"np.maximum(m, {bound})",
            )
            for bound in (-1e4, -1e6, -1e9)
        ),
        Mistake("the guarded maximum was returned: a row without keys has m = −∞, not 0.", "State(m,", "State(m_safe,"),
        Mistake("the maximum of the first part was returned: it is the larger of both.", "State(m,", "State(a.m,"),
        Mistake(
            "the maximum of the first part alone was used: keep the larger of both.", "np.maximum(a.m, b.m)", "a.m"
        ),
        Mistake(
            "the smaller maximum was kept: relative to it, the exponentials of the other part may overflow.",
            "np.maximum(a.m, b.m)",
            "np.minimum(a.m, b.m)",
        ),
        Mistake(
            "O was weighted with l: it is a plain sum already, and needs the factors alone.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "(alpha * a.l)[:, None] * a.O + (beta * b.l)[:, None] * b.O",
        ),
        Mistake(
            "O was taken for a finished output: it is a plain sum, to be rescaled and added.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "((alpha * a.l)[:, None] * a.O + (beta * b.l)[:, None] * b.O) / (alpha * a.l + beta * b.l)[:, None]",
        ),
        Mistake("one of the outputs was not rescaled: O needs the same factors as l.", "beta[:, None] * b.O", "b.O"),
        Mistake("one of the outputs was not rescaled: O needs the same factors as l.", "alpha[:, None] * a.O", "a.O"),
        Mistake(
            "the factors of the outputs are exchanged: each side is rescaled from its own maximum.",
            "alpha[:, None] * a.O + beta[:, None] * b.O",
            "beta[:, None] * a.O + alpha[:, None] * b.O",
        ),
        Mistake(
            "lse was returned for m: the sums are relative to the maximum.", "State(m,", "State(np.logaddexp(a.m, b.m),"
        ),
        *_guards_of_one_part("a.m", "b.m"),
        Mistake(
            "one part was taken for the larger one in all rows: each row has its own maxima.",
            "np.maximum(a.m, b.m)",
            "a.m if a.m.max() >= b.m.max() else b.m",
        ),
    ),
)
