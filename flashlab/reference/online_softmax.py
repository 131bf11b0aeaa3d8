"""The online softmax: what must be kept of a block of scores so that blocks may come one by one, in any order.

The state kept per row is (m, l, O): the maximum, the sum of exponentials relative to it, and the sum of values weighted
with them. States form a commutative monoid under ``merge``, with ``identity`` as its neutral element.

Source: Milakov and Gimelshein 2018 for (m, l); FlashAttention-2, section 3.1.1 for the unnormalised output beside them.
"""

from typing import NamedTuple

import numpy as np

from flashlab.reference.safe_softmax import place_row


class State(NamedTuple):
    """The state of Br rows after some of their keys."""

    m: np.ndarray  # [Br]      running maximum
    l: np.ndarray  # [Br]      running denominator, relative to m
    O: np.ndarray  # [Br, dv]  running output, relative to m, not yet divided by l


def identity(Br, dv, dtype=np.float32) -> State:
    """Return the state of Br rows that have met no key."""
    return State(np.full(Br, -np.inf, dtype), np.zeros(Br, dtype), np.zeros((Br, dv), dtype))


def sink(score, Br, dv, dtype=np.float32) -> State:
    """Return the state of Br rows that have met one key with this score, whose value is 0: an attention sink."""
    return State(np.full(Br, score, dtype), np.ones(Br, dtype), np.zeros((Br, dv), dtype))


def update(state, S_ij, V_j) -> State:
    """Take in one block of scores S_ij [Br, Bc] and its values V_j [Bc, dv]. Masked scores are -inf."""
    m_i, l_i, O_i = state
    if S_ij.shape != (len(m_i), len(V_j)) or V_j.shape[1:] != O_i.shape[1:]:
        raise ValueError(f"expected S_ij [Br, Bc], V_j [Bc, dv] for O {O_i.shape}, got {S_ij.shape}, {V_j.shape}")
    m_new = np.maximum(m_i, S_ij.max(-1, initial=-np.inf))  # [Br]
    m_safe = np.where(m_new == -np.inf, 0, m_new)  # [Br]      a row that has met no key yet
    alpha = np.exp(m_i - m_safe)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = alpha[:, None] * O_i + P_ij @ V_j  # [Br, dv]
    return State(m_new, l_i, O_i)


def merge(a, b) -> State:
    """Return the state of the keys of a and b together."""
    m = np.maximum(a.m, b.m)  # [Br]
    m_safe = np.where(m == -np.inf, 0, m)  # [Br]
    alpha, beta = np.exp(a.m - m_safe), np.exp(b.m - m_safe)  # [Br], [Br]
    return State(m, alpha * a.l + beta * b.l, alpha[:, None] * a.O + beta[:, None] * b.O)


def finish(state):
    """Return O [Br, dv] and lse [Br] of rows that have met all their keys; 0 and -inf where there was none."""
    l_safe = np.where(state.l == 0, 1, state.l)  # [Br]
    lse = np.where(state.l == 0, -np.inf, state.m + np.log(l_safe))  # [Br]
    return state.O / l_safe[:, None], lse


def same(a, b, tolerance=1e-9) -> bool:
    """Do two states finish to the same output and lse, as far as rounding goes? NaN is never the same."""
    return all(np.allclose(x, y, tolerance, tolerance) for x, y in zip(finish(a), finish(b), strict=True))


def softmax_streamed(x, block, memory):
    """Compute the softmax of one row [N] that passes through fast memory by blocks: 2 loads and 1 store per element.

    Maximum and denominator come from one pass instead of two. A softmax needs no values, so they have width 0 here.
    memory: a ``machine.memory.Memory``, which books the accesses. Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    blocks = place_row(x, block, memory)
    state = identity(1, 0, x.dtype)
    for b in blocks:
        S_ij = memory.load("x", b)[None, :]  # [1, Bc]
        state = update(state, S_ij, np.empty((S_ij.shape[1], 0), x.dtype))
    m_safe, l_safe = np.where(state.m == -np.inf, 0, state.m), np.where(state.l == 0, 1, state.l)  # [1], [1]
    for b in blocks:
        memory.store("y", np.exp(memory.load("x", b) - m_safe) / l_safe, b)
    return memory.tensors["y"]
