"""The exercises on recomputation."""

import numpy as np

from flashlab.grading.draws import lengths, scores
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake, Question
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import recomputation, safe_softmax

inf = np.inf

kept = Question(
    answer=512,
    because="A row of P has 1,024 numbers of 2 bytes, and one lse of 4 bytes stands for it: 2,048 / 4.",
    hints=(
        "How many bytes has one row of P? And the one number that is kept instead?",
        "1,024 numbers of 2 bytes, and one number of 4 bytes.",
        "2,048 / 4",
    ),
    wrong=(
        (1024, "So many numbers fewer. But lse has 4 bytes, a weight 2."),
        (2048, "Those are the bytes of a row of P. One lse has 4 bytes."),
        (256, "A weight in float16 has 2 bytes: a row of P has 2,048."),
        (1, "P has 1,024 numbers per row, lse has one."),
    ),
    minutes=3,
)


def _case(property, *values):
    """Return a case of arrays in float32."""
    return Case(property, tuple(np.array(value, np.float32) for value in values))


def _draw_size(rng):
    """Draw a factor that makes numbers very small or very large, or leaves them as they are."""
    return np.float32(10.0 ** rng.choice([0, 0, -12, 12]))


def _draw_normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def _draw_delta(rng, size):
    shape = lengths(rng, size, 2)
    return tuple(_draw_size(rng) * _draw_normal(rng, *shape) for _ in range(2))


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
    """Draw the scores of whole rows [Br, more + Bc]: a tile's after those of more keys, which may be far above it."""
    S = scores(rng, Br, more + Bc)
    S[:, :more] += np.float32(rng.choice([0, rng.uniform(0, 87)]))
    return S


def _draw_rebuild(rng, size):
    Br, Bc = lengths(rng, size, 2)
    more = int(rng.integers(0, size + 1))
    S = _draw_rows(rng, Br, Bc, more)
    return S[:, more:], safe_softmax.lse(S)


def _guards_infinity_alone(rebuild):
    """Law of its own inputs, whose difference has no rounding error: any finite lse is subtracted."""
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
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where lse is −∞, subtract 0 instead.",
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
    """Draw a tile of attention. Its weights need not come from these Q and K, only from some."""
    Br, Bc, d, dv = lengths(rng, size, 4)
    more = int(rng.integers(0, size + 1))
    Q, K, V = _draw_normal(rng, Br, d), _draw_normal(rng, Bc, d), _draw_normal(rng, more + Bc, dv)
    dO, P = _draw_size(rng) * _draw_normal(rng, Br, dv), safe_softmax.safe(_draw_rows(rng, Br, Bc, more))
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

passes = Question(
    answer=20,
    because="K, V read and dK, dV written once: 4. Q and dO read at 4 visits: 8. dQ written at 4 and read at 3: 7. "
    "O read once: 1.",
    hints=(
        "Which tensors belong to the keys (once in all), and which to the queries (at every visit)?",
        "Outside: K, V, dK, dV. At each of the 4 visits: Q, dO and dQ. At the first visit only: O. And dQ need not be "
        "read where it is still zero.",
        "4 for the keys, 4 + 4 for Q and dO, 4 + 3 for dQ, 1 for O.",
    ),
    wrong=(
        (21, "dQ is zero before the first visit: there is nothing to read yet."),
        (23, "O is needed for delta only: at the first visit, and never again."),
        (24, "dQ is zero before the first visit, and O is needed at the first visit only."),
        (19, "O is read as well, once, for delta."),
        (8, "That is each tensor once. Q, dO and dQ move at each of the 4 visits."),
        (13, "That is the forward pass's bill. The backward pass has more to carry."),
        (33, "That is the forward pass and the backward pass together."),
    ),
    minutes=8,
)

products = Question(
    answer=7,
    because="Forward S and O; backward S once more, dV, dP, dQ, dK. Seven instead of six.",
    hints=(
        "Each N × N matrix is a product of two thin ones, or is multiplied with a thin one. Count those.",
        "Where everything is kept: forward S and O, backward dV, dP, dQ, dK. Which of them is done again?",
        "P is an exponential away from S, so only S = Q Kᵀ is done again.",
    ),
    wrong=(
        (6, "That is with P kept: S, O, dV, dP, dQ, dK. To build P again takes S again."),
        (8, "The whole forward pass is not repeated: O is at hand, only S is needed again."),
        (5, "That is the backward pass alone. The forward pass's two count too."),
        (4, "That is the backward pass alone, with P kept."),
        (12, "That is the forward pass and all of the backward pass twice. Only one product is done again."),
    ),
    minutes=4,
)
