"""The exercises on online_softmax."""

import numpy as np

from flashlab.course.exercise import Broken, Case, Exercise, Mistake, Question
from flashlab.course.laws import LARGE, no_nan_replaced, nothing_added, nothing_clipped, proportional
from flashlab.course.regimes import LARGER, sweep
from flashlab.reference import online_softmax

inf = np.inf


def merge_sums(m_a, l_a, m_b, l_b):
    """Return the maximum m [Br] of two parts of Br rows together, and their denominator l [Br] relative to it."""
    m = np.maximum(m_a, m_b)  # [Br]
    m_safe = np.where(m == -np.inf, 0, m)  # [Br]      a row that has met no key in either part
    return m, np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b


def _state(m, l, O):
    return online_softmax.State(*(np.array(part, np.float32) for part in (m, l, O)))


RISES = np.array([0.3, 0.03, 0.009, 9e-4, 9e-5, 9e-6], np.float32)  # of the maximum, by little


NEIGHBOURS = (1e4, 1e6, -1e4, -1e6)  # maxima which the next number of float32 follows: a relative tolerance ignores it


def _of_one_key(scores):
    """A state of rows that have met one key each, with these scores and the value 2."""
    return _state(scores, np.ones(len(scores)), np.full((len(scores), 1), 2))


def _nearly_equal():
    """Maxima that differ by so little that they might be taken for equal, all rows alike: (in words, lower, higher)."""
    for rise in RISES:
        yield f"all by {rise:.0e}", np.zeros(2, np.float32), np.full(2, rise)
    for m in map(np.float32, NEIGHBOURS):
        low, high = np.full(2, m), np.full(2, np.nextafter(m, np.float32(inf)))
        yield f"from {m:,.0f} to the next number of float32", low, high


def _update_cases():
    seen = _state([0.0], [1.0], [[2.0]])
    column = np.array([[3.0]], np.float32)
    cases = [
        ("a first block", online_softmax.identity(1, 1), [[0.0, 1.0]], [[1.0], [2.0]]),
        ("a block that raises the maximum", seen, [[1.0]], column),
        ("a block that leaves the maximum as it was", seen, [[-1.0]], column),
        ("a block of equal maximum", seen, [[0.0]], column),
        ("scores too large to be exponentiated", _state([1000.0], [1.0], [[2.0]]), [[1001.0]], column),
        ("a block that is masked out altogether", seen, [[-inf]], column),
        ("a first block that is masked out altogether", online_softmax.identity(1, 1), [[-inf]], column),
        ("a first key after a masked block", _state([-inf], [0.0], [[0.0]]), [[-5.0]], column),
        ("a score below any number that one would take for −∞", online_softmax.identity(1, 1), [[-2e9]], column),
        ("a block that raises the maximum by little", _of_one_key(0 * RISES), RISES[:, None], column),
        ("a past of which the values are 0", _state([0.0], [1.0], [[0.0]]), [[0.0]], column),
        ("values of width 0", _state([0.0], [2.0], np.zeros((1, 0))), [[1.0]], np.zeros((1, 0))),
        ("a block far below, of a large value", _state([0.0], [1.0], [[0.0]]), [[-20.5]], [[1e9]]),
        ("a block very far below, of a very large value", _state([0.0], [1.0], [[0.0]]), [[-30.5]], [[1e13]]),
        ("a past of very many keys, far below", _state([0.0], [1e37], [[1e37]]), [[80.0]], column),
    ]
    small = [Case(name, (state, np.array(S, np.float32), np.array(V, np.float32))) for name, state, S, V in cases]
    each = (online_softmax.identity(3, 3), 100 * np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32))
    return [
        *small,
        *(
            Case(f"maxima that rise, {what}", (_of_one_key(low), high[:, None], np.float32(column)))
            for what, low, high in _nearly_equal()
        ),
        *(
            Case(f"blocks of a lower maximum, {what}", (_of_one_key(high), low[:, None], np.float32(column)))
            for what, low, high in _nearly_equal()
        ),
        Case("the largest score in another place in each row", each),
        *sweep(_update_args, sizes=LARGER),
        *(Case(f"{it.property}, values in float16", _with_half(it.args)) for it in sweep(_update_args, sizes=LARGER)),
    ]


def _with_half(args):
    state, S, V = args
    return state, S, V.astype(np.float16)


