"""Linear attention: without the exponential the product re-associates, and all of the past fits into one matrix.

Causal attention without its softmax is O = (QKᵀ ∘ mask) V, and (QKᵀ) V = Q (KᵀV). So the past needs no keys: its state
is KV = Σ kᵀv, [d, dv], however long it is. With ``decay`` each token shrinks what came before it: key j counts
decay^(i - j) for query i. Softmax attention is another function; this one does not approximate it.

States of neighbouring stretches merge by addition, the earlier one shrunk by the later one's length (``merge``): a
monoid, as (m, l, O) is. A chunk of C tokens computes its own C x C scores and takes the rest from the state: C = 1 is
a recurrence, C = N the quadratic form, and both give the same O.

All functions take one head, Q and K [N, d], V [N, dv] of one floating dtype; 0 < decay <= 1. None scales or normalises:
a column of ones in V gives the sums by which to divide.

Source: Katharopoulos et al. 2020, arXiv 2006.16236; chunks and decay as in Sun et al. 2023, arXiv 2307.08621.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments, check_one_shape
from flashlab.machine.memory import Memory
from flashlab.reference.attention import attention
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.tiling import tiles


class State(NamedTuple):
    """The trace that a stretch of n tokens leaves."""

    shrink: float  # decay^n: the factor on what came before the stretch
    KV: np.ndarray  # [d, dv]: the sum of kᵀv, each shrunk by the tokens after it


def quadratic(Q: np.ndarray, K: np.ndarray, V: np.ndarray, *, decay: float = 1.0) -> np.ndarray:
    """Compute O [N, dv] from the definition, with all N x N scores: the oracle for the chunks."""
    _check(Q, K, V)
    return (distances(len(Q), decay, Q.dtype) * (Q @ K.T)) @ V


@check_arguments(decay=(None, 1))
def chunked(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    C: int,
    *,
    decay: float = 1.0,
    start: np.ndarray | None = None,
    memory: Memory | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute attention chunk by chunk: the chunk's own scores, and the state for all that came before.

    Args:
        C: tokens per chunk; the last one may be shorter.
        start: the state KV [d, dv] before the first token; zeros if None.
        memory: a ``Memory`` that books the traffic; a fresh one if None. The state never leaves fast memory until the
            end.

    Returns:
        O [N, dv] in the dtype of Q, and the state KV [d, dv] after the last token, in float32 or better.

    Raises:
        TypeError, ValueError: dtypes, shapes, decay or C that do not match.
        FastMemoryFull: a chunk and the state do not fit into ``memory``.
    """
    _check(Q, K, V)
    memory, (d, dv) = Memory(record=False) if memory is None else memory, (Q.shape[1], V.shape[1])
    if start is not None and start.shape != (d, dv):
        raise ValueError(f"start must be a state [d, dv] = {(d, dv)}, got {start.shape}")
    wide = np.result_type(Q.dtype, np.float32)  # the dtype of the arithmetic
    memory.place(Q=Q, K=K, V=V, KV=np.zeros((d, dv), wide) if start is None else start.astype(wide))
    memory.reserve("O", V.shape, Q.dtype)
    with memory.kernel("head"):
        KV = memory.load("KV") if start is not None else np.zeros((d, dv), wide)  # [d, dv]
        memory.hold(KV=KV)
        for rows in tiles(len(Q), C):
            Q_i, K_i, V_i = (memory.load(name, rows) for name in "QKV")  # [C, d], [C, d], [C, dv]
            memory.hold(S_i=np.empty((len(Q_i), len(Q_i)), wide))  # [C, C]   the scores of this chunk
            O_i, KV = step(KV, Q_i, K_i, V_i, decay)  # [C, dv], [d, dv]
            memory.store("O", O_i, rows)
        memory.store("KV", KV)
    return memory.tensors["O"], memory.tensors["KV"]


