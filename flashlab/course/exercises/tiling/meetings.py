"""Tiles of queries meet tiles of keys: ``inside`` with the keys in the inner loop, ``meet`` with them outside."""

from typing import NamedTuple

import numpy as np

from flashlab.course.exercises.tiling.one_tile_at_a_time import bc_at_a_time
from flashlab.grading.exercise import Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import FINITE, LARGER, sweep
from flashlab.grading.laws import no_nan_replaced, proportional
from flashlab.reference import online_softmax

inf = np.inf

forgetful = edited(edited(online_softmax.update, "alpha * l_i +", "l_i +"), "alpha[:, None] * O_i +", "O_i +")

zero_guarded = edited(
    edited(online_softmax.update, "np.where(m_new == -np.inf, 0, m_new)", "np.maximum(m_new, 0)"),
    "State(m_new,",
    "State(m_safe,",
)

guarded_by = {
    bound: edited(online_softmax.update, "np.where(m_new == -np.inf, 0, m_new)", f"np.maximum(m_new, {bound})")
    for bound in (-1e4, -1e6, -1e9)
}


class Output(NamedTuple):
    """What attention leaves of some rows."""

    O: np.ndarray  # [Br, dv]
    lse: np.ndarray  # [Br]


def drawn(seed, *shapes, factor=1.0):
    """Return arrays of these shapes in float32, drawn from the normal distribution."""
    rng = np.random.default_rng(seed)
    return tuple(np.float32(factor * rng.normal(size=shape)) for shape in shapes)


def keys_inside(Q_i, K, V, Bc):
    """Let one tile of queries Q_i [Br, d] meet K [Nk, d] and V [Nk, dv], Bc at a time."""
    scale = Q_i.dtype.type(Q_i.shape[1] ** -0.5)
    state = online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype)
    for start in range(0, len(K), Bc):
        K_j, V_j = K[start : start + Bc], V[start : start + Bc]  # [Bc, d], [Bc, dv]
        S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
        state = online_softmax.update(state, S_ij, V_j)
    return Output(*online_softmax.finish(state))


def _of_tiles(Q_i, K, V, Bc, together):
    """O from the outputs that tiles give by themselves, as is not to be done."""
    parts = [keys_inside(Q_i, K[at : at + Bc], V[at : at + Bc], Bc).O for at in range(0, len(K), Bc)]
    return together(parts, axis=0) if parts else np.zeros((len(Q_i), V.shape[1]), V.dtype)


def _inside_cases():
    return [
        Case("one query, one key", (*drawn(1, (1, 5), (1, 5), (1, 3)), 1)),
        Case("all keys in one tile", (*drawn(2, (2, 4), (3, 4), (3, 2)), 3)),
        Case("two whole tiles", (*drawn(3, (2, 4), (4, 4), (4, 2)), 2)),
        Case("a last tile that is not full", (*drawn(4, (2, 4), (5, 4), (5, 2)), 2)),
        Case("a tile larger than all keys", (*drawn(5, (2, 4), (3, 4), (3, 2)), 8)),
        Case("many tiles", (*drawn(7, (2, 4), (41, 4), (41, 2)), 2)),
        Case("keys far below, of large values", (*_far_below(-20.5, 1e9), 2)),
        Case("keys very far below, of very large values", (*_far_below(-30.5, 1e13), 2)),
        Case("first keys far below, of large values", (*(x[::-1] for x in _far_below(-20.5, 1e9)), 2)),
        *(Case(f"{Nk} keys, four at a time", (*drawn(Nk, (2, 4), (Nk, 4), (Nk, 2)), 4)) for Nk in range(5, 9)),
        *sweep(_inside_args, regimes=FINITE, sizes=LARGER),
        Case("keys with scores below −10³⁸", (*_far_apart(-1e38, -3e38), 1)),
        Case("keys with scores above 10³⁸", (*_far_apart(3e38, 1e38), 1)),
        Case("eight tiles of many keys", (*drawn(9, (2, 4), (1040, 4), (1040, 2)), 130)),
        Case("keys whose scores are nearly equal, and far from 0", (*_far_apart(1e4, 1e4 + 0.1, 1e4, 1e4 + 0.2), 1)),
    ]


