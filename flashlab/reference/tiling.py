"""Attention one tile at a time, in the two orders in which the tiles can come.

Both functions feed the same six lines, ``online_softmax.update``. They differ in what stays in fast memory while the
rest streams past: ``fa2_forward`` keeps a tile of queries and its state, ``fa1_forward`` a tile of keys and values.
"""

from collections import Counter
from numbers import Integral

import numpy as np

from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax
from flashlab.reference.attention import scale_of
from flashlab.reference.masks import as_mask, count
from flashlab.reference.scores import as_score


def tiles(N, B):
    """Return the slices of at most B that cover range(N)."""
    return [slice(start, min(start + B, N)) for start in range(0, N, B)]


def fa2_forward(Q, K, V, Br, Bc, *, mask=None, score=None, sink=None, dropout=None, scale=None, memory=None):
    """Compute attention with the queries outside: each tile of queries meets all keys before the next one starts.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        Br, Bc: rows of a tile of queries, and of a tile of keys and values.
        mask: which keys each query sees, from ``masks``; full if None. Tiles that no query sees are not visited.
        score: what happens to a scaled score before the mask, from ``scores``; nothing if None.
        sink: score of a key beside all others whose value is 0; none if None. lse counts it.
        dropout: a ``Dropout``, or None. The denominator counts all weights; those that are kept go to the output.
        scale: factor on the scores, 1/sqrt(d) if None.
        memory: a ``Memory`` that books the traffic; a fresh one of any size if None.

    Returns:
        O [Nq, dv] in the dtype of Q, and lse [Nq] in float32 or better. A row that sees no key has 0 and -inf.

    Raises:
        TypeError, ValueError: dtypes, shapes or tile sizes that do not match.
        FastMemoryFull: the tiles do not fit into ``memory``.

    Source: FlashAttention-2, Algorithm 1.
    """
    memory, scale, mask = prepare(Q, K, V, Br, Bc, mask, scale, memory)
    score, shape = as_score(score), (len(Q), len(K))
    keys = tiles(len(K), Bc)
    for rows in tiles(len(Q), Br):
        with memory.kernel("program"):
            Q_i = memory.load("Q", rows)  # [Br, d]
            state = start(len(Q_i), V.shape[1], Q_i.dtype, sink)
            memory.hold(m_i=state.m, l_i=state.l, O_i=state.O)
            for j in mask.tiles(rows, Bc, shape):
                cols = keys[j]
                K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
                S_ij = scores(Q_i, K_j, rows, cols, scale, mask, shape, score)  # [Br, Bc]
                memory.hold(S_ij=S_ij)  # P_ij will take its place
                if dropout is None:
                    state = online_softmax.update(state, S_ij, V_j)
                else:
                    Z_ij = dropout.tile(rows, cols, S_ij.dtype.type)  # [Br, Bc]
                    state = online_softmax.merge(state, dropped(S_ij, V_j, Z_ij))
            O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
            memory.store("O", O_i, rows)
            memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def fa1_forward(Q, K, V, Br, Bc, *, mask=None, scale=None, memory=None):
    """Compute attention with the keys and values outside: each of their tiles meets all queries before the next one.

    The output goes back to slow memory after every meeting, normalised, and returns for the next one: (lse, 1, O) is
    the state of a finished tile. Algorithm 1 of the paper keeps m and l instead of lse; the released kernel, as here,
    keeps lse. Arguments, results and errors as ``fa2_forward``.

    Source: FlashAttention, Algorithm 1.
    """
    memory, scale, mask = prepare(Q, K, V, Br, Bc, mask, scale, memory)
    shape = len(Q), len(K)
    queries = tiles(len(Q), Br)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        met = mask.T.tiles(cols, Br, shape[::-1])
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            for i in met if j > 0 else range(len(queries)):  # all in the first pass: someone must write their output
                rows = queries[i]
                Q_i = memory.load("Q", rows)  # [Br, d]
                if j == 0:
                    state = online_softmax.identity(len(Q_i), V.shape[1], Q_i.dtype)
                    memory.hold(O=state.O, lse=state.m)
                else:
                    lse_i = memory.load("lse", rows)  # [Br]
                    state = online_softmax.State(lse_i, np.ones_like(lse_i), memory.load("O", rows))
                S_ij = scores(Q_i, K_j, rows, cols, scale, mask, shape)  # [Br, Bc]
                memory.hold(S_ij=S_ij)
                state = online_softmax.update(state, S_ij, V_j)
                O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
                memory.store("O", O_i, rows)
                memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def start(Br, dv, dtype, sink=None):
    """Return the state of Br rows before their first key: of nothing, or of the sink with this score."""
    return online_softmax.identity(Br, dv, dtype) if sink is None else online_softmax.sink(sink, Br, dv, dtype)


