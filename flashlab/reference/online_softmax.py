"""The online softmax: the state that lets blocks of scores arrive one at a time, in any order.

The state of a row is (m, l, O): the maximum, the sum of exponentials relative to it, and the sum of values weighted
with them. States form a commutative monoid under ``merge``, with ``identity`` as its neutral element.

Source: Milakov and Gimelshein 2018 for (m, l); FlashAttention-2, section 3.1.1 for the unnormalised output beside them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments, check_one_shape


class State(NamedTuple):
    """The state of Br rows after some of their keys."""

    m: np.ndarray  # [Br]      running maximum
    l: np.ndarray  # [Br]      running denominator, relative to m
    O: np.ndarray  # [Br, dv]  running output, relative to m, not yet divided by l


@check_arguments(Br=0, dv=0)
def identity(Br: int, dv: int, dtype: DTypeLike = np.float32) -> State:
    """Return the state of Br rows that have seen no key."""
    if not np.issubdtype(dtype, np.floating):
        raise TypeError(f"a state holds floating-point numbers, got {np.dtype(dtype)}")
    return State(np.full(Br, -np.inf, dtype), np.zeros(Br, dtype), np.zeros((Br, dv), dtype))


def update(state: State, S_ij: np.ndarray, V_j: np.ndarray) -> State:
    """Take in one block of scores S_ij [Br, Bc] and its values V_j [Bc, dv]. Masked scores are -inf."""
    m_i, l_i, O_i = state
    if S_ij.shape != (len(m_i), len(V_j)) or V_j.shape[1:] != O_i.shape[1:]:
        raise ValueError(f"expected S_ij [Br, Bc], V_j [Bc, dv] for O {O_i.shape}, got {S_ij.shape}, {V_j.shape}")
    m_new = np.maximum(m_i, S_ij.max(-1, initial=-np.inf))  # [Br]
    m_safe = np.where(m_new == -np.inf, 0, m_new)  # [Br]      rows that have seen no key yet
    alpha = np.exp(m_i - m_safe)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = alpha[:, None] * O_i + P_ij @ V_j  # [Br, dv]
    return State(m_new, l_i, O_i)


def merge(a: State, b: State) -> State:
    """Return the state of the keys of a and b together."""
    check_one_shape(a=a, b=b)
    m = np.maximum(a.m, b.m)  # [Br]
    m_safe = np.where(m == -np.inf, 0, m)  # [Br]
    alpha, beta = np.exp(a.m - m_safe), np.exp(b.m - m_safe)  # [Br], [Br]
    return State(m, alpha * a.l + beta * b.l, alpha[:, None] * a.O + beta[:, None] * b.O)


def finish(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return O [Br, dv] and lse [Br] of rows that have seen all their keys; 0 and -inf for rows without a key."""
    if not state.m.shape == state.l.shape == state.O.shape[:1]:
        raise ValueError(f"expected m [Br], l [Br], O [Br, dv], got {state.m.shape}, {state.l.shape}, {state.O.shape}")
    l_safe = np.where(state.l == 0, 1, state.l)  # [Br]
    lse = np.where(state.l == 0, -np.inf, state.m + np.log(l_safe))  # [Br]
    return state.O / l_safe[:, None], lse