def _far_below(score, value):
    """Q_i, K and V of a query that meets two keys with a score of 0 and the value 0, then two far below."""
    column = np.array([[0.0], [0.0], [1.0], [1.0]], np.float32)
    return np.ones((1, 1), np.float32), np.float32(score) * column, np.float32(value) * column


def _far_apart(*scores):
    """Q_i, K and V of a query that meets keys with these scores and the values 1, 2, …"""
    column = np.array(scores, np.float32)[:, None]
    return np.ones((1, 1), np.float32), column, np.arange(1, len(scores) + 1, dtype=np.float32)[:, None]


def _inside_args(draw, Br, Nk, d, dv, Bc):
    Q_i, K = draw.queries_and_keys(Br, Nk, d)
    return Q_i, K, draw.normal(Nk, dv), Bc


def _means(inside, size):
    """The output of queries that meet values so many times larger."""
    Q_i, K, V = drawn(8, (2, 4), (5, 4), (5, 2))
    return inside(Q_i, K, np.float32(size) * V, 2)[0]


inside = Exercise(
    reference=keys_inside,
    cases=_inside_cases,
    laws=(no_nan_replaced, bc_at_a_time),
    once=(proportional(_means, "V"),),
    sways=True,
    level=2,
    minutes=10,
    hints=(
        "Start with online_softmax.identity, take in one tile of keys after the other, and finish once, at the end.",
        "In the loop: K_j, V_j = K[start : start + Bc], V[start : start + Bc]; the scores are scale * Q_i K_jᵀ.",
        "S_ij = Q_i.shape[1] ** -0.5 * (Q_i @ K_j.T), then state = online_softmax.update(state, S_ij, V_j); after the "
        "loop return online_softmax.finish(state).",
    ),
    mistakes=(
        Mistake("the scale was forgotten: scores are divided by √d.", "Q_i.shape[1] ** -0.5", "1"),
        Mistake("divided by √dv: d is the width of Q and K.", "Q_i.shape[1] ** -0.5", "V.shape[1] ** -0.5"),
        Mistake("divided by d: scores are divided by √d.", "** -0.5", "** -1.0"),
        Mistake("divided by √Br: d is the width of Q and K.", "Q_i.shape[1] ** -0.5", "Q_i.shape[0] ** -0.5"),
        Mistake("divided by √Nk: d is the width of Q and K.", "Q_i.shape[1] ** -0.5", "max(len(K), 1) ** -0.5"),
        Mistake(
            "divided by the root of a tile's keys: d is the width of Q and K.",
            "scale * (Q_i @ K_j.T)",
            "np.float32(len(K_j) ** -0.5) * (Q_i @ K_j.T)",
        ),
        Mistake("the last, shorter tile of keys was dropped.", "range(0, len(K), Bc)", "range(0, len(K) - Bc + 1, Bc)"),
        Mistake(
            "the last tile begins too early: keys that it shares with the one before count twice.",
            "K_j, V_j = K[start",
            "start = max(min(start, len(K) - Bc), 0); K_j, V_j = K[start",
        ),
        Mistake(
            "the last tile was filled up with zero keys: a score of 0 is not −∞.",
            "K_j, V_j = K[start : start + Bc], V[start : start + Bc]",
            "K_j, V_j = (X[start : start + Bc] for X in (K, V)); "
            "K_j, V_j = (np.concatenate([X, np.zeros((Bc - len(X), X.shape[1]), X.dtype)]) for X in (K_j, V_j))",
        ),
        Mistake("the past was not rescaled when the maximum rose.", "online_softmax.update(", "forgetful("),
        Mistake(
            "online_softmax.update returns a new state and leaves the old one as it is: keep what it returns.",
            "state = online_softmax.update(",
            "online_softmax.update(",
        ),
        Mistake(
            "the state has the wrong width: O is as wide as V.",
            "online_softmax.identity(len(Q_i), V.shape[1]",
            "online_softmax.identity(len(Q_i), Q_i.shape[1]",
        ),
        Mistake(
            "every tile starts afresh: the state of the tiles before is lost.",
            "online_softmax.update(state,",
            "online_softmax.update(online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype),",
        ),
        Mistake(
            "the output was not divided by l.",
            "*online_softmax.finish(state)",
            "state.O, online_softmax.finish(state)[1]",
        ),
        Mistake(
            "the state was finished inside the loop: each tile divides by its own l.",
            "state = online_softmax.update(state, S_ij, V_j)",
            "state = online_softmax.update(state, S_ij, V_j); "
            "state = state._replace(O=online_softmax.finish(state)[0])",
        ),
        Mistake(
            "that is the mean of what each tile gives by itself, but tiles weigh unequally: carry a state through all.",
            "*online_softmax.finish(state)",
            "_of_tiles(Q_i, K, V, Bc, np.mean), online_softmax.finish(state)[1]",
        ),
        Mistake(
            "that is the sum of what each tile gives by itself, each with weights of sum 1: carry a state through all.",
            "*online_softmax.finish(state)",
            "_of_tiles(Q_i, K, V, Bc, np.sum), online_softmax.finish(state)[1]",
        ),
        Mistake(
            "m was returned instead of lse = m + log l.",
            "*online_softmax.finish(state)",
            "online_softmax.finish(state)[0], state.m",
        ),
        Mistake(
            "the values of the first tile were used for every tile: they move on with the keys.",
            "V[start : start + Bc]",
            "V[: len(K[start : start + Bc])]",
        ),
        Mistake(
            "a last tile of one key was dropped: the loop ends at len(K), and range leaves that out by itself.",
            "range(0, len(K), Bc)",
            "range(0, len(K) - 1, Bc)",
        ),
        Mistake("K_j was not transposed: the scores are Q_i K_jᵀ, [Br, Bc].", "Q_i @ K_j.T", "Q_i @ K_j"),
        Mistake(
            "the state was returned: finish it, once, after the loop.", "Output(*online_softmax.finish(state))", "state"
        ),
    ),
)