def scores(Q_i, K_j, rows, cols, scale, mask, shape, score=None):
    """Return one tile of scores S_ij [Br, Bc], scaled, through the score function if there is one, and masked.

    rows, cols: the slices of Q_i [Br, d] and K_j [Bc, d] in Q and K; shape: (Nq, Nk).
    """
    S_ij = scale * (Q_i @ K_j.T)  # [Br, Bc]
    if score is not None:
        S_ij = score.apply(S_ij, rows, cols, shape)  # [Br, Bc]
    return mask.apply(S_ij, rows, cols, shape)


def dropped(S_ij, V_j, Z_ij):
    """Return the state of one tile of scores whose weights take the factors Z_ij on their way to the output."""
    m_i = S_ij.max(-1, initial=-np.inf)  # [Br]
    m_safe = np.where(m_i == -np.inf, 0, m_i)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    return online_softmax.State(m_i, P_ij.sum(-1), (Z_ij * P_ij) @ V_j)


def fa2_traffic(Nq, Nk, d, Br, Bc, *, dv=None, mask=None, dtype=np.float32):
    """Return the bill of ``fa2_forward`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    Q is read once and O written once; each tile of queries reads the tiles of K and V that it meets.

    Args: lengths, head dimensions (dv is d if None), tile sizes, mask, and the dtype of Q, K, V and O.
    """
    mask, shape = as_mask(mask), (Nq, Nk)
    dv = d if dv is None else dv
    keys = sum(covered(mask.tiles(rows, Bc, shape), Bc, Nk) for rows in tiles(Nq, Br))
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): Nq * d * size, ("load", "K"): keys * d * size, ("load", "V"): keys * dv * size}
    return Counter({**loads, ("store", "O"): Nq * dv * size, ("store", "lse"): Nq * stat})


def fa1_traffic(Nq, Nk, d, Br, Bc, *, dv=None, mask=None, dtype=np.float32):
    """Return the bill of ``fa1_forward`` without running it. Arguments and result as ``fa2_traffic``.

    K and V are read once. Q is read, and O and lse are written, by each tile of keys that meets it, and by the first
    tile in any case; O and lse are read by each tile but the first.
    """
    transposed, shape = as_mask(mask).T, (Nk, Nq)
    dv = d if dv is None else dv
    again = sum(covered(transposed.tiles(cols, Br, shape), Br, Nq) for cols in tiles(Nk, Bc)[1:])
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): (Nq + again) * d * size, ("load", "K"): Nk * d * size, ("load", "V"): Nk * dv * size}
    states = {("load", "O"): again * dv * size, ("load", "lse"): again * stat}
    return Counter({**loads, **states, ("store", "O"): (Nq + again) * dv * size, ("store", "lse"): (Nq + again) * stat})


def covered(numbers, B, N):
    """Return how many of N rows the tiles of B with these ``numbers``, in order, hold: the last tile may be short."""
    last_is_met = len(numbers) > 0 and numbers[-1] == count(N, B) - 1
    return len(numbers) * B - (count(N, B) * B - N if last_is_met else 0)


def prepare(Q, K, V, Br, Bc, mask, scale, memory):
    """Check the inputs, and return a memory with the inputs in place, the scale, and the mask."""
    for name, tensor in {"Q": Q, "K": K, "V": V}.items():
        if not isinstance(tensor, np.ndarray):
            raise TypeError(f"{name} must be a numpy array, got {type(tensor).__name__}")
    if any(tensor.ndim != 2 for tensor in (Q, K, V)) or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    if len({Q.dtype, K.dtype, V.dtype}) > 1:
        raise TypeError(f"Q, K and V must have one dtype, got {Q.dtype}, {K.dtype}, {V.dtype}")
    if not all(isinstance(B, Integral) and B >= 1 for B in (Br, Bc)):
        raise ValueError(f"a tile has a whole number of rows and columns, one at least, got Br = {Br}, Bc = {Bc}")
    memory = Memory(record=False) if memory is None else memory
    memory.place(Q=Q, K=K, V=V)
    memory.reserve("O", (len(Q), V.shape[1]), Q.dtype)
    dtype = np.result_type(Q.dtype, np.float32)  # of arithmetic
    memory.reserve("lse", (len(Q),), dtype)
    return memory, scale_of(scale, Q.shape[1], dtype), as_mask(mask)
