"""One tile of the backward pass: ``delta``, ``rebuild`` and ``gradients``."""

import numpy as np

from flashlab.grading.draws import lengths, scores
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import recomputation, safe_softmax

inf = np.inf


def _case(property, *values):
    """Return a case of arrays in float32."""
    return Case(property, tuple(np.array(value, np.float32) for value in values))


def draw_size(rng):
    """Draw a factor that makes numbers very small or very large, or leaves them as they are."""
    return np.float32(10.0 ** rng.choice([0, 0, -12, 12]))


def draw_normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def _draw_delta(rng, size):
    shape = lengths(rng, size, 2)
    return tuple(draw_size(rng) * draw_normal(rng, *shape) for _ in range(2))


delta = Exercise(
    reference=recomputation.delta,
    edges=(
        _case("one row of two", [[2, 3]], [[4, 7]]),
        _case("two rows, kept apart", [[1, 0], [0, 2]], [[5, 6], [7, 8]]),
        _case("a row that sees no key", [[1, 2]], [[0, 0]]),
    ),
    draw=_draw_delta,
    sways=True,
    mistakes=(
        Mistake("added all rows together.", "delta has one number per row.", ".sum(-1)", ".sum()"),
        Mistake("summed over the queries.", "Sum over the last axis, the head dimension.", ".sum(-1)", ".sum(0)"),
        Mistake("returned a column.", "delta has one axis, [Br].", ".sum(-1)", ".sum(-1, keepdims=True)"),
        Mistake("squeezed every axis of length 1.", "With one row, too, delta is [Br].",
                ".sum(-1)", ".sum(-1).squeeze()"),
        Mistake("returned the mean.", "delta is the sum.", ".sum(-1)", ".mean(-1)"),
        Mistake("took the matrix product, every query with every other.", "Multiply element by element.",
                "(dO_i * O_i).sum(-1)", "(dO_i @ O_i.T).sum(-1)"),
    ),
    level=1,
    minutes=4,
    hints=(
        "It is one number for each query: which axis must be summed away?",
        "Multiply dO and O element by element, not as matrices.",
        "(dO_i * O_i).sum(-1)",
    ),
)  # fmt: skip


def _draw_rows(rng, Br, Bc, more):
    """Draw the scores of whole rows [Br, more + Bc]: of ``more`` other keys, which may be far higher, and of a tile."""
    S = scores(rng, Br, more + Bc)
    S[:, :more] += np.float32(rng.choice([0, rng.uniform(0, 87)]))
    return S


def _draw_rebuild(rng, size):
    Br, Bc = lengths(rng, size, 2)
    more = int(rng.integers(0, size + 1))
    S = _draw_rows(rng, Br, Bc, more)
    return S[:, more:], safe_softmax.lse(S)


def _guards_infinity_alone(rebuild):
    """Law with inputs of its own, a score and an lse that are equal: any finite lse is subtracted."""
    low = np.float32([-2e38])
    if np.asarray(rebuild(low[None], low)).item() != 1:
        return Broken(
            "a row of one key whose score is −2 · 10³⁸",
            "a finite number was taken for −∞, but scores may lie below it. Subtract 0 only where lse is −∞.",
        )


rebuild = Exercise(
    reference=recomputation.rebuild,
    edges=(
        _case("two of the four equal keys of a row", [[0, 0]], [np.log(4)]),
        _case("scores too large to be exponentiated", [[1000, 999]], [1001]),
        _case("a masked key", [[0, -inf]], [0]),
        _case("a row that sees no key", [[-inf, -inf]], [-inf]),
    ),
    draw=_draw_rebuild,
    laws=(no_nan_replaced,),
    once=(_guards_infinity_alone,),
    sways=True,
    mistakes=(
        Mistake("normalised the tile by itself.", "The row goes on in other tiles: only lse knows all of it.",
                "np.exp(S_ij - lse_safe[:, None])",
                "(lambda e: e / np.where(e.sum(-1) == 0, 1, e.sum(-1))[:, None])"
                "(np.exp(S_ij - np.where(S_ij.max(-1) == -np.inf, 0, S_ij.max(-1))[:, None]))"),
        Mistake("exponentiated first and divided after: exp(S) overflows.", "Subtract lse from the scores.",
                "np.exp(S_ij - lse_safe[:, None])", "np.exp(S_ij) / np.exp(lse_safe)[:, None]"),
        Mistake("got NaN in a row that sees no key.", "Where lse is −∞, subtract 0 instead.",
                "np.where(lse_i == -np.inf, 0, lse_i)", "lse_i"),
        Mistake("subtracted the maximum of the tile.", "lse holds the maximum of the whole row, and its sum.",
                "lse_safe[:, None]", "np.where(S_ij.max(-1) == -np.inf, 0, S_ij.max(-1))[:, None]"),
        Mistake("subtracted lse along the keys.", "It belongs to the rows: make it a column, lse_i[:, None].",
                "lse_safe[:, None]", "lse_safe"),
        Mistake("divided by lse, which is a logarithm.", "Subtract it inside the exponential.",
                "np.exp(S_ij - lse_safe[:, None])", "np.exp(S_ij) / lse_safe[:, None]"),
    ),
    level=1,
    minutes=5,
    hints=(
        "exp(S - m) / l with lse = m + log l: which single exponential is that?",
        "exp(S_ij - lse_i), with lse_i as a column: one number for each row of the tile.",
        "Where lse_i is -inf subtract 0 instead: np.exp(S_ij - np.where(lse_i == -np.inf, 0, lse_i)[:, None]).",
    ),
)  # fmt: skip