def meeting(Q_i, K_j, V_j, O_i, lse_i):
    """Return what slow memory holds of a tile of queries after one more tile of keys, keys outside.

    Q_i [Br, d]; K_j [Bc, d]; V_j [Bc, dv]; O_i [Br, dv] and lse_i [Br]: the result so far, 0 and -inf before the first.
    """
    scale = Q_i.dtype.type(Q_i.shape[1] ** -0.5)
    S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
    state = online_softmax.State(lse_i, np.ones_like(lse_i), O_i)
    state = online_softmax.update(state, S_ij, V_j)
    return Output(*online_softmax.finish(state))


def _of_exponentials(a, b):
    """Two outputs brought together by e^lse, as is not to be done."""
    weights = np.exp(a.lse), np.exp(b.lse)
    O = weights[0][:, None] * a.O + weights[1][:, None] * b.O
    return O / sum(weights)[:, None], np.log(sum(weights))


def _meeting_cases():
    def after(seed, Br, Bc, factor=1.0):
        Q, K, V, earlier = drawn(seed, (Br, 4), (Bc, 4), (Bc, 2), (3, 4), factor=factor)
        return Q, K, V, *keys_inside(Q, earlier, earlier[:, :2], 3)

    nothing = np.zeros((2, 2), np.float32), np.full(2, -inf, np.float32)
    some = np.array([[0.0], [2.0], [3.0]], np.float32), np.array([-inf, 1.0, 2.0], np.float32)
    zeros, single = (np.zeros((1, 1), np.float32), np.ones(1, np.float32)), np.ones((1, 1), np.float32)
    first = *drawn(10, (2, 4), (3, 4), (3, 2)), *nothing
    one = (*drawn(11, (1, 1), (2, 1), (2, 1)), np.array([[2.0]], np.float32), np.array([0.0], np.float32))
    return [
        Case("one query, two keys, one key before them", one),
        Case("the first meeting", first),
        Case("a second meeting", after(12, 2, 3)),
        Case("a second meeting in which some maxima rise", after(13, 5, 4, factor=2)),
        Case("rows some of which have met no key", (*drawn(17, (3, 4), (2, 4), (2, 1)), *some)),
        Case("rows of which the first has met keys", (*drawn(18, (3, 4), (2, 4), (2, 1)), *(x[::-1] for x in some))),
        Case("an output of zeros, of keys that it has met", (*drawn(19, (1, 4), (2, 4), (2, 1)), *zeros)),
        Case("a past far below, of a large value", (single, 0 * single, 0 * single, 1e9 * single, np.float32([-20.5]))),
        Case("a past very far below", (single, 0 * single, 0 * single, 1e13 * single, np.float32([-30.5]))),
        Case("a tile far below, of a large value", (single, -20.5 * single, 1e9 * single, 0 * single, np.float32([0]))),
        Case("a tile very far below", (single, -30.5 * single, 1e13 * single, 0 * single, np.float32([0]))),
        *(
            Case(
                f"a tile a little {what} a past that is far from 0", (*_far_apart(score), 5 * single, np.float32([lse]))
            )
            for what, score, lse in (("above", 1e4 + 0.1, 1e4), ("below", 1e4, 1e4 + 0.1), ("above", -1e4, -1e4 - 0.1))
        ),
        *sweep(_meeting_args, regimes=FINITE, sizes=LARGER),
        Case("a first meeting, below −10³⁸", (*_far_apart(-2e38), 0 * single, np.full(1, -inf, np.float32))),
        *(
            Case(f"{what} below −10³⁸", (*_far_apart(score), 5 * single, np.float32([lse])))
            for what, score, lse in (
                ("a tile far above a past", -1e38, -3e38),
                ("a tile far below a past", -3e38, -1e38),
            )
        ),
        *(
            Case(f"{what} above 10³⁸", (*_far_apart(score), 5 * single, np.float32([lse])))
            for what, score, lse in (("a tile far above a past", 3e38, 1e38), ("a tile far below a past", 1e38, 3e38))
        ),
    ]


