"""Ring attention with all ranks in one process: who has which keys in which step, in numpy.

A rank keeps its queries. Keys and values go round: in each step a rank computes with those that it has, merges, and
hands them to the next rank. After P steps every query has seen every key, and the keys are back at their owners.

Source: Ring Attention, arXiv 2310.01889; FlashAttention-2, Algorithm 2, for the gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flashlab.machine.ranks import Runs
from flashlab.reference import masks
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.online_softmax import finish, identity, update
from flashlab.reference.recomputation import delta, gradients, rebuild


class Event(NamedTuple):
    """One thing that a rank did."""

    kind: str  # "compute" or "send"
    step: int
    rank: int
    owner: int  # rank whose keys these are
    amount: int  # scores that the mask shows, or bytes


def positions(runs: Runs) -> np.ndarray:
    """Return the positions [n] in the text of one rank's tokens, in the order in which the rank keeps them."""
    return np.array([position for run in runs for position in run], int)


def check(placement: Sequence[Runs], **tensors: np.ndarray) -> None:
    """Raise TypeError or ValueError unless tensors [N, ...] have one floating dtype, and each token one rank."""
    one_dtype(**tensors)
    N, *others = map(len, tensors.values())
    if any(n != N for n in others):
        found = ", ".join(f"{name} {x.shape}" for name, x in tensors.items())
        raise ValueError(f"{', '.join(tensors)} must have a row for each token, got {found}")
    try:
        owned = sorted(position for runs in placement for run in runs for position in run)
    except TypeError:  # no ranks, or no runs of positions
        owned = None
    if owned != list(range(N)):
        raise ValueError(f"a placement must give each of the {N} tokens to one rank, got {placement!r:.60}")


def merge(O: np.ndarray, lse: np.ndarray, O_b: np.ndarray, lse_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return O [n, dv] and lse [n] of the keys of both sides, each of which has divided by its own sum already."""
    if O.shape != O_b.shape or not O.shape[:1] == lse.shape == lse_b.shape:
        found = ", ".join(str(x.shape) for x in (O, lse, O_b, lse_b))
        raise ValueError(f"expected O [n, dv], lse [n], O_b [n, dv], lse_b [n], got {found}")
    m = np.maximum(lse, lse_b)  # [n]
    m_safe = np.where(m == -np.inf, 0, m)  # [n]      rows that have seen no key yet
    l, l_b = np.exp(lse - m_safe), np.exp(lse_b - m_safe)  # [n], [n]   each side's sum, relative to m
    l_safe = np.where(m == -np.inf, 1, l + l_b)  # [n]
    return (l[:, None] * O + l_b[:, None] * O_b) / l_safe[:, None], m + np.log(l_safe)


def attend(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, i: np.ndarray, j: np.ndarray, mask: masks.Mask | None, N: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return O [n, dv] and lse [n] of queries at positions i and keys at positions j of a text of N tokens."""
    S = scores(Q, K, i, j, mask, N)  # [n, n of the owner]
    return finish(update(identity(len(Q), V.shape[1], Q.dtype), S, V))


def scores(Q: np.ndarray, K: np.ndarray, i: np.ndarray, j: np.ndarray, mask: masks.Mask | None, N: int) -> np.ndarray:
    """Return the scaled scores [n, n of the owner], -inf where a query does not see the key."""
    visible = masks.as_mask(mask).visible(i[:, None], j[None, :], (N, N))
    return np.where(visible, Q @ K.T * Q.shape[1] ** -0.5, -np.inf).astype(Q.dtype)


def forward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    placement: Sequence[Runs],
    *,
    mask: masks.Mask | None = None,
    events: list[Event] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute O [N, dv] and lse [N] over the ranks of a placement, of Q and K [N, d] and V [N, dv].

    placement: the runs of each rank, as ``machine.ranks`` makes them. mask: one of ``reference.masks``. events: a list
    that takes an ``Event`` for each block computed and each one sent.
    """
    check(placement, Q=Q, K=K, V=V)
    P, N = len(placement), len(Q)
    here = [positions(runs) for runs in placement]  # [n] of each rank
    has = [(K[j], V[j]) for j in here]  # K and V that each rank has now: at first its own
    states = [(np.zeros((len(i), V.shape[1]), Q.dtype), np.full(len(i), -np.inf, Q.dtype)) for i in here]
    for step in range(P):
        for rank, i in enumerate(here):
            owner = (rank - step) % P
            states[rank] = merge(*states[rank], *attend(Q[i], *has[rank], i, here[owner], mask, N))
            if events is not None:
                events.append(Event("compute", step, rank, owner, seen(i, here[owner], mask, N)))
                if step < P - 1:
                    events.append(Event("send", step, rank, owner, sum(x.nbytes for x in has[rank])))
        has = has[-1:] + has[:-1]  # each hands on what it has, all at once
    O, lse = np.empty((N, V.shape[1]), Q.dtype), np.empty(N, Q.dtype)
    for i, (O_i, lse_i) in zip(here, states, strict=True):
        O[i], lse[i] = O_i, lse_i
    return O, lse


def seen(i: np.ndarray, j: np.ndarray, mask: masks.Mask | None, N: int) -> int:
    """Return how many scores of queries at positions i and keys at positions j the mask shows."""
    visible = masks.as_mask(mask).visible(i[:, None], j[None, :], (N, N))
    return int(np.broadcast_to(visible, (len(i), len(j))).sum())


def backward(
    dO: np.ndarray,
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    O: np.ndarray,
    lse: np.ndarray,
    placement: Sequence[Runs],
    *,
    mask: masks.Mask | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute dQ, dK and dV, each [N, ...], given O and lse of all keys. The gradients of keys travel with them."""
    check(placement, Q=Q, K=K, V=V, O=O, dO=dO)
    if lse.shape != (len(Q),):
        raise ValueError(f"expected lse [N] = {(len(Q),)}, got {lse.shape}")
    P, N = len(placement), len(Q)
    here = [positions(runs) for runs in placement]  # [n] of each rank
    has = [(K[j], V[j], np.zeros_like(K[j]), np.zeros_like(V[j])) for j in here]
    dQ, deltas = np.zeros_like(Q), delta(dO, O)  # [N, d], [N]
    for step in range(P):
        for rank, i in enumerate(here):
            K_b, V_b, dK_b, dV_b = has[rank]
            S = scores(Q[i], K_b, i, here[(rank - step) % P], mask, N)  # [n, n of the owner]
            P_b = rebuild(S, lse[i])  # [n, n of the owner]   with lse of all keys
            shares = gradients(Q[i], K_b, V_b, dO[i], P_b, deltas[i], Q.dtype.type(Q.shape[1] ** -0.5))
            dQ[i] += shares[0]
            dK_b += shares[1]
            dV_b += shares[2]
        has = has[-1:] + has[:-1]  # after P hops each pair is at its owner
    dK, dV = np.empty_like(K), np.empty_like(V)
    for j, (_, _, dK_b, dV_b) in zip(here, has, strict=True):
        dK[j], dV[j] = dK_b, dV_b
    return dQ, dK, dV
