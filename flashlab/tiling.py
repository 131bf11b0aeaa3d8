"""Attention one tile at a time, in the two orders in which the tiles can come.

Both functions feed the same five lines (``online.update``); they differ in what stays in fast memory while the rest
streams past. ``fa2_forward`` keeps a tile of queries and its state; ``fa1_forward`` keeps a tile of keys and values.
"""

import numpy as np

from flashlab import online
from flashlab.memory import Memory


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
        TypeError, ValueError: dtypes, shapes or tile sizes that do not match.
        FastMemoryFull: the tiles do not fit into ``memory``.

    Source: FlashAttention-2, Algorithm 1.
    """
    memory, scale, shift = _prepare(Q, K, V, Br, Bc, scale, memory)
    for rows in tiles(len(Q), Br):
        with memory.kernel("program"):
            Q_i = memory.load("Q", rows)  # [Br, d]
            state = online.identity(len(Q_i), V.shape[1], Q_i.dtype)
            memory.hold(m_i=state.m, l_i=state.l, O_i=state.O)
            for cols in tiles(len(K), Bc):
                if causal and not _meet(rows, cols, shift):
                    break
                state = _visit(memory, Q_i, state, rows, cols, memory.load("K", cols), memory.load("V", cols),
                               scale, causal, shift)
            O_i, lse_i = online.finish(state)
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
    memory, scale, shift = _prepare(Q, K, V, Br, Bc, scale, memory)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            for rows in tiles(len(Q), Br):
                if causal and j > 0 and not _meet(rows, cols, shift):
                    continue
                Q_i = memory.load("Q", rows)  # [Br, d]
                if j == 0:  # also the rows that see no key: someone must write their output
                    state = online.identity(len(Q_i), V.shape[1], Q_i.dtype)
                    memory.hold(O=state.O, lse=state.m)
                else:
                    lse_i = memory.load("lse", rows)  # [Br]
                    state = online.State(lse_i, np.ones_like(lse_i), memory.load("O", rows))
                O_i, lse_i = online.finish(_visit(memory, Q_i, state, rows, cols, K_j, V_j, scale, causal, shift))
                memory.store("O", O_i, rows)
                memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def visited(Nq, Nk, Br, Bc, *, causal=False):
    """The pairs (rows, cols) of slices whose tiles of scores are computed: all, or those at or below the diagonal."""
    pairs = [(rows, cols) for rows in tiles(Nq, Br) for cols in tiles(Nk, Bc)]
    return [pair for pair in pairs if not causal or _meet(*pair, Nk - Nq)]


def _visit(memory, Q_i, state, rows, cols, K_j, V_j, scale, causal, shift):
    """One tile of scores, and what it does to the state."""
    S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
    if causal and cols.stop - 1 > rows.start + shift:  # only tiles on the diagonal need the mask
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
        S_ij = np.where(j <= i + shift, S_ij, -np.inf)
    memory.hold(S_ij=S_ij)  # P_ij takes its place
    return online.update(state, S_ij, V_j)


def _meet(rows, cols, shift):
    """Does the last query of the tile see its first key?"""
    return cols.start <= rows.stop - 1 + shift


def _prepare(Q, K, V, Br, Bc, scale, memory):
    if Q.ndim != 2 or K.ndim != 2 or V.ndim != 2 or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    if len({Q.dtype, K.dtype, V.dtype}) > 1:
        raise TypeError(f"Q, K and V must have one dtype, got {Q.dtype}, {K.dtype}, {V.dtype}")
    if Br < 1 or Bc < 1:
        raise ValueError(f"a tile needs at least one row and one column, got Br = {Br}, Bc = {Bc}")
    memory = Memory() if memory is None else memory
    memory.place(Q=Q, K=K, V=V)
    memory.reserve("O", (len(Q), V.shape[1]), Q.dtype)
    memory.reserve("lse", (len(Q),), np.result_type(Q.dtype, np.float32))
    dtype = np.result_type(Q.dtype, np.float32)
    return memory, dtype.type(Q.shape[1] ** -0.5 if scale is None else scale), len(K) - len(Q)