def step(
    KV: np.ndarray, Q_i: np.ndarray, K_i: np.ndarray, V_i: np.ndarray, decay: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output O_i [C, dv] of a chunk, and the state KV [d, dv] after it.

    KV is the state before the chunk. Query r of the chunk is r + 1 tokens after the last token of that state, and key r
    is C - 1 - r tokens before the last one of the chunk.
    """
    _check(Q_i, K_i, V_i)
    if KV.shape != (Q_i.shape[1], V_i.shape[1]):
        raise ValueError(f"expected a state KV [d, dv] = {(Q_i.shape[1], V_i.shape[1])}, got {KV.shape}")
    C = len(Q_i)
    r = np.arange(C)  # [C]
    S_i = distances(C, decay, Q_i.dtype) * (Q_i @ K_i.T)  # [C, C]
    past = powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)  # [C, dv]
    O_i = S_i @ V_i + past  # [C, dv]
    left = powers(decay, C - 1 - r, Q_i.dtype)[:, None] * K_i  # [C, d]
    KV = powers(decay, C, Q_i.dtype) * KV + left.T @ V_i  # [d, dv]
    return O_i, KV


@check_arguments(decay=(None, 1))
def state(K: np.ndarray, V: np.ndarray, *, decay: float = 1.0) -> State:
    """Return the ``State`` of a stretch of tokens."""
    if K.ndim != 2 or V.ndim != 2 or len(K) != len(V):
        raise ValueError(f"expected K [n, d] and V [n, dv], got {K.shape} and {V.shape}")
    n = len(K)
    left = powers(decay, n - 1 - np.arange(n), K.dtype)[:, None] * K  # [n, d]
    return State(decay**n, left.T @ V)


@check_arguments()
def merge(first: State, second: State) -> State:
    """Return the state of two neighbouring stretches, in this order: the second one shrinks the first."""
    check_one_shape(first=first.KV, second=second.KV)
    return State(first.shrink * second.shrink, second.shrink * first.KV + second.KV)


@check_arguments(d=0, dv=0)
def identity(d: int, dv: int, dtype: DTypeLike = np.float32) -> State:
    """Return the state of no tokens."""
    if not np.issubdtype(dtype, np.floating):
        raise TypeError(f"a state holds floating-point numbers, got {np.dtype(dtype)}")
    return State(1.0, np.zeros((d, dv), dtype))


@check_arguments(C=0, decay=(None, 1))
def distances(C: int, decay: float, dtype: DTypeLike) -> np.ndarray:
    """Return decay^(i - j) where query i sees key j, and 0 where it does not, [C, C]."""
    away = np.arange(C)[:, None] - np.arange(C)  # [C, C]
    return np.where(away >= 0, powers(decay, np.maximum(away, 0), dtype), 0).astype(dtype)


@check_arguments(decay=(None, 1))
def powers(decay: float, n: int | np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Return decay^n as numbers of ``dtype``."""
    return np.power(float(decay), n).astype(dtype)


# Costs


@check_arguments(N=0)
def flops(N: int, d: int, C: int, *, dv: int | None = None) -> int:
    """Return the FLOPs of the matrix products of ``chunked``.

    A chunk of c tokens has c² (d + dv) multiply-adds of its own and 2 c d dv with the state, two FLOPs each. For C that
    divides N and dv = d that is 4 N d (C + d).
    """
    dv = d if dv is None else dv
    sizes = [rows.stop - rows.start for rows in tiles(N, C)]
    return sum(2 * c * c * (d + dv) + 4 * c * d * dv for c in sizes)


@check_arguments(N=0)
def softmax_flops(N: int, d: int, C: int) -> int:
    """Return the FLOPs of causal softmax attention by square tiles of C, ``tiling.fa2_forward``.

    For C that divides N that is 2 N d (N + C).
    """
    return sum(4 * d * (rows.stop - rows.start) * rows.stop for rows in tiles(N, C))


@check_arguments()
def crossover(C: int, d: int) -> int:
    """Return the length N above which chunks take fewer FLOPs: 2 N d (N + C) = 4 N d (C + d) at N = C + 2 d."""
    return C + 2 * d


@check_arguments(N=0)
def traffic(N: int, d: int, *, dv: int | None = None, dtype: DTypeLike = np.float32) -> Counter[tuple[str, str]]:
    """Return the bill of ``chunked`` from an empty state: bytes by (direction, tensor), as in ``Memory.bytes``."""
    dv, size = d if dv is None else dv, np.dtype(dtype).itemsize
    return Counter({
        ("load", "Q"): N * d * size, ("load", "K"): N * d * size, ("load", "V"): N * dv * size,
        ("store", "O"): N * dv * size, ("store", "KV"): state_bytes(d, dv=dv, dtype=dtype),
    })  # fmt: skip


@check_arguments()
def state_bytes(d: int, *, dv: int | None = None, dtype: DTypeLike = np.float32) -> int:
    """Return the bytes of the state of one head, which is kept in float32 or better."""
    return d * (d if dv is None else dv) * np.result_type(dtype, np.float32).itemsize


@check_arguments(N=0)
def cache_bytes(N: int, d: int, *, dv: int | None = None, dtype: DTypeLike = np.float32) -> int:
    """Return the bytes of the keys and values of one head, which softmax attention keeps instead."""
    return N * (d + (d if dv is None else dv)) * np.dtype(dtype).itemsize


# What a state can hold


def recall(K: np.ndarray, V: np.ndarray, *, decay: float = 1.0, scale: float | None = None) -> np.ndarray:
    """Return which of n stored pairs are found by their keys: booleans [n].

    Each key queries the state of all pairs; a pair is found if its value is closest to the answer in
    direction. K: keys [n, d] of length 1; V: values [n, dv] of length 1. The answer is that of the state with this
    decay; with ``scale`` that of softmax attention, with this factor on its scores.
    """
    O = K @ state(K, V, decay=decay).KV if scale is None else attention(K, K, V, scale=scale)  # [n, dv]
    return (O @ V.T).argmax(-1) == np.arange(len(K))


@check_arguments(n=0, seed=0)
def directions(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Draw n vectors [n, d] of length 1, in random directions."""
    X = np.random.default_rng(seed).normal(size=(n, d))  # [n, d]
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def _check(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> None:
    one_dtype(Q=Q, K=K, V=V)
    if any(tensor.ndim != 2 for tensor in (Q, K, V)) or Q.shape != K.shape or len(K) != len(V):
        raise ValueError(f"expected Q [N, d], K [N, d], V [N, dv], got {Q.shape}, {K.shape}, {V.shape}")
