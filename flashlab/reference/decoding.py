"""Decoding: one new query against a long past, which is split among independent programs.

A step of generation has one query per head, so there is no second tile of queries to give to a second processor. The
keys are divided instead. Each part leaves its normalised output and lse, the log-sum-exp of its scores (``split``), and
parts merge like the states of the online softmax (``combine``): the same six lines, with lse as the scores and the
parts' outputs as the values.

Source: Flash-Decoding, https://pytorch.org/blog/flash-decoding/; the merge is FlashAttention-2's, section 3.1.1.
"""

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments
from flashlab.machine.hardware import Card
from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax
from flashlab.reference.attention import scale_of
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.mask_kinds import Mask
from flashlab.reference.masks import as_mask, causal, count
from flashlab.reference.tiling import tiles


class Parts(NamedTuple):
    """The finished outputs of S parts of the keys, for the g query heads that share them and n new tokens."""

    O: np.ndarray  # [S, g, n, dv], float32 or better, each normalised within its part
    lse: np.ndarray  # [S, g, n], natural logarithms


@check_arguments(scale=-np.inf)
def decode(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    size: int,
    Bc: int,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    memory: Memory | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute attention of n new tokens, in g query heads, to the N keys of the head that they share.

    Args:
        Q: queries [g, n, d]; K: keys [N, d]; V: values [N, dv], of one floating dtype.
        size: keys per part; Bc: keys per tile within a part.
        mask: which keys each token sees, from ``masks``; causal if None, so that the tokens are the last n keys.
        scale: factor on the scores, 1/sqrt(d) if None.
        memory: a ``Memory`` that books the traffic; a fresh one of any size if None.

    Returns:
        O [g, n, dv] in the dtype of Q, and lse [g, n] in float32 or better. A row that sees no key has 0 and -inf.

    Raises:
        TypeError, ValueError: dtypes, shapes or sizes that do not match.
        FastMemoryFull: the tiles do not fit into ``memory``.
    """
    memory = Memory(record=False) if memory is None else memory
    split(Q, K, V, size, Bc, mask=mask, scale=scale, memory=memory)
    return combine(memory)


@check_arguments(scale=-np.inf)
def split(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    size: int,
    Bc: int,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    memory: Memory,
) -> Parts:
    """Compute each part of ``size`` keys in a program of its own, and return the ``Parts``. Arguments as ``decode``."""
    mask, scale = _prepare(Q, K, V, size, Bc, mask, scale, memory)
    g, n, d = Q.shape
    tokens, shape = slice(0, n), (n, len(K))
    for s, part in enumerate(tiles(len(K), size)):
        with memory.kernel("split"):
            Q_i = memory.load("Q", slice(0, g)).reshape(g * n, d)  # [g n, d]   the whole group is one tile
            state = online_softmax.identity(g * n, V.shape[1], Q_i.dtype)
            memory.hold(m_i=state.m, l_i=state.l, O_i=state.O)
            for cols in (slice(part.start + j.start, part.start + j.stop) for j in tiles(part.stop - part.start, Bc)):
                K_j, V_j = memory.load("K", cols), memory.load("V", cols)  # [Bc, d], [Bc, dv]
                S_ij = (scale * (Q_i @ K_j.T)).reshape(g, n, -1)  # [g, n, Bc]
                S_ij = mask.apply(S_ij, tokens, cols, shape).reshape(g * n, -1)  # [g n, Bc]
                memory.hold(S_ij=S_ij)
                state = online_softmax.update(state, S_ij, V_j)
            O_s, lse_s = online_softmax.finish(state)  # [g n, dv], [g n]
            memory.store("O_s", O_s.reshape(1, g, n, -1), slice(s, s + 1))
            memory.store("lse_s", lse_s.reshape(1, g, n), slice(s, s + 1))
    return Parts(memory.tensors["O_s"], memory.tensors["lse_s"])


@check_arguments()
def combine(memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    """Merge the parts that ``split`` left in ``memory``, one program per row. Returns O [g, n, dv] and lse [g, n]."""
    if "O_s" not in memory.tensors:
        raise ValueError(f"memory must have the parts that split leaves, got {', '.join(memory.tensors) or 'none'}")
    _, g, n, _ = memory.tensors["O_s"].shape
    for h, t in np.ndindex(g, n):
        row = slice(h, h + 1), slice(t, t + 1)
        with memory.kernel("combine"):
            lse_s = memory.load("lse_s", slice(None), *row)[:, 0, 0]  # [S]
            O_s = memory.load("O_s", slice(None), *row)[:, 0, 0]  # [S, dv]
            O, lse = merge(O_s, lse_s)  # [dv], []
            memory.store("O", O[None, None], *row)
            memory.store("lse", lse[None, None], *row)
    return memory.tensors["O"], memory.tensors["lse"]


@check_arguments()
def merge(O_s: np.ndarray, lse_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return O [dv] and lse [] of one row from its parts O_s [S, dv] and lse_s [S]: attention to S "keys".

    A part that saw no key (lse = -inf) counts for nothing, and no part at all gives 0 and -inf.
    """
    if O_s.ndim != 2 or lse_s.shape != O_s.shape[:1]:
        raise ValueError(f"expected O_s [S, dv] and lse_s [S], got {O_s.shape} and {lse_s.shape}")
    state = online_softmax.identity(1, O_s.shape[1], O_s.dtype)
    O, lse = online_softmax.finish(online_softmax.update(state, lse_s[None, :], O_s))  # [1, dv], [1]
    return O[0], lse[0]


@check_arguments(N=0)
def traffic(
    g: int, n: int, N: int, d: int, size: int, Bc: int, *, dv: int | None = None, dtype: DTypeLike = np.float32
) -> Counter[tuple[str, str]]:
    """Return the bill of ``decode`` without running it: bytes by (direction, tensor), as in ``Memory.bytes``.

    K and V are read once, however many parts there are. Each part reads the queries again, and leaves dv + 1 numbers of
    float32 (or better) per row, which are written once and read once.
    """
    dv, S, rows = d if dv is None else dv, count(N, size), g * n
    itemsize, wide = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    loads = {("load", "Q"): S * rows * d * itemsize, ("load", "K"): N * d * itemsize, ("load", "V"): N * dv * itemsize}
    parts = {(way, name): S * rows * k * wide for way in ("load", "store") for name, k in (("O_s", dv), ("lse_s", 1))}
    return Counter(loads | parts | {("store", "O"): rows * dv * itemsize, ("store", "lse"): rows * wide})


@check_arguments(N=0, worth=(0, 1))
def splits(programs: int, N: int, *, slots: int, Bc: int = 64, worth: float = 0.95) -> int:
    """Return the number of parts into which to split N keys.

    programs: how many there are without a split; slots: how many the card runs at once. With S parts there are
    w = programs * S / slots waves of programs, and the last one is as long as any other, so w / ceil(w) of the card's
    time is used. The rule: the fewest parts that reach ``worth`` of the best share, at least one tile of Bc keys each.
    Fewer parts leave less to merge.

    Source: ``num_splits_heuristic`` of FlashAttention, where ``worth`` is 0.85. It has two exceptions: it does not
    split where programs fill 80 % of the card, nor up to four tiles.
    """
    most = max(1, count(N, Bc))
    shares = [share(programs * S, slots) for S in range(1, most + 1)]
    return next(S for S, value in enumerate(shares, 1) if value >= worth * max(shares))


@check_arguments()
def share(programs: int, slots: int) -> float:
    """Return the share of a card's time that ``programs`` of equal length use, if it runs ``slots`` of them at once."""
    return programs / slots / math.ceil(programs / slots)


class Plan(NamedTuple):
    """One step on a card that gives every SM one program at a time, which reads at an even share of the bandwidth."""

    programs: int
    waves: int  # programs that the busiest SM runs, one after the other
    share: float  # of the SMs' time that is used
    kv_bytes: int  # keys and values, read once
    part_bytes: int  # outputs and lse of the parts, written and read; 0 for one part
    seconds: float


@check_arguments()
def plan(card: Card, B: int, Hk: int, N: int, S: int, *, g: int = 8, d: int = 128, itemsize: int = 2) -> Plan:
    """Return what a step takes if the N keys of each of B texts and Hk heads are split into S parts.

    The waves read K and V, ceil(N / S) keys per program; the parts come and go at the card's bandwidth.
    """
    programs = B * Hk * S
    waves = count(programs, card.sms)
    part_bytes = 2 * programs * g * (d + 1) * 4 if S > 1 else 0
    reading = waves * count(N, S) * 2 * d * itemsize / (card.dram_rate / card.sms)
    kv_bytes = B * Hk * N * 2 * d * itemsize
    return Plan(programs, waves, share(programs, card.sms), kv_bytes, part_bytes, reading + part_bytes / card.dram_rate)


@check_arguments()
def weights(lse_s: np.ndarray, *, wrong: bool = False) -> np.ndarray:
    """Return the weight of each part [S] in the merge, e^(lse_s - lse), from their lse [S] in natural logarithms.

    wrong: merge logarithms of base 2 as if they were natural, as happens where one kernel returns the former and the
    next expects the latter. Each part's mass is raised to the power 1 / ln 2 = 1.44; the weights still add up to 1.
    """
    if lse_s.ndim != 1:
        raise ValueError(f"expected lse_s [S], got {lse_s.shape}")
    if not (lse_s > -np.inf).any():
        raise ValueError(f"expected a part that sees a key, got lse_s = {lse_s.tolist()!s:.60}")
    lse_s = lse_s / np.log(2) if wrong else lse_s
    lse = np.logaddexp.reduce(lse_s)
    return np.exp(lse_s - lse)


@check_arguments()
def intensity(g: int, n: int = 1, *, itemsize: int = 2, distinct: int = 2) -> float:
    """Return the FLOPs per byte of keys and values in one step: the batch and the length cancel out.

    g: query heads per key/value head; n: new tokens; distinct: 2 if keys and values are separate, 1 if they are one
    tensor. Each element of a key and of a value takes part in a multiplication and an addition for each of
    the g n rows.

    Source: Zadouri, Strauss and Dao 2025, arXiv 2505.21487.
    """
    return 2 * 2 * g * n / (distinct * itemsize)


def _prepare(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, size: int, Bc: int, mask: Any, scale: float | None, memory: Memory
) -> tuple[Mask, np.floating]:
    """Check the inputs, put them into ``memory``, reserve room for the results, and return mask and scale."""
    if Q.ndim != 3 or K.ndim != 2 or V.ndim != 2 or Q.shape[2] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [g, n, d], K [N, d], V [N, dv], got {Q.shape}, {K.shape}, {V.shape}")
    one_dtype(Q=Q, K=K, V=V)
    (g, n, d), dv = Q.shape, V.shape[1]
    dtype = np.result_type(Q.dtype, np.float32)  # the dtype of the arithmetic
    memory.place(Q=Q, K=K, V=V)
    memory.reserve("O_s", (count(len(K), size), g, n, dv), dtype)
    memory.reserve("lse_s", (count(len(K), size), g, n), dtype)
    memory.reserve("O", (g, n, dv), Q.dtype)
    memory.reserve("lse", (g, n), dtype)
    return causal() if mask is None else as_mask(mask), scale_of(scale, d, dtype)
