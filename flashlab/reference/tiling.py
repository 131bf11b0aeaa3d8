"""Attention one tile at a time, in the two orders in which the tiles can come.

Both functions feed the same six lines, ``online_softmax.update``. They differ in what stays in fast memory while the
rest streams past: ``fa2_forward`` keeps a tile of queries and its state, ``fa1_forward`` a tile of keys and values.
"""

from collections import Counter
from numbers import Integral

import numpy as np

from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax


def tiles(N, B):
    """The slices of at most B that cover range(N)."""
    return [slice(start, min(start + B, N)) for start in range(0, N, B)]


def fa2_forward(Q, K, V, Br, Bc, *, causal=False, scale=None, memory=None):
    """Attention with the queries outside: each tile of queries meets all keys before the next one starts.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        Br, Bc: rows of a tile of queries, and of a tile of keys and values.
        causal: query i sees keys j <= i + Nk - Nq; tiles that no query of the tile sees are not visited.
        scale: factor on the scores, 1/sqrt(d) if None.
        memory: a ``Memory`` that books the traffic; a fresh one of any size if None.

    Returns:
        O [Nq, dv] in the dtype of Q, and lse [Nq] in float32 or better. A row that sees no key has 0 and -inf.

    Raises:
        TypeError, ValueError: dtypes, shapes or tile sizes that do not match, in one sentence.
        FastMemoryFull: the tiles do not fit into ``memory``.

    Source: FlashAttention-2, Algorithm 1.
    """
    memory, scale, shift = prepare(Q, K, V, Br, Bc, causal, scale, memory)
    keys = tiles(len(K), Bc)
    for rows in tiles(len(Q), Br):
        with memory.kernel("program"):
            Q_i = memory.load("Q", rows)  # [Br, d]
            state = online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype)
            memory.hold(m_i=state.m, l_i=state.l, O_i=state.O)
            for cols in keys:
                if not meet(rows, cols, shift):
                    break
                K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
                S_ij = scores(Q_i, K_j, rows, cols, scale, shift)  # [Br, Bc]
                memory.hold(S_ij=S_ij)  # P_ij will take its place
                state = online_softmax.update(state, S_ij, V_j)
            O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
            memory.store("O", O_i, rows)
            memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def fa1_forward(Q, K, V, Br, Bc, *, causal=False, scale=None, memory=None):
    """Attention with the keys and values outside: each of their tiles meets all queries before the next one comes.

    The output goes back to slow memory after every meeting, normalised, and returns for the next one: (lse, 1, O) is
    the state of a finished tile. Algorithm 1 of the paper keeps m and l instead of lse; the released kernel, as here,
    keeps lse. Arguments, results and errors as ``fa2_forward``.

    Source: FlashAttention, Algorithm 1.
    """
    memory, scale, shift = prepare(Q, K, V, Br, Bc, causal, scale, memory)
    queries = tiles(len(Q), Br)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            for rows in queries:
                if j > 0 and not meet(rows, cols, shift):
                    continue
                Q_i = memory.load("Q", rows)  # [Br, d]
                if j == 0:  # also the rows that see no key: someone must write their output
                    state = online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype)
                    memory.hold(O=state.O, lse=state.m)
                else:
                    lse_i = memory.load("lse", rows)  # [Br]
                    state = online_softmax.State(lse_i, np.ones_like(lse_i), memory.load("O", rows))
                S_ij = scores(Q_i, K_j, rows, cols, scale, shift)  # [Br, Bc]
                memory.hold(S_ij=S_ij)
                state = online_softmax.update(state, S_ij, V_j)
                O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
                memory.store("O", O_i, rows)
                memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def scores(Q_i, K_j, rows, cols, scale, shift):
    """One tile of scores S_ij [Br, Bc], for the slices ``rows`` of Q_i [Br, d] and ``cols`` of K_j [Bc, d].

    Query i sees the keys j <= i + shift, others are -inf. Only a tile that this diagonal crosses needs the mask.
    """
    S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
    if cols.stop - 1 > rows.start + shift:
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]   places in the whole matrix, not in the tile
        S_ij = np.where(j <= i + shift, S_ij, -np.inf)
    return S_ij


def meet(rows, cols, shift):
    """Does the last query of the tile see its first key?"""
    return cols.start <= rows.stop - 1 + shift


def fa2_traffic(Nq, Nk, d, Br, Bc, *, dv=None, causal=False, dtype=np.float32):
    """The bill of ``fa2_forward`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    Q is read once and O written once; K and V are read again for each of the Tr tiles of queries.

    Args: lengths, head dimensions (dv is d if None), tile sizes, and the dtype of Q, K, V and O.
    """
    shift = Nk - Nq if causal else Nk
    dv = d if dv is None else dv
    seen = [min(max(rows.stop + shift, 0), Nk) for rows in tiles(Nq, Br)]  # keys that some query of the tile sees
    keys = sum(min(_round_up(n, Bc), Nk) for n in seen)
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): Nq * d * size, ("load", "K"): keys * d * size, ("load", "V"): keys * dv * size}
    return Counter({**loads, ("store", "O"): Nq * dv * size, ("store", "lse"): Nq * stat})


def fa1_traffic(Nq, Nk, d, Br, Bc, *, dv=None, causal=False, dtype=np.float32):
    """The bill of ``fa1_forward`` without running it. Arguments and result as ``fa2_traffic``.

    K and V are read once; Q is read, and O and lse are written, for each of the Tc tiles of keys; O and lse are read
    for each but the first.
    """
    shift = Nk - Nq if causal else Nk
    dv = d if dv is None else dv
    blind = [min(max(cols.start - shift, 0), Nq) for cols in tiles(Nk, Bc)[1:]]  # queries that see no key of the tile
    again = sum(Nq - n // Br * Br for n in blind)
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): (Nq + again) * d * size, ("load", "K"): Nk * d * size, ("load", "V"): Nk * dv * size}
    states = {("load", "O"): again * dv * size, ("load", "lse"): again * stat}
    return Counter({**loads, **states, ("store", "O"): (Nq + again) * dv * size, ("store", "lse"): (Nq + again) * stat})


def _round_up(n, B):
    return -(-n // B) * B


def prepare(Q, K, V, Br, Bc, causal, scale, memory):
    """A memory with the inputs in place, the scale, and the shift of the diagonal: query i sees keys j <= i + shift."""
    for name, tensor in {"Q": Q, "K": K, "V": V}.items():
        if not isinstance(tensor, np.ndarray):
            raise TypeError(f"{name} must be a numpy array, got {type(tensor).__name__}")
    if any(tensor.ndim != 2 for tensor in (Q, K, V)) or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    if Q.shape[1] == 0:
        raise ValueError("a head needs at least one dimension, got d = 0")
    if len({Q.dtype, K.dtype, V.dtype}) > 1:
        raise TypeError(f"Q, K and V must have one dtype, got {Q.dtype}, {K.dtype}, {V.dtype}")
    if not all(isinstance(B, Integral) and B >= 1 for B in (Br, Bc)):
        raise ValueError(f"a tile has a whole number of rows and columns, one at least, got Br = {Br}, Bc = {Bc}")
    memory = Memory(record=False) if memory is None else memory
    memory.place(Q=Q, K=K, V=V)
    memory.reserve("O", (len(Q), V.shape[1]), Q.dtype)
    dtype = np.result_type(Q.dtype, np.float32)  # of arithmetic
    memory.reserve("lse", (len(Q),), dtype)
    scale = dtype.type(Q.shape[1] ** -0.5 if scale is None else scale)
    return memory, scale, len(K) - len(Q) if causal else len(K)
