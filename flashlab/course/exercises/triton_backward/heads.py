"""Heads for which both gradients are computed."""

import numpy as np

from flashlab.grading.draws import queries_and_keys
from flashlab.reference import attention, recomputation
from flashlab.reference.rules import Rules

BLOCK = 16  # rows of a tile, and the width of a head: the least that tl.dot multiplies


def draw_head(rng, Nq, Nk):
    """Draw Q, K, V and dO of one head, of any width that is a power of two, and a scale.

    V is whole numbers, and dO whole numbers times a power of two: a sum that cancels is then 0, in any order. Four
    neighbouring keys are nearly equal, so no row has all its weight on one key: such a row would not show how the
    rounding of the inputs changes weights.
    """
    d = 2 ** int(rng.integers(4, 8))
    scale = rng.choice([d**-0.5, 0.1, 1.7])
    Q, K = queries_and_keys(rng, Nq, Nk, d, largest=1e3)
    K[:, 0] /= 8  # float32 rounds an lse far from 0; the edges have such scores
    K = K[np.minimum(np.arange(Nk), Nk - Nk % 4 - 1) // 4 * 4] + 0.3 * rng.normal(size=(Nk, d))
    V, dO = (np.round(2 * rng.normal(size=(N, d))) for N in (Nk, Nq))
    dO *= 2.0 ** rng.choice([0, 0, -40, 40])
    return *(np.float32(x) for x in (Q / (scale * np.sqrt(d)), K, V, dO)), float(scale)


def of_rounded_scores(Q, K, V, dO, mask, scale):
    """Compute the ``Gradients`` with each score off by as much as float32 may round its sum, up or down in turn.

    lse and delta are not rounded, so the weights of a row do not quite sum to 1, as those of a kernel.
    """
    scale = Q.shape[1] ** -0.5 if scale is None else scale
    O, lse = attention.attention(Q, K, V, mask=mask, scale=scale, return_lse=True)  # [Nq, d], [Nq]
    Nq, Nk = shape = len(Q), len(K)
    S = Rules(mask, scale=scale).scores(Q, K, slice(0, Nq), slice(0, Nk), shape)  # [Nq, Nk]
    turns = (-1.0) ** np.add.outer(np.arange(Nq), np.arange(Nk))  # [Nq, Nk]
    S += 2.0**-23 * scale * (np.abs(Q) @ np.abs(K).T) * turns
    return recomputation.gradients(Q, K, V, dO, recomputation.rebuild(S, lse), recomputation.delta(dO, O), scale)


def column(*numbers):
    """Return rows [N, BLOCK] in which only the first number is not 0."""
    return np.float32(numbers)[:, None] * np.eye(1, BLOCK, dtype=np.float32)


# Q, K, V and dO of heads that can be followed by hand

APART = np.float32([[0], [1]]) * np.eye(1, BLOCK, 1, dtype=np.float32)  # a second number of two rows
THREE = column(4, 4, 4), column(1, 1) + APART - APART[::-1], column(3, -3), column(2, 2, 2)
ONE_MORE = column(*[4] * 17), column(*range(18)), column(*range(18)), column(*[2] * 17)
ALL_BUT_ONE = (
    column(*[1] * 16),
    column(*[1] * 30) + np.eye(30, BLOCK, dtype=np.float32),
    column(*range(30)),
    column(*[1] * 16),
)
FAR_ABOVE = column(4, 4), column(0, 200), column(1, 2), column(1, 1)
FAR = column(2**20, -(2**20)), column(2**20), column(3), column(2, 5)

SEES_NOTHING = "causal: the first query sees no key, the last one two keys whose values cancel"
HIDDEN_ABOVE = "causal: a key far above the other one, which the first query does not see"
FAR_FROM_0 = "one key, and scores of 2⁴⁰ and −2⁴⁰"


def two_queries(x):
    """Return Q, K, V and dO of two queries, both with the scores x; only the second has a gradient.

    Key j has a 1 in column j + 1. The first key has no value.
    """
    Q, K, V, dO = (np.zeros((N, BLOCK), np.float32) for N in (2, len(x), len(x), 2))
    Q[:, 0] = dO[1, 0] = V[1:, 0] = 1
    K[:, 0], K[:, 1 : len(x) + 1] = x, np.eye(len(x))
    return Q, K, V, dO
