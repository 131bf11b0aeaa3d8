"""Tiles of queries meet tiles of keys: ``inside`` with the keys in the inner loop, ``meet`` with them outside."""

from typing import NamedTuple

import numpy as np

from flashlab.course.exercises.online_softmax.states import draw_maxima_near
from flashlab.course.exercises.tiling.one_tile_at_a_time import bc_at_a_time
from flashlab.grading.draws import lengths, scores
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import online_softmax

inf = np.inf
FAR = 60  # a key up to this far below the maximum may have a row of V so large that it counts


class Output(NamedTuple):
    """The output of attention for some rows."""

    O: np.ndarray  # [Br, dv]
    lse: np.ndarray  # [Br]


def keys_inside(Q_i, K, V, Bc):
    """Let one tile of queries Q_i [Br, d] meet K [Nk, d] and V [Nk, dv], Bc at a time."""
    scale = Q_i.dtype.type(Q_i.shape[1] ** -0.5)
    state = online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype)
    for start in range(0, len(K), Bc):
        K_j, V_j = K[start : start + Bc], V[start : start + Bc]  # [Bc, d], [Bc, dv]
        S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
        state = online_softmax.update(state, S_ij, V_j)
    return Output(*online_softmax.finish(state))


def _draw_queries_and_keys(rng, Br, Nk, d):
    """Draw Q [Br, d] and K [Nk, d]. The largest score is near 0: a large lse would lose digits."""
    Q, K = rng.normal(size=(Br, d)), rng.choice([0, 0.1, 1]) * rng.normal(size=(Nk, d))
    row = scores(rng, 1, Nk, largest=1000, masked=False)[0]  # [Nk]
    Q[:, 0] = np.sqrt(d) * rng.choice([1, 0.1], Br) ** rng.integers(2)
    K[:, 0] = row - row.max() + rng.uniform(-8, 8)
    return np.float32(Q), np.float32(K)


def _draw_values(rng, below, dv):
    """Draw values [n, dv]. below [n]: how far each score is below the maximum; its value may make up for that."""
    size = 1e-18 if rng.random() < 0.3 else np.exp(np.minimum(below, rng.choice([0, FAR])))[:, None]
    return np.float32(size * rng.normal(size=(len(below), dv)))


def _scores(Q, K):
    """Return the scaled scores [Br, Nk] of Q and K, in float64."""
    return np.float64(Q) @ np.float64(K).T / np.sqrt(Q.shape[1])


def draw_inside(rng, size):
    """Draw a tile of queries [Br, d], keys [Nk, d] and their values [Nk, dv], and how many keys make a tile."""
    Br, Nk, d, dv = lengths(rng, size, 4)
    Q, K = _draw_queries_and_keys(rng, Br, Nk, d)
    S = _scores(Q, K)[0]  # [Nk]
    return Q, K, _draw_values(rng, S.max() - S, dv), int(rng.integers(1, size + 1))


QUERY = np.float32([[2, 0, 0, 0]])  # 2 is √d: a score is its key's first number
TWO = np.vstack([QUERY, -QUERY])


def keys(*scores):
    """Return keys [Nk, 4] with these scores, and their values [Nk, 2]."""
    K = np.zeros((len(scores), 4), np.float32)
    K[:, 0] = scores
    return K, np.float32([(at, 3 - at) for at in range(len(scores))])


