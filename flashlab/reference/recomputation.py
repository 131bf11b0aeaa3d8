"""The backward pass by tiles: each tile of weights is rebuilt from lse instead of stored.

The forward pass leaves O and one number per row, lse. One product gives a tile of scores S_ij again, exp(S_ij - lse_i)
is the normalised tile of weights, and rowsum(dO * O) replaces the only sum over a whole row in softmax's gradient.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments, check_one_shape
from flashlab.machine.memory import Memory
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.masks import Mask
from flashlab.reference.rules import PLAIN, Rules
from flashlab.reference.tiling import fa1_traffic, placed, tiles


class Gradients(NamedTuple):
    """Gradients of sum(dO * O), in the shapes of Q, K and V."""

    dQ: np.ndarray
    dK: np.ndarray
    dV: np.ndarray


def backward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    O: np.ndarray,
    lse: np.ndarray,
    dO: np.ndarray,
    Br: int,
    Bc: int,
    rules: Rules = PLAIN,
    *,
    memory: Memory | None = None,
) -> Gradients:
    """Compute the gradients of sum(dO * O) one tile at a time, without storing anything of the size of the scores.

    Keys and values are in the outer loop: dK_j and dV_j grow in fast memory, and each visit stores dQ_i.

    Args:
        Q, K, V, Br, Bc, memory: as for ``tiling.fa2_forward``. The forward pass may use other tiles.
        O, lse: results of the forward pass [Nq, dv], [Nq]; dO: gradient of the output [Nq, dv], in the dtype of Q.
        rules: those of the forward pass. With other rules O and lse do not match, and the gradients are wrong.

    Returns Gradients in the dtype of Q; float16 is computed in float32. A query that sees no key has dQ = 0. Raises
    TypeError, ValueError and FastMemoryFull as ``tiling.fa2_forward``.

    Source: FlashAttention, Algorithm 4, which stores m and l instead of lse; FlashAttention-2, Algorithm 2.
    """
    memory = _with_outputs(placed(Q, K, V, Br, Bc, memory, rules), O, lse, dO)
    shape, queries = (len(Q), len(K)), tiles(len(Q), Br)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        visited = rules.mask.T.tiles(cols, Br, shape[::-1])
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            dK_j, dV_j = np.zeros_like(K_j), np.zeros_like(V_j)  # [Bc, d], [Bc, dv]
            memory.hold(dK_j=dK_j, dV_j=dV_j)
            for i in visited if j > 0 else range(len(queries)):  # the first pass visits all: each row must be written
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
                S_ij = rules.scores(Q_i, K_j, rows, cols, shape)  # [Br, Bc]
                memory.hold(P_ij=S_ij, dS_ij=S_ij)  # the room of both: P_ij replaces S_ij, dS_ij replaces dP_ij
                scale = rules.scale_for(Q_i)
                Z_ij = 1 if rules.dropout is None else rules.dropout.tile(rows, cols, S_ij.dtype.type)  # [Br, Bc]
                slope_ij = rules.slope(Q_i, K_j, rows, cols, shape)  # [Br, Bc]
                part = gradients(Q_i, K_j, V_j, dO_i, rebuild(S_ij, lse_i), delta_i, scale, Z_ij, slope_ij)
                memory.drop("P_ij", "dS_ij")  # without a store
                dK_j += part.dK
                dV_j += part.dV
                memory.store("dQ", dQ_i + part.dQ, rows)
            memory.store("dK", dK_j, cols)
            memory.store("dV", dV_j, cols)
    return Gradients(*(memory.tensors[name] for name in ("dQ", "dK", "dV")))


def rebuild(S_ij: np.ndarray, lse_i: np.ndarray) -> np.ndarray:
    """Rebuild the weights P_ij [Br, Bc] from a tile of scores [Br, Bc] and the log-sum-exp lse_i [Br] of whole rows."""
    if lse_i.shape != S_ij.shape[:1]:
        raise ValueError(f"expected lse_i [Br] for S_ij [Br, Bc], got {lse_i.shape} for {S_ij.shape}")
    lse_safe = np.where(lse_i == -np.inf, 0, lse_i)  # [Br]      a row that sees no key
    return np.exp(S_ij - lse_safe[:, None])


def delta(dO_i: np.ndarray, O_i: np.ndarray) -> np.ndarray:
    """Compute delta_i [Br] = rowsum(dO_i * O_i), which is rowsum(P * dP) over all keys, for dO_i and O_i [Br, dv]."""
    check_one_shape(dO_i=dO_i, O_i=O_i)
    return (dO_i * O_i).sum(-1)


@check_arguments(sink=-np.inf)
def sink_gradient(sink: float, lse: np.ndarray, delta: np.ndarray) -> float:
    """Return the gradient of sum(dO * O) for the score of the sink, from lse [Nq] and delta [Nq] of all queries.

    The sink's value is 0, so its weight e^(sink - lse) has dP = 0, and dS = P * (0 - delta).
    """
    check_one_shape(lse=lse, delta=delta)
    return -(np.exp(sink - lse) * delta).sum()


def gradients(
    Q_i: np.ndarray,
    K_j: np.ndarray,
    V_j: np.ndarray,
    dO_i: np.ndarray,
    P_ij: np.ndarray,
    delta_i: np.ndarray,
    scale: float | np.floating,
    Z_ij: np.ndarray | int = 1,
    slope_ij: np.ndarray | int = 1,
) -> Gradients:
    """Return the gradients of one tile of weights P_ij [Br, Bc]: its parts of dQ_i, dK_j and dV_j.

    Z_ij: factors of dropout [Br, Bc], or 1; slope_ij: derivative of the score function [Br, Bc], or 1.

    Source: FlashAttention, appendix B.4.
    """
    if P_ij.shape != (len(Q_i), len(K_j)) or delta_i.shape != (len(Q_i),):
        expected = f"P_ij {(len(Q_i), len(K_j))} and delta_i {(len(Q_i),)}"
        raise ValueError(f"expected {expected}, got {P_ij.shape} and {delta_i.shape}")
    dV_j = (Z_ij * P_ij).T @ dO_i  # [Bc, dv]
    dP_ij = Z_ij * (dO_i @ V_j.T)  # [Br, Bc]
    dS_ij = slope_ij * (P_ij * (dP_ij - delta_i[:, None]))  # [Br, Bc]
    dQ_i = scale * (dS_ij @ K_j)  # [Br, d]
    dK_j = scale * (dS_ij.T @ Q_i)  # [Bc, d]
    return Gradients(dQ_i, dK_j, dV_j)


@check_arguments(Nq=0, Nk=0)
def traffic(
    Nq: int,
    Nk: int,
    d: int,
    Br: int,
    Bc: int,
    *,
    dv: int | None = None,
    mask: Mask | None = None,
    dtype: DTypeLike = np.float32,
) -> Counter[tuple[str, str]]:
    """Return the bill of ``backward`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    The visits are those of ``tiling.fa1_forward``, with dQ in place of O and delta in place of lse. Arguments as
    ``tiling.fa1_traffic``.
    """
    bill = fa1_traffic(Nq, Nk, d, Br, Bc, dv=dv, mask=mask, dtype=dtype)
    first = bill["store", "O"] - bill["load", "O"], bill["store", "lse"] - bill["load", "lse"]  # of the first visits
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


def _with_outputs(memory: Memory, O: np.ndarray, lse: np.ndarray, dO: np.ndarray) -> Memory:
    """Check O, lse and dO, and return the memory with these in place and room for the gradients."""
    Q, shape = memory.tensors["Q"], memory.tensors["O"].shape
    one_dtype(lse=lse)
    one_dtype(Q=Q, O=O, dO=dO)
    if O.shape != shape or dO.shape != shape or lse.shape != shape[:1]:
        raise ValueError(f"expected O and dO {shape} and lse {shape[:1]}, got {O.shape}, {dO.shape}, {lse.shape}")
    memory.place(O=O, lse=lse, dO=dO)
    memory.reserve("delta", lse.shape, lse.dtype)
    for name in "QKV":
        memory.reserve(f"d{name}", memory.tensors[name].shape, Q.dtype)
    return memory
