"""Attention one tile at a time, in two orders.

Both functions run the same six lines, ``online_softmax.update``. They differ in what they keep in fast memory:
``fa2_forward`` keeps a tile of queries and its state while keys and values stream past, ``fa1_forward`` a tile of keys
and values while queries stream past.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments, check_one_shape, check_whole
from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.masks import Mask, as_mask, count
from flashlab.reference.online_softmax import State
from flashlab.reference.rules import PLAIN, Rules

Output = tuple[np.ndarray, np.ndarray]  # O [Nq, dv] and lse [Nq]


@check_arguments(N=0)
def tiles(N: int, B: int) -> list[slice]:
    """Return the slices of at most B that cover range(N)."""
    return [slice(start, min(start + B, N)) for start in range(0, N, B)]


def fa2_forward(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int, rules: Rules = PLAIN, *, memory: Memory | None = None
) -> Output:
    """Compute attention with the queries in the outer loop.

    Each tile of queries processes all keys before the next tile starts.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype.
        Br, Bc: rows of a tile of queries, and of a tile of keys and values.
        rules: mask, score function, sink, dropout and scale, such as ``Rules(mask=causal())``.
        memory: a ``Memory`` that books the traffic; a new, unlimited one if None.

    Returns:
        O [Nq, dv] in the dtype of Q, and lse [Nq] in float32 or better. A row that sees no key has 0 and -inf.

    Raises:
        TypeError, ValueError: dtypes, shapes or tile sizes that do not match.
        FastMemoryFull: the tiles do not fit into ``memory``.

    Source: FlashAttention-2, Algorithm 1.
    """
    memory = placed(Q, K, V, Br, Bc, memory, rules)
    shape, keys = (len(Q), len(K)), tiles(len(K), Bc)
    for rows in tiles(len(Q), Br):
        with memory.kernel("program"):
            Q_i = memory.load("Q", rows)  # [Br, d]
            state = rules.start(len(Q_i), V.shape[1], Q_i.dtype)
            memory.hold(m_i=state.m, l_i=state.l, O_i=state.O)
            for j in rules.mask.tiles(rows, Bc, shape):
                cols = keys[j]
                K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
                S_ij = rules.scores(Q_i, K_j, rows, cols, shape)  # [Br, Bc]
                memory.hold(S_ij=S_ij)  # P_ij will take its place
                if rules.dropout is None:
                    state = online_softmax.update(state, S_ij, V_j)
                else:
                    Z_ij = rules.dropout.tile(rows, cols, S_ij.dtype.type)  # [Br, Bc]
                    state = online_softmax.merge(state, dropped(S_ij, V_j, Z_ij))
            O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
            memory.store("O", O_i, rows)
            memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


def fa1_forward(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int, rules: Rules = PLAIN, *, memory: Memory | None = None
) -> Output:
    """Compute attention with the keys and values in the outer loop.

    Each tile of keys and values processes all queries before the next tile starts. So each visit stores the normalised
    output, and the next visit loads it: (lse, 1, O) is the state of a finished tile. Algorithm 1 of the paper stores m
    and l instead of lse; the released kernel, like this function, stores lse. There is no dropout. Other arguments,
    results and errors as ``fa2_forward``.

    Source: FlashAttention, Algorithm 1.
    """
    memory = placed(Q, K, V, Br, Bc, memory, rules)
    if rules.dropout is not None:
        raise ValueError("fa1_forward has no dropout: use fa2_forward")
    shape, queries = (len(Q), len(K)), tiles(len(Q), Br)
    for j, cols in enumerate(tiles(len(K), Bc) or [slice(0, 0)]):
        visited = rules.mask.T.tiles(cols, Br, shape[::-1])
        with memory.kernel("program"):
            K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
            for i in visited if j > 0 else range(len(queries)):  # the first pass visits all: each row must be written
                rows = queries[i]
                Q_i = memory.load("Q", rows)  # [Br, d]
                if j == 0:
                    state = rules.start(len(Q_i), V.shape[1], Q_i.dtype)
                    memory.hold(O=state.O, lse=state.m)
                else:
                    lse_i = memory.load("lse", rows)  # [Br]
                    state = State(lse_i, np.ones_like(lse_i), memory.load("O", rows))
                S_ij = rules.scores(Q_i, K_j, rows, cols, shape)  # [Br, Bc]
                memory.hold(S_ij=S_ij)
                state = online_softmax.update(state, S_ij, V_j)
                O_i, lse_i = online_softmax.finish(state)  # [Br, dv], [Br]
                memory.store("O", O_i, rows)
                memory.store("lse", lse_i, rows)
    return memory.tensors["O"], memory.tensors["lse"]


@check_arguments()
def dropped(S_ij: np.ndarray, V_j: np.ndarray, Z_ij: np.ndarray) -> State:
    """Return the state of one tile of scores, with dropout factors Z_ij applied to the weights that multiply V."""
    check_one_shape(S_ij=S_ij, Z_ij=Z_ij)
    m_i = S_ij.max(-1, initial=-np.inf)  # [Br]
    m_safe = np.where(m_i == -np.inf, 0, m_i)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    return State(m_i, P_ij.sum(-1), (Z_ij * P_ij) @ V_j)


@check_arguments(Nq=0, Nk=0)
def fa2_traffic(
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
    """Return the bill of ``fa2_forward`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    Q is read once and O written once; each tile of queries reads the tiles of K and V that it sees.

    Args: lengths, head dimensions (dv is d if None), tile sizes, mask, and the dtype of Q, K, V and O.
    """
    mask, shape = as_mask(mask), (Nq, Nk)
    dv = d if dv is None else dv
    keys = sum(_covered(mask.tiles(rows, Bc, shape), Bc, Nk) for rows in tiles(Nq, Br))
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): Nq * d * size, ("load", "K"): keys * d * size, ("load", "V"): keys * dv * size}
    return Counter({**loads, ("store", "O"): Nq * dv * size, ("store", "lse"): Nq * stat})


@check_arguments(Nq=0, Nk=0)
def fa1_traffic(
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
    """Return the bill of ``fa1_forward`` without running it. Arguments and result as ``fa2_traffic``.

    K and V are read once. Each visit reads Q and writes O and lse; all visits but those of the first tile of keys read
    O and lse too. The first tile of keys visits all queries, the others only those that see one of their keys.
    """
    transposed, shape = as_mask(mask).T, (Nk, Nq)
    dv = d if dv is None else dv
    again = sum(_covered(transposed.tiles(cols, Br, shape), Br, Nq) for cols in tiles(Nk, Bc)[1:])
    size, stat = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): (Nq + again) * d * size, ("load", "K"): Nk * d * size, ("load", "V"): Nk * dv * size}
    states = {("load", "O"): again * dv * size, ("load", "lse"): again * stat}
    return Counter({**loads, **states, ("store", "O"): (Nq + again) * dv * size, ("store", "lse"): (Nq + again) * stat})


def _covered(numbers: Sequence[int], B: int, N: int) -> int:
    """Return the number of rows, out of N, in the tiles of B with these ascending ``numbers``."""
    has_last = len(numbers) > 0 and numbers[-1] == count(N, B) - 1  # the last tile may be short
    return len(numbers) * B - (count(N, B) * B - N if has_last else 0)


def check(Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int) -> None:
    """Raise TypeError or ValueError unless Q [Nq, d], K [Nk, d] and V [Nk, dv] match, and Br and Bc are at least 1."""
    one_dtype(Q=Q, K=K, V=V)
    if any(tensor.ndim != 2 for tensor in (Q, K, V)) or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    if Q.shape[1] == 0:
        raise ValueError("a head needs at least one dimension, got d = 0")
    check_whole("Br", Br)
    check_whole("Bc", Bc)


def placed(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int, memory: Memory | None, rules: Rules = PLAIN
) -> Memory:
    """Check the inputs, and return the memory with the inputs in place and room for O and lse."""
    check(Q, K, V, Br, Bc)
    Rules.check(rules)
    memory = Memory(record=False) if memory is None else memory
    if not isinstance(memory, Memory):
        raise TypeError(f"memory must be a Memory or None, got {type(memory).__name__}")
    memory.place(Q=Q, K=K, V=V)
    memory.reserve("O", (len(Q), V.shape[1]), Q.dtype)
    memory.reserve("lse", (len(Q),), np.result_type(Q.dtype, np.float32))
    return memory