inside = Exercise(
    reference=keys_inside,
    edges=(
        Case("one query, one key", (QUERY, *keys(1), 1)),
        Case("two whole tiles, the second with the larger maximum", (QUERY, *keys(0, 1, 2, 3), 2)),
        Case("a last tile that is not full", (QUERY, *keys(3, 1, 2), 2)),
        Case("scores far from 0, on either side", (TWO, *keys(-4e9, -2e9), 4)),
        Case("two queries, whose maxima are in different tiles", (TWO, *keys(0, 3), 1)),
    ),
    draw=draw_inside,
    laws=(no_nan_replaced, bc_at_a_time),
    sways=True,
    mistakes=(
        Mistake("forgot the scale.", "Scores are divided by √d.", "Q_i.shape[1] ** -0.5", "1"),
        Mistake("dropped the last, shorter tile of keys.", "Loop to len(K): a slice ends there by itself.",
                "range(0, len(K), Bc)", "range(0, len(K) - Bc + 1, Bc)"),
        Mistake("did not keep what online_softmax.update returns.", "It leaves the old state as it is: assign the new.",
                "state = online_softmax.update(", "online_softmax.update("),
        Mistake("started each tile afresh.", "Pass the state of the tiles before to online_softmax.update.",
                "online_softmax.update(state,",
                "online_softmax.update(online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype),"),
        Mistake("finished the state inside the loop: O is divided after every tile, by the l so far.",
                "Finish once, after the loop.",
                "state = online_softmax.update(state, S_ij, V_j)",
                "state = online_softmax.update(state, S_ij, V_j); "
                "state = state._replace(O=online_softmax.finish(state)[0])"),
        Mistake("did not divide the output by l.", "online_softmax.finish does it.",
                "*online_softmax.finish(state)", "state.O, online_softmax.finish(state)[1]"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Start with online_softmax.identity, take in one tile of keys after the other, and finish once, at the end.",
        "In the loop: K_j, V_j = K[start : start + Bc], V[start : start + Bc]; the scores are scale * Q_i K_jᵀ.",
        "S_ij = Q_i.shape[1] ** -0.5 * (Q_i @ K_j.T), then state = online_softmax.update(state, S_ij, V_j); after the "
        "loop return online_softmax.finish(state).",
    ),
)  # fmt: skip


def meeting(Q_i, K_j, V_j, O_i, lse_i):
    """Return what slow memory holds for a tile of queries after one more tile of keys, with the loop over keys outside.

    Q_i [Br, d]; K_j [Bc, d]; V_j [Bc, dv]; O_i [Br, dv] and lse_i [Br]: the result so far, 0 and -inf before the first.
    """
    scale = Q_i.dtype.type(Q_i.shape[1] ** -0.5)
    S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
    state = online_softmax.State(lse_i, np.ones_like(lse_i), O_i)
    state = online_softmax.update(state, S_ij, V_j)
    return Output(*online_softmax.finish(state))


def _draw_meet(rng, size):
    """Draw a tile of queries, one of keys and values, and results so far. Some or all rows may have met no key."""
    Br, Bc, d, dv = lengths(rng, size, 4)
    Q, K = _draw_queries_and_keys(rng, Br, Bc, d)
    S = _scores(Q, K)  # [Br, Bc]
    lse = draw_maxima_near(rng, np.float32(S.max(1)))  # [Br]
    lse = np.where(rng.random() < 0.1, -inf, lse).astype(np.float32)
    m = np.maximum(S.max(1), lse)  # [Br]
    O = rng.choice([0, 1], p=[0.1, 0.9]) * _draw_values(rng, m - lse, dv)  # [Br, dv]
    return Q, K, _draw_values(rng, m[0] - S[0], dv), np.where(lse[:, None] == -inf, 0, O).astype(np.float32), lse


def _past(O, lse):
    """Return a result so far, in float32."""
    return np.float32(O), np.float32(lse)


meet = Exercise(
    reference=meeting,
    edges=(
        Case("the first meeting", (QUERY, *keys(0, 1), *_past([[0, 0]], [-inf]))),
        Case("a past with the larger maximum, and one with the smaller",
             (TWO, *keys(0.5), *_past([[2, 5], [3, 4]], [1, -1]))),
        Case("rows of which one has met no key", (TWO, *keys(0, 1), *_past([[0, 0], [2, 5]], [-inf, 1]))),
        Case("an output of 0, although keys were met", (QUERY, *keys(0, 1), *_past([[0, 0]], [1]))),
        Case("scores far from 0, on either side", (TWO, *keys(-4e9), *_past([[2, 5], [3, 4]], [-2e9, 2e9]))),
    ),
    draw=_draw_meet,
    laws=(no_nan_replaced,),
    sways=True,
    mistakes=(
        Mistake("forgot the scale.", "Scores are divided by √d.", "Q_i.shape[1] ** -0.5", "1"),
        Mistake("dropped what came before.", "Start from (lse, 1, O), not from the identity.",
                "online_softmax.State(lse_i, np.ones_like(lse_i), O_i)",
                "online_softmax.identity(len(Q_i), V_j.shape[1], Q_i.dtype)"),
        Mistake("took e^lse for l, which counts lse twice.", "Relative to lse the past has the weight 1.",
                "np.ones_like", "np.exp"),
        Mistake("multiplied O by e^lse.", "Relative to lse it stays as it is.",
                "np.ones_like(lse_i), O_i)", "np.ones_like(lse_i), np.exp(lse_i)[:, None] * O_i)"),
        Mistake("returned the old lse.", "The keys of the tile belong to it as well.",
                "*online_softmax.finish(state)", "online_softmax.finish(state)[0], 1 * lse_i"),
        Mistake("computed e^lse, which overflows.", "Keep lse as the maximum, with l = 1.",
                "state = online_softmax.update(state, S_ij, V_j)",
                "l = np.exp(lse_i) + np.exp(S_ij).sum(-1); return Output((np.exp(lse_i)[:, None] * O_i + "
                "np.exp(S_ij) @ V_j) / np.where(l == 0, 1, l)[:, None], np.log(l))"),
    ),
    level=2,
    minutes=10,
    hints=(
        "O_i and lse_i must become a state (m, l, O) again before online_softmax.update can take in the tile.",
        "A finished row is the state of one key whose score is lse and whose value is O: its exponential, relative to "
        "itself, is 1.",
        "state = online_softmax.State(lse_i, np.ones_like(lse_i), O_i); then update and finish.",
    ),
)  # fmt: skip
