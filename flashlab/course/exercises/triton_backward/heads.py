"""Heads for which both gradients are computed, and a law that both kernels keep."""

import numpy as np
import torch

from flashlab.grading.exercise import Broken
from flashlab.kernels import DEVICE, INTERPRETED

BLOCK = 16  # rows of a tile, and the width of a head: the least that tl.dot multiplies
SCALE = BLOCK**-0.5  # as it is by default


def head_args(draw, Nq, Nk, d):
    """Return Q, K, V and dO as a regime draws them, not causal."""
    Q, K = draw.queries_and_keys(Nq, Nk, d)
    return Q, K, draw.normal(Nk, d), draw.normal(Nq, d), False


def head_of(size):
    """Return Q, K, V and dO of three queries and keys, for laws; dO is ``size`` times as large."""
    Q, K, V, dO = np.random.default_rng(17).normal(size=(4, 3, BLOCK)).astype(np.float32)
    return Q, K, V, np.float32(size) * dO


def two_queries(x):
    """Return Q, K, V and dO of two queries that both score the keys x; only the second has a gradient.

    Key j has a 1 in column j + 1. The first key has no value.
    """
    Q, K, V, dO = (np.zeros((N, BLOCK), np.float32) for N in (2, len(x), len(x), 2))
    Q[:, 0] = dO[1, 0] = V[1:, 0] = 1
    K[:, 0], K[:, 1 : len(x) + 1] = x, np.eye(len(x))
    return Q, K, V, dO


def cancelled():
    """Return Q, K, V and dO of a query whose two keys weigh the same and have opposite values: O = 0 and delta = 0."""
    rng = np.random.default_rng(15)
    K, V, dO = (rng.normal(size=(N, BLOCK)).astype(np.float32) for N in (2, 1, 1))
    K[:, 0] = 1
    return np.eye(1, BLOCK, dtype=np.float32), K, np.concatenate([V, -V]), dO


def future():
    """Return Q, K, V and dO of two queries, causal: the first does not see key 2, whose score is 200 above lse.

    Q and K are whole numbers: their products are exact in any order, and the second query's weights 0 and 1.
    """
    rng = np.random.default_rng(16)
    Q, K, V, dO = (rng.normal(size=(2, BLOCK)).astype(np.float32) for _ in range(4))
    Q, K = np.round(Q), np.round(K)
    Q[:, 0], K[:, 0] = 1, (0, 200)
    return Q, K, V, dO


def no_weight():
    """Return Q, K, V and dO of 20 queries and keys; the last 4 queries give all their weight to the last 4 keys."""
    Q, K, V, dO = np.random.default_rng(18).normal(size=(4, 20, BLOCK)).astype(np.float32)
    Q[:, 0], K[:, 0] = np.repeat((0, 1000), (16, 4)), np.repeat((0, 1), (16, 4))
    return Q, K, V, dO


def in_whole_numbers(Q, K, V, dO, *others):
    """Return the same in whole numbers, whose products and sums are exact in any order: then 0 is 0."""
    return *(np.round(2 * x) for x in (Q, K, V, dO)), *others


# Laws of their own inputs, which give lse and delta: rows of a longer text, of which these are the last keys.

AWAY = tuple(sign * 2.0**power for power in (7, 14, 31, 123) for sign in (1, -1))  # exact in any dtype of a product
MOVED = (
    "right for scores near 0, and wrong where scores and lse lie far from it: only their difference counts. Clip "
    "neither, and let no finite number stand for −∞."
)


def unmoved(weights, due):
    """Build a law: sums of weights are ``due`` wherever all scores and lse lie. ``weights(attempt, *tensors)``.

    Two queries, causal, whose scores are all ``height``, as is lse; values and dO are 1, delta is 0. Scores as far
    below lse as it lies from 0 have the weight 0; where both were clipped they would have 1.
    """

    def found(attempt, height, lse):
        one = torch.zeros(2, BLOCK, dtype=torch.float32, device=DEVICE)  # [2, BLOCK]
        one[:, 0] = 1
        lse, delta = (torch.full((2,), float(x), dtype=torch.float32, device=DEVICE) for x in (lse, 0))
        return weights(attempt, height / SCALE * one, one, one, one, lse, delta)

    def law(attempt):
        def right(height):
            return np.allclose(found(attempt, height, height), due, 0.01)

        def gone(height):
            return np.abs(found(attempt, min(height, 2 * height), max(height, 2 * height))).max() < 0.01

        if INTERPRETED and right(0) and right(1):
            for height in AWAY:
                if not (right(height) and gone(height)):
                    on = f"two queries and two keys, causal, whose scores are all {height:,.4g}"
                    return Broken(on, MOVED, if_right=True)
        return None

    return law
