"""The backward pass by tiles: the weights are not kept from the forward pass, they are built again from lse.

The forward pass leaves O and one number per row, lse. A tile of scores is one product away, exp(S_ij - lse_i) is the
finished tile of weights, and rowsum(dO * O) replaces the one sum over a whole row that softmax's gradient needs.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.linalg import norm

from flashlab.reference.scores import as_score
from flashlab.reference.tiling import fa1_traffic, fa2_forward, prepare, scores, tiles


class Gradients(NamedTuple):
    """Gradients of sum(dO * O), shaped like what they belong to."""

    dQ: np.ndarray
    dK: np.ndarray
    dV: np.ndarray


def backward(
    Q, K, V, O, lse, dO, Br, Bc, *, mask=None, score=None, sink=None, dropout=None, scale=None, memory=None
):  # fmt: skip
    """Compute the gradients of sum(dO * O) one tile at a time; nothing of the size of the scores is ever stored.

    Keys and values are outside: dK_j and dV_j grow in fast memory, dQ_i goes back to slow memory after every visit.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        O, lse: what the forward pass returned [Nq, dv], [Nq]; dO: gradient of the output [Nq, dv], in Q's dtype.
        Br, Bc: rows of a tile of queries, and of a tile of keys and values; they need not be the forward pass's.
        mask, score, sink, dropout, scale: as in the forward pass.
        memory: a ``Memory`` that books the traffic; a fresh one of any size if None.

    Returns:
        Gradients (dQ [Nq, d], dK [Nk, d], dV [Nk, dv]) in the dtype of Q; float16 is computed in float32. A query that
        sees no key has dQ = 0 and adds nothing to dK and dV.

    Raises:
        TypeError, ValueError: dtypes, shapes or tile sizes that do not match, or O and lse of another forward pass.
        FastMemoryFull: the tiles do not fit into ``memory``.

    Source: FlashAttention, Algorithm 4, which keeps m and l instead of lse; FlashAttention-2, Algorithm 2.
    """
    memory, scale, mask, score = _prepare(Q, K, V, O, lse, dO, Br, Bc, mask, score, sink, dropout, scale, memory)
    shape = len(Q), len(K)
    queries = tiles(len(Q), Br)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        met = mask.T.tiles(cols, Br, shape[::-1])
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            dK_j, dV_j = np.zeros_like(K_j), np.zeros_like(V_j)  # [Bc, d], [Bc, dv]
            memory.hold(dK_j=dK_j, dV_j=dV_j)
            for i in met if j > 0 else range(len(queries)):  # all in the first pass: someone must write their dQ
                rows = queries[i]
                Q_i, dO_i, lse_i = (memory.load(name, rows) for name in ("Q", "dO", "lse"))  # [Br, d], [Br, dv], [Br]
                if j == 0:
                    dQ_i = np.zeros_like(Q_i)  # [Br, d]
                    delta_i = delta(dO_i, memory.load("O", rows))  # [Br]
                    memory.store("delta", delta_i, rows)
                    memory.drop("O")
                    memory.hold(dQ=dQ_i, delta=delta_i)
                else:
                    dQ_i, delta_i = memory.load("dQ", rows), memory.load("delta", rows)  # [Br, d], [Br]
                S_ij = scores(Q_i, K_j, rows, cols, scale, mask, shape, score)  # [Br, Bc]
                memory.hold(P_ij=S_ij, dS_ij=S_ij)  # the room of both: P_ij takes that of S_ij, dS_ij that of dP_ij
                Z_ij = 1 if dropout is None else dropout.tile(rows, cols, S_ij.dtype.type)  # [Br, Bc]
                slope_ij = 1 if score is None else score.slope(scale * (Q_i @ K_j.T), rows, cols, shape)  # [Br, Bc]
                part = gradients(Q_i, K_j, V_j, dO_i, rebuild(S_ij, lse_i), delta_i, scale, Z_ij, slope_ij)
                memory.drop("P_ij", "dS_ij")  # never stored
                dK_j += part.dK
                dV_j += part.dV
                memory.store("dQ", dQ_i + part.dQ, rows)
            memory.store("dK", dK_j, cols)
            memory.store("dV", dV_j, cols)
    return Gradients(*(memory.tensors[name] for name in ("dQ", "dK", "dV")))


def rebuild(S_ij, lse_i):
    """Rebuild the weights P_ij [Br, Bc] from a tile of scores [Br, Bc] and the log-sum-exp lse_i [Br] of whole rows."""
    lse_safe = np.where(lse_i == -np.inf, 0, lse_i)  # [Br]      a row that sees no key
    return np.exp(S_ij - lse_safe[:, None])


def delta(dO_i, O_i):
    """Compute delta_i [Br] = rowsum(dO_i * O_i), which is rowsum(P * dP) over all keys, for dO_i and O_i [Br, dv]."""
    return (dO_i * O_i).sum(-1)


def sink_gradient(sink, lse, delta):
    """Return the gradient of sum(dO * O) for the score of the sink, from lse [Nq] and delta [Nq] of all queries.

    The sink's value is 0, so its weight e^(sink - lse) has dP = 0, and dS = P * (0 - delta).
    """
    return -(np.exp(sink - lse) * delta).sum()


def gradients(Q_i, K_j, V_j, dO_i, P_ij, delta_i, scale, Z_ij=1, slope_ij=1):
    """Return what one tile of weights P_ij [Br, Bc] adds to dQ_i [Br, d], dK_j [Bc, d] and dV_j [Bc, dv].

    Z_ij: factors of dropout [Br, Bc]; slope_ij: derivative of the score function [Br, Bc]. Both are 1 without.

    Source: FlashAttention, appendix B.4.
    """
    dV_j = (Z_ij * P_ij).T @ dO_i  # [Bc, dv]
    dP_ij = Z_ij * (dO_i @ V_j.T)  # [Br, Bc]
    dS_ij = slope_ij * (P_ij * (dP_ij - delta_i[:, None]))  # [Br, Bc]
    dQ_i = scale * (dS_ij @ K_j)  # [Br, d]
    dK_j = scale * (dS_ij.T @ Q_i)  # [Bc, d]
    return Gradients(dQ_i, dK_j, dV_j)


def traffic(Nq, Nk, d, Br, Bc, *, dv=None, mask=None, dtype=np.float32):
    """Return the bill of ``backward`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    The visits are those of ``tiling.fa1_forward``: what it does with O and lse, ``backward`` does with dQ and delta.
    Arguments as ``tiling.fa1_traffic``.
    """
    bill = fa1_traffic(Nq, Nk, d, Br, Bc, dv=dv, mask=mask, dtype=dtype)
    first = bill["store", "O"] - bill["load", "O"], bill["store", "lse"] - bill["load", "lse"]  # what first visits move
    return Counter(
        {
            **{("load", name): bill["load", name] for name in "QKV"},
            ("load", "dO"): bill["store", "O"],
            ("load", "lse"): bill["store", "lse"],
            ("load", "O"): first[0],
            ("store", "delta"): first[1],
            ("load", "delta"): bill["load", "lse"],
            ("load", "dQ"): bill["load", "Q"] - Nq * d * np.dtype(dtype).itemsize,
            ("store", "dQ"): bill["load", "Q"],
            ("store", "dK"): bill["load", "K"],
            ("store", "dV"): bill["load", "V"],
        }
    )


def _prepare(Q, K, V, O, lse, dO, Br, Bc, mask, score, sink, dropout, scale, memory):
    memory, scale, mask = prepare(Q, K, V, Br, Bc, mask, scale, memory)
    shape = len(Q), V.shape[1]
    if O.shape != shape or dO.shape != shape or lse.shape != shape[:1]:
        raise ValueError(f"expected O and dO {shape} and lse {shape[:1]}, got {O.shape}, {dO.shape}, {lse.shape}")
    if not Q.dtype == O.dtype == dO.dtype:
        raise TypeError(f"O and dO must have the dtype of Q, {Q.dtype}, got {O.dtype} and {dO.dtype}")
    given = dict(mask=mask, score=score, sink=sink, dropout=dropout, scale=scale)
    _check_forward(Q, K, V, O, lse, Br, Bc, given)
    memory.place(O=O, lse=lse, dO=dO)
    memory.reserve("delta", lse.shape, lse.dtype)
    for name, like in {"dQ": Q, "dK": K, "dV": V}.items():
        memory.reserve(name, like.shape, like.dtype)
    return memory, scale, mask, as_score(score)


def _check_forward(Q, K, V, O, lse, Br, Bc, given):
    """Run the forward pass again: every row of O and lse must be that of the mask, scale and others ``given``."""
    Q, K, V = (np.asarray(X, lse.dtype) for X in (Q, K, V))
    O_again, lse_again = fa2_forward(Q, K, V, Br, Bc, **given)
    roundings = 512 * np.finfo(lse.dtype).eps
    largest = 1 + abs(given["scale"]) * norm(Q, axis=1) * norm(K, axis=1).max(
        initial=0
    )  # [Nq]      no score exceeds it
    with np.errstate(invalid="ignore"):  # -inf - -inf: NaN, which is no difference
        other = np.abs(lse - lse_again) > roundings * largest  # [Nq]
    other |= norm(O - O_again, axis=1) > 0.02 * norm(O_again, axis=1) + roundings * np.abs(V).max(initial=0)
    if other.any():
        given = "mask, score, sink, scale and dropout"
        raise ValueError(f"O and lse of row {other.argmax()} are not those of this {given}: pass the forward's")