def _draw_gradients(rng, size):
    """Draw a tile of attention. Its weights are of other scores than those of Q and K: any weights will do."""
    Br, Bc, d, dv = lengths(rng, size, 4)
    more = int(rng.integers(0, size + 1))
    Q, K, V = draw_normal(rng, Br, d), draw_normal(rng, Bc, d), draw_normal(rng, more + Bc, dv)
    dO, P = draw_size(rng) * draw_normal(rng, Br, dv), safe_softmax.safe(_draw_rows(rng, Br, Bc, more))
    scale = float(rng.choice([d**-0.5, 1, 0.25, 2.5]))
    return Q, K, V[more:], dO, P[:, more:], recomputation.delta(dO, P @ V), scale


def _tile(property, *values, scale=1.0):
    arrays = _case(property, *values)
    return Case(property, (*arrays.args, scale))


ONE = [[2]], [[3]], [[5]], [[7]], [[0.5]], [11]

gradients = Exercise(
    reference=recomputation.gradients,
    edges=(
        _tile("one query, one key, one dimension, scale 1", *ONE),
        _tile("the scale", *ONE, scale=0.25),
        _tile("one query, two keys of a longer row",
              [[1, 0]], [[1, 2], [3, 4]], [[1, 0], [0, 1]], [[1, 2]], [[0.25, 0.5]], [1.25]),
        _tile("two queries, of which one sees no key",
              [[1, 0], [0, 1]], [[1, 2]], [[1, 0]], [[1, 2], [3, 4]], [[0.5], [0]], [1.25, 0]),
        _tile("a query that sees two keys whose values cancel: delta is 0",
              [[1, 0]], [[1, 2], [3, 5]], [[1], [-1]], [[2]], [[0.5, 0.5]], [0]),
    ),
    draw=_draw_gradients,
    sways=True,  # dP - delta is a difference of numbers that may be nearly equal
    mistakes=(
        Mistake("left delta out.", "Raising one weight of a row lowers the others: subtract delta from dP.",
                "(dP_ij - delta_i[:, None])", "dP_ij"),
        Mistake("took the row sum over this tile only.", "delta belongs to the whole row: take the argument.",
                "delta_i[:, None]", "(P_ij * dP_ij).sum(-1, keepdims=True)"),
        Mistake("subtracted delta along the keys.", "It belongs to the rows: make it a column, delta_i[:, None].",
                "delta_i[:, None])", "delta_i)"),
        Mistake("did not multiply dS by P.", "The gradient of softmax is P ∘ (dP − delta).",
                "P_ij * (dP_ij - delta_i[:, None])", "dP_ij - delta_i[:, None]"),
        Mistake("left the scale out of dQ and dK.", "S is scale · Q Kᵀ: both take it.",
                "dV_j = (", "scale = 1; dV_j = ("),
        Mistake("scaled dV.", "The scale belongs to the scores, which V never meets.", "dV_j = (", "dV_j = scale * ("),
    ),
    level=3,
    minutes=20,
    hints=(
        "Two products led here, S = scale · Q Kᵀ and O = P V. Each gives a gradient for both of its factors; "
        "softmax's gradient connects them.",
        "First dV_j = P_ijᵀ dO_i and dP_ij = dO_i V_jᵀ. Then dS_ij = P_ij ∘ (dP_ij − delta_i), one delta for each row.",
        "dQ_i = scale · dS_ij K_j and dK_j = scale · dS_ijᵀ Q_i. Return recomputation.Gradients(dQ_i, dK_j, dV_j).",
    ),
)  # fmt: skip