def _state_stays_wide(update):
    """Law of its own inputs: where values come in float16, neither the weights nor the past are rounded to it."""
    one, on = np.float16([[1]]), "one key whose value is in float16"
    for what, past, score in (
        ("weights were", _state([0], [1], [[0]]), -1),
        ("past was", _state([0], [3000], [[7e4]]), 0.3),
    ):
        _, *found = update(past, np.float32([[score]]), one)
        _, *exact = online_softmax.update(online_softmax.State(*map(np.float64, past)), np.float64([[score]]), one)
        if found[1].dtype == np.float16:
            return Broken(on, "O was returned in the values' float16: the state is float32.")
        if 1e-5 < max(abs(float(x.item() / y.item()) - 1) for x, y in zip(found, exact, strict=True)) < 1e-2:
            return Broken(on, f"the {what} rounded to the values' float16: all but the values is float32.")


def _taken_in(draw, S, V):
    """The state of rows with the scores S [Br, Bc] and the values V [Bc, dv]."""
    return online_softmax.update(online_softmax.identity(len(S), V.shape[1], draw.dtype), S, V)


def _update_args(draw, Br, Bc, dv):
    S, V = draw.scores(Br, 2 * Bc), draw.normal(2 * Bc, dv)  # a block has come before; regimes mask halves
    return _taken_in(draw, S[:, :Bc], V[:Bc]), S[:, Bc:], V[Bc:]


def _merge_cases():
    low, high, none = _state([0.0], [1.0], [[2.0]]), _state([1.0], [2.0], [[3.0]]), online_softmax.identity(1, 1)
    cases = [
        ("two parts of equal maximum", low, _state([0.0], [3.0], [[5.0]])),
        ("a second part with the larger maximum", low, high),
        ("a first part with the larger maximum", high, low),
        ("two parts with maxima below 0", _state([-3.0], [2.0], [[1.0]]), _state([-2.0], [1.0], [[1.0]])),
        ("a second part that has met no key", high, none),
        ("a first part that has met no key", none, high),
        ("a maximum below any number that one would take for −∞", _state([-2e9], [1.0], [[2.0]]), none),
        ("two parts that have met no key", none, none),
        (
            "rows of which each has met keys in one part only",
            _state([-inf, 1.0, -inf], [0.0, 2.0, 0.0], [[0.0], [3.0], [0.0]]),
            _state([2.0, -inf, -inf], [1.0, 0.0, 0.0], [[4.0], [0.0], [0.0]]),
        ),
        ("a first part of which the values are 0", _state([0.0], [1.0], [[0.0]]), low),
        ("a second part of which the values are 0", low, _state([0.0], [1.0], [[0.0]])),
        ("values of width 0", *(_state([m], [2.0], np.zeros((1, 0))) for m in (0.0, 1.0))),
        ("maxima too large to be exponentiated", _state([1000.0], [1.0], [[2.0]]), _state([1001.0], [1.0], [[3.0]])),
        ("a first part of many keys, far below", _state([0.0], [1e10], [[1e10]]), _state([20.5], [1.0], [[1.0]])),
        ("a second part of many keys, far below", _state([20.5], [1.0], [[1.0]]), _state([0.0], [1e10], [[1e10]])),
        ("a first part of more keys, further below", _state([0.0], [1e14], [[1e14]]), _state([30.5], [1.0], [[1.0]])),
        ("a maximum that rises by little", _of_one_key(0 * RISES), _of_one_key(RISES)),
        ("a first part far below, of more keys still", _state([0.0], [1e37], [[1e37]]), _state([80.0], [1.0], [[1.0]])),
        (
            "a second part far below, of more keys still",
            _state([80.0], [1.0], [[1.0]]),
            _state([0.0], [1e37], [[1e37]]),
        ),
        ("a first part of very many keys, far below", _state([0.0], [1e12], [[2e12]]), _state([45.0], [1.0], [[3.0]])),
    ]
    small = [Case(name, (a, b)) for name, a, b in cases]
    for what, low, high in _nearly_equal():
        a, b = _of_one_key(low), _of_one_key(high)
        small += [Case(f"maxima that rise, {what}", (a, b)), Case(f"maxima that fall, {what}", (b, a))]
    return [*small, *sweep(_merge_args, sizes=LARGER)]


def _sums_cases():
    return [Case(case.property, tuple(part for state in case.args for part in state[:2])) for case in _merge_cases()]


