"""One more block of scores and values: ``update``."""

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
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.generators import LARGER, sweep
from flashlab.grading.laws import LARGE, no_nan_replaced, nothing_clipped, proportional
from flashlab.reference import online_softmax

inf = np.inf


def _update_cases():
    seen = state_of([0.0], [1.0], [[2.0]])
    column = np.array([[3.0]], np.float32)
    cases = [
        ("a first block", online_softmax.identity(1, 1), [[0.0, 1.0]], [[1.0], [2.0]]),
        ("a block that raises the maximum", seen, [[1.0]], column),
        ("a block that leaves the maximum as it was", seen, [[-1.0]], column),
        ("a block of equal maximum", seen, [[0.0]], column),
        ("scores too large to be exponentiated", state_of([1000.0], [1.0], [[2.0]]), [[1001.0]], column),
        ("a block that is masked out altogether", seen, [[-inf]], column),
        ("a first block that is masked out altogether", online_softmax.identity(1, 1), [[-inf]], column),
        ("a first key after a masked block", state_of([-inf], [0.0], [[0.0]]), [[-5.0]], column),
        ("a score below any number that one would take for −∞", online_softmax.identity(1, 1), [[-2e9]], column),
        ("a block that raises the maximum by little", of_one_key(0 * RISES), RISES[:, None], column),
        ("a past of which the values are 0", state_of([0.0], [1.0], [[0.0]]), [[0.0]], column),
        ("values of width 0", state_of([0.0], [2.0], np.zeros((1, 0))), [[1.0]], np.zeros((1, 0))),
        ("a block far below, of a large value", state_of([0.0], [1.0], [[0.0]]), [[-20.5]], [[1e9]]),
        ("a block very far below, of a very large value", state_of([0.0], [1.0], [[0.0]]), [[-30.5]], [[1e13]]),
        ("a past of very many keys, far below", state_of([0.0], [1e37], [[1e37]]), [[80.0]], column),
    ]
    small = [Case(name, (state, np.array(S, np.float32), np.array(V, np.float32))) for name, state, S, V in cases]
    each = (online_softmax.identity(3, 3), 100 * np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32))
    return [
        *small,
        *(
            Case(f"maxima that rise, {what}", (of_one_key(low), high[:, None], np.float32(column)))
            for what, low, high in nearly_equal()
        ),
        *(
            Case(f"blocks of a lower maximum, {what}", (of_one_key(high), low[:, None], np.float32(column)))
            for what, low, high in nearly_equal()
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
        ("weights were", state_of([0], [1], [[0]]), -1),
        ("past was", state_of([0], [3000], [[7e4]]), 0.3),
    ):
        _, *found = update(past, np.float32([[score]]), one)
        _, *exact = online_softmax.update(online_softmax.State(*map(np.float64, past)), np.float64([[score]]), one)
        if found[1].dtype == np.float16:
            return Broken(on, "O was returned in the values' float16: the state is float32.")
        if 1e-5 < max(abs(float(x.item() / y.item()) - 1) for x, y in zip(found, exact, strict=True)) < 1e-2:
            return Broken(on, f"the {what} rounded to the values' float16: all but the values is float32.")


def _update_args(draw, Br, Bc, dv):
    S, V = draw.scores(Br, 2 * Bc), draw.normal(2 * Bc, dv)  # a block has come before; regimes mask halves
    return taken_in(draw, S[:, :Bc], V[:Bc]), S[:, Bc:], V[Bc:]


# Weights of scores x relative to 0, for laws: what becomes of values that are 1, beside one that is 0.


def _of_a_block(update, x):
    m, l, O = update(online_softmax.identity(1, len(x)), x[None], np.eye(len(x), dtype=x.dtype))
    return O[0]


def _of_one_block_each(update, x):
    states = [update(state_of([0], [1], [[0]]), score.reshape(1, 1), np.ones((1, 1), x.dtype)) for score in x]
    return np.concatenate([O[:, 0] for m, l, O in states])


def _of_the_past(update, x):
    m, l, O = update(past_and_zero(x)[0], np.zeros((len(x), 1), x.dtype), np.zeros((1, 1), x.dtype))
    return O[:, 0]


WEIGHTS = _of_a_block, _of_one_block_each, _of_the_past  # of scores, that an update gives


def _past_of_many(update, size):
    """A past of many keys, which meets a block that is masked out."""
    m, l, O = update(two_states(size, size)[0], np.full((2, 1), -inf, np.float32), np.ones((1, 2), np.float32))
    return np.column_stack([l, O])


def _block_of_values(update, size):
    S, V = np.array([[0.5, -1.0], [2.5, 1.0]], np.float32), np.array([[3.0, -0.2], [0.1, 4.0]], np.float32)
    return update(two_states(1, size)[0], S, np.float32(size) * V)[2]


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