def _meeting_args(draw, Br, Bc, d, dv):
    Q_i, K = draw.queries_and_keys(Br, 3 + Bc, d)  # three keys have come before
    V = draw.normal(3 + Bc, dv)
    return Q_i, K[3:], V[3:], *keys_inside(Q_i, K[:3], V[:3], 3)


def _means_of_both(meet, size):
    """The output where the values, and the output before, are so many times larger."""
    Q_i, K, V = drawn(20, (2, 4), (6, 4), (6, 2))
    V = np.float32(size) * V
    return meet(Q_i, K[3:], V[3:], *keys_inside(Q_i, K[:3], V[:3], 3))[0]


meet = Exercise(
    reference=meeting,
    cases=_meeting_cases,
    laws=(no_nan_replaced,),
    once=(proportional(_means_of_both, "V and the output before"),),
    sways=True,
    level=2,
    minutes=10,
    hints=(
        "O_i and lse_i must become a state (m, l, O) again before online_softmax.update can take in the tile.",
        "A finished row is the state of one key whose score is lse and whose value is O: its exponential, relative to "
        "itself, is 1.",
        "state = online_softmax.State(lse_i, np.ones_like(lse_i), O_i); then update and finish.",
    ),
    mistakes=(
        Mistake("the scale was forgotten: scores are divided by √d.", "Q_i.shape[1] ** -0.5", "1"),
        Mistake("divided by √dv: d is the width of Q and K.", "Q_i.shape[1] ** -0.5", "V_j.shape[1] ** -0.5"),
        Mistake("divided by d: scores are divided by √d.", "** -0.5", "** -1.0"),
        Mistake(
            "what came before was dropped: start from (lse, 1, O), not from the identity.",
            "online_softmax.State(lse_i, np.ones_like(lse_i), O_i)",
            "online_softmax.identity(len(Q_i), V_j.shape[1], Q_i.dtype)",
        ),
        Mistake("l = 0 forgets the past: relative to lse its weight is 1.", "np.ones_like", "np.zeros_like"),
        Mistake("l = e^lse counts lse twice: relative to lse the past's weight is 1.", "np.ones_like", "np.exp"),
        Mistake(
            "O was multiplied by e^lse: relative to lse it stays as it is.",
            "np.ones_like(lse_i), O_i)",
            "np.ones_like(lse_i), np.exp(lse_i)[:, None] * O_i)",
        ),
        Mistake(
            "all rows began anew, as at the first meeting: each row has its own lse, and its own past.",
            "    state = online_softmax.State(",
            "    if (lse_i == -np.inf).any():\n        lse_i = np.full_like(lse_i, -np.inf)\n"
            "    state = online_softmax.State(",
        ),
        Mistake(
            "the first meeting is the one with lse = −∞: an output of 0 may come from keys that were met.",
            "    state = online_softmax.State(",
            "    if not O_i.any():\n        lse_i = np.full_like(lse_i, -np.inf)\n    state = online_softmax.State(",
        ),
        Mistake("divided by √Bc: d is the width of Q and K.", "Q_i.shape[1] ** -0.5", "max(len(K_j), 1) ** -0.5"),
        Mistake(
            "the old lse was returned: the tile's keys belong to it now.",
            "*online_softmax.finish(state)",
            "online_softmax.finish(state)[0], 1 * lse_i",
        ),
        Mistake("the past was not rescaled when the maximum rose.", "online_softmax.update(", "forgetful("),
        Mistake(
            "the output was not divided by l.",
            "*online_softmax.finish(state)",
            "state.O, online_softmax.finish(state)[1]",
        ),
        Mistake(
            "m was returned in the place of lse = m + log l.",
            "*online_softmax.finish(state)",
            "online_softmax.finish(state)[0], state.m",
        ),
        Mistake(
            "the state was not finished: divide O by l, and return lse = m + log l.",
            "*online_softmax.finish(state)",
            "state.O, state.m",
        ),
        Mistake(
            "0 was subtracted where all scores are negative, and rows far below 0 underflow: guard −∞ alone.",
            "online_softmax.update(",
            "zero_guarded(",
        ),
        *(
            Mistake(
                "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
                "online_softmax.update(",
                f"guarded_by[{bound}](",
            )
            for bound in guarded_by
        ),
        Mistake(
            "l = lse is no sum of exponentials: relative to lse the past's weight is 1.",
            "np.ones_like(lse_i)",
            "1 * lse_i",
        ),
        Mistake(
            "lse was bounded below: −∞ stands for no key at all, and finite scores may lie below any bound.",
            "State(lse_i,",
            "State(np.maximum(lse_i, -1e4),",
        ),
        Mistake(
            "lse was bounded below: −∞ stands for no key at all, and finite scores may lie below any bound.",
            "State(lse_i,",
            "State(np.where(lse_i < -1e6, -np.inf, lse_i),",
        ),
        Mistake(
            "m = 0 is a score like any other: relative to lse, m is lse itself.",
            "State(lse_i,",
            "State(0 * np.maximum(lse_i, 0),",
        ),
        Mistake(
            "e^lse overflows: keep lse as the maximum, with l = 1.",
            "state = online_softmax.update(state, S_ij, V_j)",
            "l = np.exp(lse_i) + np.exp(S_ij).sum(-1); return Output((np.exp(lse_i)[:, None] * O_i + "
            "np.exp(S_ij) @ V_j) / np.where(l == 0, 1, l)[:, None], np.log(l))",
        ),
        Mistake(
            "e^lse overflows: keep lse as the maximum, with l = 1.",
            "online_softmax.State(lse_i, np.ones_like(lse_i), O_i)",
            "online_softmax.State(0 * np.maximum(lse_i, -1), np.exp(lse_i), np.exp(lse_i)[:, None] * O_i)",
        ),
        Mistake(
            "that is the mean of the past and this tile: they have the weights e^lse of their own.",
            "*online_softmax.finish(state)",
            "(O_i + keys_inside(Q_i, K_j, V_j, max(len(K_j), 1)).O) / 2, online_softmax.finish(state)[1]",
        ),
        Mistake(
            "lse leaves out what came before: it is the logarithm of both sums together.",
            "*online_softmax.finish(state)",
            "online_softmax.finish(state)[0], keys_inside(Q_i, K_j, V_j, max(len(K_j), 1)).lse",
        ),
        Mistake(
            "e^lse overflows: keep lse as the maximum, with l = 1.",
            "*online_softmax.finish(state)",
            "*_of_exponentials(keys_inside(Q_i, K_j, V_j, len(K_j)), Output(O_i, lse_i))",
        ),
    ),
)