def _merge_args(draw, Br, Bc, dv):
    S, V = draw.scores(Br, 2 * Bc), draw.normal(2 * Bc, dv)  # a masked half leaves a part without keys
    return _taken_in(draw, S[:, :Bc], V[:Bc]), _taken_in(draw, S[:, Bc:], V[Bc:])


# Weights of scores x relative to 0, for laws: what becomes of values that are 1, beside one that is 0.


def _of_a_block(update, x):
    m, l, O = update(online_softmax.identity(1, len(x)), x[None], np.eye(len(x), dtype=x.dtype))
    return O[0]


def _of_one_block_each(update, x):
    states = [update(_state([0], [1], [[0]]), score.reshape(1, 1), np.ones((1, 1), x.dtype)) for score in x]
    return np.concatenate([O[:, 0] for m, l, O in states])


def _of_the_past(update, x):
    m, l, O = update(_past_and_zero(x)[0], np.zeros((len(x), 1), x.dtype), np.zeros((1, 1), x.dtype))
    return O[:, 0]


def _of_the_first_part(merge, x):
    m, l, O = merge(*_past_and_zero(x))
    return O[:, 0]


def _of_the_second_part(merge, x):
    m, l, O = merge(*reversed(_past_and_zero(x)))
    return O[:, 0]


WEIGHTS = _of_a_block, _of_one_block_each, _of_the_past  # of scores, that an update gives


def _past_and_zero(x):
    """Two states: rows of one key with scores x and the value 1, and rows of one key with score 0 and the value 0."""
    return _state(x, np.ones(len(x)), np.ones((len(x), 1))), _state(0 * x, np.ones(len(x)), np.zeros((len(x), 1)))


# Results that are multiples of an input, which is given ``size`` times as large, for laws.


def _two_states(size_of_l, size_of_O):
    """Two states of two rows, of maxima that are not equal, with their sums multiplied by these sizes."""
    l, O = size_of_l * np.array([3.0, 1.5]), size_of_O * np.array([[6.0, -0.3], [-2.0, 0.7]])
    return _state([0.0, 2.0], l, O), _state([1.0, 0.5], l[::-1], O[::-1])


def _sums_of_many(sums, size):
    m, l = sums(*(part for state in _two_states(size, size) for part in state[:2]))
    return l


def _parts_of_many(merge, size):
    m, l, O = merge(*_two_states(size, size))
    return np.column_stack([l, O])


def _parts_of_values(merge, size):
    return merge(*_two_states(1, size))[2]


def _past_of_many(update, size):
    """A past of many keys, which meets a block that is masked out."""
    m, l, O = update(_two_states(size, size)[0], np.full((2, 1), -inf, np.float32), np.ones((1, 2), np.float32))
    return np.column_stack([l, O])


def _block_of_values(update, size):
    S, V = np.array([[0.5, -1.0], [2.5, 1.0]], np.float32), np.array([[3.0, -0.2], [0.1, 4.0]], np.float32)
    return update(_two_states(1, size)[0], S, np.float32(size) * V)[2]


def _mean_of_values(finish, size):
    return finish(_two_states(1, size)[0])[0]


def _mean_of_many(finish, size):
    """The mean where both sums are so many times larger; it stays, so it is multiplied here."""
    return size * finish(_two_states(size, size)[0])[0]


def _finish_cases():
    return [
        Case("one row", (_state([2.0], [3.0], [[6.0]]),)),
        Case("a large maximum", (_state([1000.0], [2.0], [[4.0]]),)),
        Case("a maximum near 0", (_state([5e-4], [1.0], [[4.0]]),)),
        Case("a row that has met no key", (online_softmax.identity(1, 1),)),
        Case("a row whose values are 0", (_state([0.0], [2.5], [[0.0]]),)),
        Case("a row that has met very many keys", (_state([0.0], [1e30], [[2e30]]),)),
        *sweep(_finish_args, sizes=LARGER),
    ]


def _finish_args(draw, Br, Bc, dv):
    return (_taken_in(draw, draw.scores(Br, Bc), draw.normal(Bc, dv)),)


def _mean_of_ones(finish, state):
    """The mean of values that are all 1; 1 where no key was met."""
    wide = [np.float64(part) for part in state]
    O, _ = finish(online_softmax.State(*wide[:2], wide[1][:, None]))
    return np.where(state.l == 0, 1, np.asarray(O)[:, 0])


