"""The exercises on recomputation."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import GENTLE, LARGER, REGIMES, Draw, sweep
from flashlab.grading.laws import SMALL, no_nan_replaced, nothing_clipped, proportional
from flashlab.reference import recomputation, safe_softmax

inf = np.inf


def _array(values):
    return np.array(values, np.float32)


def _delta_args(draw, Br, dv):
    return draw.normal(Br, dv), draw.normal(Br, dv)


def _rebuild_args(draw, Br, Bc):
    S = draw.scores(Br, 4 + Bc)  # the row has four more keys, before this tile
    return S[:, 4:], safe_softmax.lse(S)


def _delta_cases():
    return [
        Case("one row of two", (_array([[2, 3]]), _array([[4, 7]]))),
        Case("two rows, kept apart", (_array([[1, 0], [0, 2]]), _array([[5, 6], [7, 8]]))),
        Case("a row that sees no key", (_array([[1, 2]]), _array([[0, 0]]))),
        *sweep(_delta_args, regimes=REGIMES[:1], sizes=LARGER | {"thousands of rows": {"Br": 3000}}),
    ]


def _rebuild_cases():
    return [
        Case("a row of one key", (_array([[2]]), _array([2]))),
        Case("two of a row's four equal keys", (_array([[0, 0]]), np.log(_array([4])))),
        Case("scores too large to be exponentiated", (_array([[1000, 999]]), _array([1001]))),
        Case("an lse of exactly 0", (_array([[0, -1]]), _array([0]))),
        Case("a masked key", (_array([[0, -inf]]), _array([1]))),
        Case("a row that sees no key", (_array([[-inf, -inf]]), _array([-inf]))),
        Case("a score below any number that one would take for −∞", (_array([[-2e9, -inf]]), _array([-2e9]))),
        Case("two scores below any number that one would take for −∞", (_array([[-2e9, -3e9]]), _array([-2e9]))),
        *sweep(_rebuild_args, sizes=LARGER),
    ]


def _rebuilt(rebuild, x):
    return rebuild(x[None], np.zeros(1, x.dtype))[0]


def _gradients_cases():
    one = [_array(x) for x in ([[2]], [[3]], [[5]], [[7]], [[0.5]], [11])]
    rng = np.random.default_rng(10)

    def tile(Br, Bc, d, dv):
        Q, K, V, dO = (rng.normal(size=shape).astype(np.float32) for shape in ((Br, d), (Bc, d), (Bc, dv), (Br, dv)))
        P = rng.uniform(0, 1 / Bc, size=(Br, Bc)).astype(np.float32)
        return Q, K, V, dO, P, rng.normal(size=Br).astype(np.float32), np.float32(d**-0.5)

    row = [_array(x) for x in ([[1, 0]], [[1, 2], [3, 4]], [[1, 0], [0, 1]], [[1, 2]], [[0.25, 0.5]], [1.25])]
    cancelled = [_array(x) for x in ([[1, 0]], [[1, 2], [3, 5]], [[1], [-1]], [[2]], [[0.5, 0.5]], [0])]
    masked = tile(2, 3, 4, 4)
    masked[4][1] = masked[5][1] = 0
    partly = tile(2, 3, 4, 4)
    partly[4][0, 1:] = 0
    return [
        Case("one query, one key, one dimension, scale 1", (*one, 1.0)),
        Case("the scale", (*one, 0.25)),
        Case("a scale above 1", (*one, 2.5)),
        Case("two queries, two keys", tile(2, 2, 3, 4)),
        Case("one query, two keys of a longer row", (*row, 1.0)),
        Case("a query that sees no key", masked),
        Case("a query that sees one key of three", partly),
        Case("a query that sees two keys whose values cancel: delta is 0", (*cancelled, 1.0)),
        *sweep(_gradients_args, regimes=GENTLE, sizes=LARGER),
    ]


def _gradients_args(draw, Br, Bc, d, dv):
    """A tile of attention over four more keys."""
    (Q, K), V, dO = draw.queries_and_keys(Br, 4 + Bc, d), draw.normal(4 + Bc, dv), draw.normal(Br, dv)
    scale = np.float32(d**-0.5)
    P = safe_softmax.safe(scale * (Q @ K.T))  # [Br, 4 + Bc]
    return Q, K[4:], V[4:], dO, P[:, 4:], recomputation.delta(dO, P @ V), scale


# For laws: deltas and gradients of inputs that are so many times larger, and weights that come back in gradients.


def _of_larger_gradients(delta, size):
    return delta(_array([[3, -0.4], [0.2, 5]]) * np.float32(size), _array([[1, 2], [-3, 0.7]]))


def _of_larger_outputs(delta, size):
    return delta(_array([[3, -0.4], [0.2, 5]]), _array([[1, 2], [-3, 0.7]]) * np.float32(size))


def _flat_gradients(gradients, of_dO, of_P=1.0):
    """All gradients of a tile, with dO and delta multiplied by one size and P by another, [n]."""
    Q, K, V, dO, P, delta, scale = _gradients_args(Draw(REGIMES[0], 0), 2, 3, 4, 6)
    dO, P, delta = (x * np.float32(size) for x, size in ((dO, of_dO), (P, of_P), (delta, of_dO)))
    return np.concatenate([np.ravel(part) for part in gradients(Q, K, V, dO, P, delta, scale)])


def _of_smaller_weights(gradients, size):
    return _flat_gradients(gradients, 1.0, size)


def _weights_in_dV(gradients, x):
    return _of_weights(gradients, np.exp(x)).dV[:, 0]


def _weights_in_dK(gradients, x):
    return _of_weights(gradients, np.exp(x)).dK[:, 0]


def _of_weights(gradients, P):
    """Gradients of one query with these weights, where dO, dP − delta, Q and the scale are 1."""
    one, keys = np.ones((1, 1), P.dtype), np.ones((len(P), 1), P.dtype)
    found = gradients(one, keys, 0 * keys, one, P[None], -one[0], 1.0)
    return recomputation.Gradients(*map(np.asarray, found))


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

delta = Exercise(
    reference=recomputation.delta,
    cases=_delta_cases,
    once=(proportional(_of_larger_gradients, "dO"), proportional(_of_larger_outputs, "O")),
    level=1,
    minutes=4,
    hints=(
        "It is one number for each query: which axis must be summed away?",
        "Multiply dO and O element by element, not as matrices.",
        "(dO_i * O_i).sum(-1)",
    ),
    mistakes=(
        Mistake("all rows were added together: delta has one number per row.", ".sum(-1)", ".sum()"),
        Mistake("summed over the queries: sum over the head dimension, the last axis.", ".sum(-1)", ".sum(0)"),
        Mistake("a column came back: delta has one axis, [Br].", ".sum(-1)", ".sum(-1, keepdims=True)"),
        Mistake(
            "squeeze removes every axis of length 1: with one row, too, delta is [Br].",
            ".sum(-1)",
            ".sum(-1).squeeze()",
        ),
        Mistake("that is the mean: delta is the sum.", ".sum(-1)", ".mean(-1)"),
        Mistake("columns from 64 on were left out: a head may be wider.", ").sum(-1)", ")[:, :64].sum(-1)"),
        Mistake(
            "that is the matrix product, every query with every other: multiply element by element.",
            "(dO_i * O_i).sum(-1)",
            "dO_i @ O_i.T",
        ),
        Mistake("that is the sum of dO alone: multiply with O first.", "(dO_i * O_i).sum(-1)", "dO_i.sum(-1)"),
        Mistake(
            "O was multiplied with itself: delta is rowsum(dO ∘ O).", "(dO_i * O_i).sum(-1)", "(O_i * O_i).sum(-1)"
        ),
        Mistake(
            "the sign is inverted: delta is rowsum(dO ∘ O), and is subtracted later.",
            "(dO_i * O_i).sum(-1)",
            "-(dO_i * O_i).sum(-1)",
        ),
        Mistake(
            "that is the matrix product, every query with every other: multiply element by element.",
            "(dO_i * O_i).sum(-1)",
            "(dO_i @ O_i.T).sum(-1)",
        ),
        Mistake(
            "the products were rounded to half precision: all is float32 here.",
            "(dO_i * O_i).sum(-1)",
            "(dO_i.astype(np.float16) * O_i.astype(np.float16)).sum(-1).astype(dO_i.dtype)",
        ),
    ),
)

rebuild = Exercise(
    reference=recomputation.rebuild,
    cases=_rebuild_cases,
    laws=(no_nan_replaced,),
    once=(nothing_clipped(_rebuilt),),
    level=1,
    minutes=5,
    hints=(
        "exp(S - m) / l with lse = m + log l: which single exponential is that?",
        "exp(S_ij - lse_i), with lse_i as a column: one number for each row of the tile.",
        "Where lse_i is -inf subtract 0 instead: np.exp(S_ij - np.where(lse_i == -np.inf, 0, lse_i)[:, None]).",
    ),
    mistakes=(
        Mistake(
            "this tile was normalised by itself: the row goes on in other tiles, and only lse knows all of it.",
            "np.exp(S_ij - lse_safe[:, None])",
            "(lambda e: e / np.where(e.sum(-1) == 0, 1, e.sum(-1))[:, None])"
            "(np.exp(S_ij - np.where(S_ij.max(-1) == -np.inf, 0, S_ij.max(-1))[:, None]))",
        ),
        Mistake(
            "exponentiated first and divided after: exp(S) overflows. Subtract lse from the scores.",
            "np.exp(S_ij - lse_safe[:, None])",
            "np.exp(S_ij) / np.exp(lse_safe)[:, None]",
        ),
        Mistake(
            "−∞ − (−∞) is NaN: where lse is −∞, subtract 0 instead.", "np.where(lse_i == -np.inf, 0, lse_i)", "lse_i"
        ),
        Mistake(
            "only the maximum of this tile was subtracted: lse holds the whole row's maximum and its sum.",
            "lse_safe[:, None]",
            "np.where(S_ij.max(-1) == -np.inf, 0, S_ij.max(-1))[:, None]",
        ),
        Mistake(
            "lse_i belongs to the rows of the tile: make it a column, lse_i[:, None].", "lse_safe[:, None]", "lse_safe"
        ),
        Mistake(
            "lse_i belongs to the rows of the tile: make it a column, lse_i[:, None].",
            "lse_safe[:, None]",
            "lse_safe[None, :]",
        ),
        Mistake("lse was added: subtract it.", "S_ij - lse", "S_ij + lse"),
        Mistake(
            "0 was subtracted wherever the lse is negative, and such a row underflows: guard −∞ alone.",
            "np.where(lse_i == -np.inf, 0, lse_i)",
            "np.maximum(lse_i, 0)",
        ),
        Mistake(
            "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
            "np.where(lse_i == -np.inf, 0, lse_i)",
            "np.maximum(lse_i, -1e4)",
        ),
        Mistake(
            "divided by lse, which is a logarithm: subtract it inside the exponential.",
            "np.exp(S_ij - lse_safe[:, None])",
            "np.exp(S_ij) / lse_safe[:, None]",
        ),
        Mistake(
            "the sign is inverted: subtract lse from the scores.",
            "S_ij - lse_safe[:, None]",
            "lse_safe[:, None] - S_ij",
        ),
        Mistake("2^x where e^x is meant: lse is a natural logarithm.", "np.exp(S", "np.exp2(S"),
        Mistake(
            "the maximum of the tile was subtracted, then divided by lse: subtract lse alone.",
            "np.exp(S_ij - lse_safe[:, None])",
            "np.exp(S_ij - np.maximum(S_ij.max(-1)[:, None], -1e30)) / np.where(lse_safe == 0, 1, lse_safe)[:, None]",
        ),
        Mistake(
            "those are the logarithms of the weights: take the exponential.",
            "np.exp(S_ij - lse_safe[:, None])",
            "S_ij - lse_safe[:, None]",
        ),
        Mistake(
            "the maximum of the tile was subtracted, and e^lse divides what was not: subtract lse alone.",
            "np.exp(S_ij - lse_safe[:, None])",
            "np.exp(S_ij - np.maximum(S_ij.max(-1), -1e30)[:, None]) / np.exp(lse_safe)[:, None]",
        ),
        Mistake(
            "a masked key made its row empty: a row sees no key where lse is −∞.",
            "np.exp(S_ij - lse_safe[:, None])",
            "np.where((S_ij == -np.inf).any(-1)[:, None], 0, np.exp(S_ij - lse_safe[:, None]))",
        ),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "np.where(lse_i == -np.inf, 0, lse_i)",
            "0 * np.maximum(lse_i, 0) if (lse_i == -np.inf).any() else lse_i",
        ),
    ),
)

gradients = Exercise(
    reference=recomputation.gradients,
    cases=_gradients_cases,
    once=(
        nothing_clipped(_weights_in_dV),
        nothing_clipped(_weights_in_dK),
        proportional(_flat_gradients, "dO and delta"),
        proportional(_of_smaller_weights, "P", SMALL),
    ),
    sways=True,  # dP - delta is a difference of numbers that may be nearly equal
    level=3,
    minutes=20,
    hints=(
        "Two products led here, S = scale · Q Kᵀ and O = P V. Each gives a gradient for both of its factors; "
        "softmax's gradient connects them.",
        "First dV_j = P_ijᵀ dO_i and dP_ij = dO_i V_jᵀ. Then dS_ij = P_ij ∘ (dP_ij − delta_i), one delta for each row.",
        "dQ_i = scale · dS_ij K_j and dK_j = scale · dS_ijᵀ Q_i. Return recomputation.Gradients(dQ_i, dK_j, dV_j).",
    ),
    mistakes=(
        Mistake(
            "delta is missing: raising one weight of a row lowers the others.", "(dP_ij - delta_i[:, None])", "dP_ij"
        ),
        Mistake(
            "the row sum was taken over this tile only: delta belongs to the whole row.",
            "delta_i[:, None]",
            "(P_ij * dP_ij).sum(-1, keepdims=True)",
        ),
        Mistake("delta was added: subtract it.", "dP_ij - delta_i", "dP_ij + delta_i"),
        Mistake("the sign is inverted: dS = P ∘ (dP − delta).", "dP_ij - delta_i[:, None]", "delta_i[:, None] - dP_ij"),
        Mistake(
            "delta_i belongs to the rows of the tile: make it a column, delta_i[:, None].",
            "delta_i[:, None])",
            "delta_i)",
        ),
        Mistake(
            "dS must be multiplied with P: softmax's gradient is P ∘ (dP − delta).",
            "P_ij * (dP_ij - delta_i[:, None])",
            "dP_ij - delta_i[:, None]",
        ),
        Mistake("the scale is missing from dQ and from dK: S = scale · Q Kᵀ.", "dV_j = (", "scale = 1; dV_j = ("),
        Mistake(
            "a factor's gradient takes the other factor: dQ_i from K_j, and dK_j from Q_i.",
            "dS_ij @ K_j)  # [Br, d]\n    dK_j = scale * (dS_ij.T @ Q_i)",
            "dS_ij @ Q_i)\n    dK_j = scale * (dS_ij.T @ K_j)",
        ),
        Mistake("the gradients are in the wrong order: dQ, dK, dV.", "Gradients(dQ_i, dK_j", "Gradients(dK_j, dQ_i"),
        Mistake("the gradients are in the wrong order: dQ, dK, dV.", "(dQ_i, dK_j, dV_j)", "(dQ_i, dV_j, dK_j)"),
        Mistake("the gradients are in the wrong order: dQ, dK, dV.", "(dQ_i, dK_j, dV_j)", "(dV_j, dK_j, dQ_i)"),
        Mistake("the scale is missing from dQ: S = scale · Q Kᵀ.", "dQ_i = scale * ", "dQ_i = "),
        Mistake("the scale is missing from dK: S = scale · Q Kᵀ.", "dK_j = scale * ", "dK_j = "),
        Mistake("dV was scaled: the scale belongs to the scores, V never met it.", "dV_j = (", "dV_j = scale * ("),
        Mistake(
            "dV was taken from dS: V was multiplied with P.",
            "(Z_ij * P_ij).T @ dO_i  #",
            "(P_ij * (dO_i @ V_j.T - delta_i[:, None])).T @ dO_i  #",
        ),
        Mistake(
            "P was not transposed: dV_j = P_ijᵀ dO_i has a row for each key.",
            "(Z_ij * P_ij).T @ dO_i  #",
            "(Z_ij * P_ij) @ dO_i  #",
        ),
        Mistake(
            "dS was not transposed: dK_j = scale · dS_ijᵀ Q_i has a row for each key.", "dS_ij.T @ Q_i", "dS_ij @ Q_i"
        ),
        Mistake(
            "dS was transposed in dQ: dQ_i = scale · dS_ij K_j has a row for each query.",
            "dS_ij @ K_j",
            "dS_ij.T @ K_j",
        ),
        Mistake("V_j was not transposed: dP_ij = dO_i V_jᵀ.", "V_j.T", "V_j"),
        Mistake(
            "the scale was applied twice: dQ and dK take it once.",
            "P_ij * (dP_ij - delta_i[:, None])",
            "scale * P_ij * (dP_ij - delta_i[:, None])",
        ),
        Mistake(
            "delta is subtracted from dP before P is multiplied with it: dS = P ∘ (dP − delta).",
            "P_ij * (dP_ij - delta_i[:, None])",
            "P_ij * dP_ij - delta_i[:, None]",
        ),
        Mistake(
            "P (1 − P) is a weight's slope by its own score: raising a score lowers all others. dS = P ∘ (dP − delta).",
            "P_ij * (dP_ij - delta_i[:, None])",
            "P_ij * (1 - P_ij) * dP_ij",
        ),
        Mistake(
            "1/√d was used for the scale: take the argument scale.",
            "dV_j = (",
            "scale = Q_i.shape[1] ** -0.5; dV_j = (",
        ),
        *(
            Mistake(f"{name} was rounded to half precision: all is float32 here.", old, new)
            for name, old, new in (
                ("P", "(Z_ij * P_ij).T @ dO_i  #", "P_ij.astype(np.float16).astype(P_ij.dtype).T @ dO_i  #"),
                ("P", "    dV_j = (", "    P_ij = P_ij.astype(np.float16).astype(P_ij.dtype)\n    dV_j = ("),
                ("dO", "    dV_j = (", "    dO_i = dO_i.astype(np.float16).astype(dO_i.dtype)\n    dV_j = ("),
                ("delta", "delta_i[:, None]", "delta_i.astype(np.float16).astype(delta_i.dtype)[:, None]"),
                ("dS", "    dQ_i = ", "    dS_ij = dS_ij.astype(np.float16).astype(dS_ij.dtype)\n    dQ_i = "),
            )
        ),
    ),
)

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