keep = Question(
    answer=2,
    because="The block's maximum, and its sum of exponentials relative to that maximum.",
    hints=(
        "The sum alone is not enough: relative to what was it taken?",
        "Think of adding 3 km and 500 m. What do you need to know beside the two numbers?",
        "A sum, and the maximum that was subtracted before the exponentials were taken.",
    ),
    wrong=(
        (1, "The sum alone is not enough: two sums taken relative to different maxima cannot be added. Read on."),
        ("all", "That would be safe, but the first block is to be forgotten. Far less will do. Read on."),
        (12, "That is all of it, but the first block is to be forgotten. Far less will do. Read on."),
        (3, "One too many, as long as it is about the denominator. What would the third be for? Read on."),
    ),
)


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

update = Exercise(
    reference=online_softmax.update,
    cases=_update_cases,
    laws=(no_nan_replaced,),
    once=(
        *map(nothing_clipped, WEIGHTS),
        _state_stays_wide,
        proportional(_past_of_many, "l and O of the past", LARGE),
        proportional(_block_of_values, "V and the past's O"),
    ),
    level=2,
    minutes=10,
    hints=(
        "The old sums were taken relative to m_i, the new ones are relative to m_new: which factor changes the one "
        "into the other?",
        "alpha = exp(m_i - m_new), and both l_i and O_i are multiplied by it before the block's own sums are added.",
        "m_new = max(m_i, max of S_ij); m_safe = m_new, but 0 where it is -inf; alpha = exp(m_i - m_safe); "
        "P_ij = exp(S_ij - m_safe[:, None]); then l_i and O_i, each alpha times the old plus the block's part.",
    ),
    mistakes=(
        Mistake("the old sum was not rescaled: multiply it by e^(m_old − m_new).", "alpha * l_i +", "l_i +"),
        Mistake(
            "the old output was not rescaled: multiply it by e^(m_old − m_new).", "alpha[:, None] * O_i +", "O_i +"
        ),
        Mistake(
            "the past was rescaled twice: alpha brings it to m_new at once.",
            "np.exp(m_i - m_safe)",
            "np.exp(m_i - m_safe) ** 2",
        ),
        Mistake(
            "the past was rescaled only where the maximum rises much: a rise of any size changes it.",
            "np.exp(m_i - m_safe)",
            "np.where(m_safe - m_i > 0.01, np.exp(m_i - m_safe), np.float32(1))",
        ),
        Mistake(
            "neither old sum was rescaled: both were taken relative to m_old.",
            "np.exp(m_i - m_safe)",
            "np.ones_like(m_i)",
        ),
        Mistake(
            "rescaled by the inverse: the factor is e^(m_old − m_new), never above 1.",
            "np.exp(m_i - m_safe)",
            "np.exp(np.where(m_i == -np.inf, -np.inf, m_safe - m_i))",
        ),
        Mistake(
            "rescaled by the inverse: the factor is e^(m_old − m_new), never above 1.",
            "np.exp(m_i - m_safe)",
            "np.exp(m_safe - m_i)",
        ),
        Mistake(
            "alpha is [Br] and O_i is [Br, dv]: alpha[:, None] makes a column of it.",
            "alpha[:, None] * O_i",
            "alpha * O_i",
        ),
        Mistake(
            "O was divided by l: it stays a plain sum until all keys have come.",
            "State(m_new, l_i, O_i)",
            "State(m_new, l_i, O_i / l_i[:, None])",
        ),
        Mistake("the old maximum was returned, but the sums are relative to m_new.", "State(m_new,", "State(m_i,"),
        Mistake(
            "the block was measured by its own maximum, the past by m_new: subtract m_new from both.",
            "S_ij - m_safe[:, None]",
            "S_ij - S_ij.max(-1, keepdims=True)",
        ),
        Mistake("one maximum for all rows: each row has its own.", "S_ij.max(-1, initial", "S_ij.max(initial"),
        Mistake("the values were weighted with scores: weight them with exponentials.", "P_ij @ V_j", "S_ij @ V_j"),
        Mistake(
            "the maximum of the block alone was used: keep the larger of it and m_i.",
            "np.maximum(m_i, S_ij.max(-1, initial=-np.inf))",
            "S_ij.max(-1, initial=-np.inf)",
        ),
        Mistake("no maximum was subtracted from the scores.", "S_ij - m_safe[:, None]", "S_ij"),
        Mistake(
            "−∞ − (−∞) is NaN: where m_new is −∞, subtract 0 instead.", "np.where(m_new == -np.inf, 0, m_new)", "m_new"
        ),
        Mistake(
            "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
            "np.where(m_new == -np.inf, 0, m_new)",
            "np.maximum(m_new, -1e4)",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "np.where(m_new == -np.inf, 0, m_new)",
            "np.maximum(m_new, 0)",
        ),
        Mistake(
            "the guarded maximum was returned: a row that has met no key has m = −∞, not 0.",
            "State(m_new,",
            "State(m_safe,",
        ),
        Mistake(
            "the weights were divided by the block's sum: O and l stay plain sums until all keys have come.",
            "    l_i = ",
            "    P_ij = P_ij / P_ij.sum(-1, keepdims=True)\n    l_i = ",
        ),
        Mistake(
            "the block's output was divided by the block's sum: O stays a plain sum until all keys have come.",
            "P_ij @ V_j",
            "(P_ij / P_ij.sum(-1, keepdims=True)) @ V_j",
        ),
        Mistake(
            "alpha rescales what came before, not the block: the block is relative to m_new already.",
            "    return ",
            "    l_i, O_i = (state.l + P_ij.sum(-1)) * alpha, alpha[:, None] * (state.O + P_ij @ V_j)\n    return ",
        ),
        Mistake(
            "the maximum was frozen at the first block: a later block may hold a larger one.",
            "np.maximum(m_i, S_ij.max(-1, initial=-np.inf))",
            "np.where(m_i == -np.inf, S_ij.max(-1, initial=-np.inf), m_i)",
        ),
        Mistake(
            "0 was subtracted wherever the block is masked, but the past may hold keys: guard m_new.",
            "np.where(m_new == -np.inf, 0, m_new)",
            "np.where(S_ij.max(-1, initial=-np.inf) == -np.inf, 0, m_new)",
        ),
        Mistake(
            "0 was subtracted in the first block: guard m_new, and not the old maximum.",
            "np.where(m_new == -np.inf, 0, m_new)",
            "np.where(m_i == -np.inf, 0, m_new)",
        ),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "np.where(m_new == -np.inf, 0, m_new)",
            "0 * l_i if (m_new == -np.inf).all() else m_new",
        ),
        Mistake(
            "the past was rescaled only where the maxima of all rows rise: each row has its own.",
            "np.exp(m_i - m_safe)",
            "np.exp(m_i - m_safe) if (m_new > m_i).all() else np.ones_like(l_i)",
        ),
        Mistake(
            "the past was rescaled only where the maximum rises much: a rise of any size changes it.",
            "np.exp(m_i - m_safe)",
            "np.where(m_safe - m_i > 0.001, np.exp(m_i - m_safe), np.float32(1))",
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

finish = Exercise(
    reference=online_softmax.finish,
    cases=_finish_cases,
    laws=(no_nan_replaced, nothing_added(_mean_of_ones)),
    once=(proportional(_mean_of_values, "O"), proportional(_mean_of_many, "l and O", LARGE)),
    level=1,
    minutes=5,
    hints=(
        "O is a sum of values weighted with exponentials. What turns such a sum into a weighted mean?",
        "Divide O by l. The log-sum-exp is m + log(l): the exponentials in l were taken relative to m.",
        "Guard the row that met no key: where l is 0, divide by 1 and let lse be -inf.",
    ),
    mistakes=(
        Mistake(
            "the maximum is missing from lse: the exponentials in l were relative to m.", "state.m + np.log", "np.log"
        ),
        Mistake("lse is in units of log₂: use the natural logarithm.", "np.log(l_safe)", "np.log2(l_safe)"),
        Mistake("the output was not divided by l.", "state.O / l_safe[:, None]", "state.O"),
        Mistake("0 / 0 is NaN: where l is 0, divide by 1.", "np.where(state.l == 0, 1, state.l)", "state.l"),
        Mistake("m was returned in the place of lse = m + log l.", "state.m + np.log(l_safe)", "state.m"),
        Mistake("the logarithm was subtracted: lse = m + log l.", "state.m + np.log", "state.m - np.log"),
        Mistake(
            "e^m overflows: log(e^m · l) is m + log l.", "state.m + np.log(l_safe)", "np.log(np.exp(state.m) * l_safe)"
        ),
        Mistake("a row that met no key has lse −∞, not 0.", "state.l == 0, -np.inf,", "state.l == 0, 0,"),
        Mistake("l was returned instead of lse = m + log l.", "state.m + np.log(l_safe)", "l_safe"),
        Mistake("m and log l were multiplied: lse = m + log l.", "state.m + np.log", "state.m * np.log"),
        Mistake("O was multiplied by l: divide by it.", "state.O / l_safe", "state.O * l_safe"),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "    return ",
            "    if (state.l == 0).any():\n        return 0 * state.O, np.full_like(state.m, -np.inf)\n    return ",
        ),
        *(
            Mistake(
                "a row without keys has l = 0: maxima may lie below any number.",
                "    l_safe = ",
                f"    state = state._replace(l=np.where(state.m < {bound}, 0, state.l))\n    l_safe = ",
            )
            for bound in (-1e4, -1e6)
        ),
    ),
)


quiz_size = Question(
    answer=64,
    because="4,096² numbers of 4 bytes are 2²⁴ · 4 = 2²⁶ bytes, and a MiB is 2²⁰.",
    hints=("How many scores are there?", "4,096² = 2²⁴ scores, and a float32 has 4 bytes.", "2²⁶ / 2²⁰"),
    wrong=((32, "That is float16. A float32 has 4 bytes."), (67, "Those are MB, of 10⁶ bytes. A MiB has 2²⁰.")),
)

quiz_passes = Question(
    answer=6,
    because="S out and in, the masked S out and in, P out and in.",
    hints=(
        "Which kernels run, and which squares does each load and store?",
        "Without a mask there are 4 passes. The mask is a kernel of its own.",
        "The mask kernel loads S and stores the masked S.",
    ),
    wrong=(
        (4, "That is without the mask, which is a kernel of its own."),
        (2, "A mask forbids half of the scores, but they travel all the same, as −∞. It is one kernel more."),
        (5, "The mask kernel loads S and also stores the masked S."),
    ),
)

quiz_gate = Question(
    answer=0.25,
    because="The arithmetic needs 50 / 200 of the time that the bytes need, so it runs for a quarter of it.",
    hints=(
        "Which of the two clocks stops later?",
        "While a byte comes, the card could do 200 FLOPs, and the kernel has 50 for it.",
        "50 / 200",
    ),
    wrong=(
        (4, "Upside down: a share is at most 1."),
        (1, "That is to the right of the ridge. This kernel is left of it."),
    ),
)

quiz_half = Question(
    answer="zeros",
    because="e^10.5 = 36,316 fits into float16, but the sum of three does not: it is ∞, and 36,316 / ∞ = 0.",
    hints=(
        "The largest float16 is 65,504. Which step leaves it first?",
        "e^10.5 is 36,316. Three of them are more than 65,504.",
        "A finite number divided by ∞ is ...",
    ),
    wrong=(
        ("right", "Each exponential fits, but does their sum?"),
        ("nan", "That takes ∞ / ∞. Here the exponentials are finite, and only the sum is ∞."),
    ),
)

quiz_merged = Question(
    answer=2.5,
    because="m = ln 2. The first sum is rescaled by e^(0 − ln 2) = 1/2, the second by 1: 3/2 + 1.",
    hints=(
        "Which maximum do both together have?",
        "The first sum is multiplied by e^(m_a − m) = e^(−ln 2).",
        "3 · 1/2 + 1 · 1",
    ),
    wrong=(
        (4, "The sums were added as they are. They are relative to different maxima."),
        (7, "Rescaled by the inverse: e^(m_a − m) is 1/2, not 2."),
        (5, "That is relative to the smaller maximum. Take the larger one."),
    ),
)

quiz_lse = Question(
    answer=0.6931,
    because="The sum of exponentials is twice as large, and log(2 x) = log x + log 2.",
    hints=(
        "What is the sum of exponentials of both parts, if each has the sum x?",
        "It is 2 x. What is its logarithm?",
        "log 2",
    ),
    wrong=(
        (2, "The sum of exponentials doubles. The lse is its logarithm."),
        (1, "That would be the logarithm to base 2. The lse is a natural logarithm."),
        (0, "The maximum may stay as it is, but the sum of exponentials doubles."),
    ),
)
