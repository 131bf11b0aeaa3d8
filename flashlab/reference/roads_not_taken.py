"""Roads not taken: other ways to avoid the N x N matrix, each run on the counting memory.

``row_by_row``, ``lazy`` (the chunks of Rabe and Staats) and ``trained`` (gradient checkpointing) are exact. The others
look at fewer keys, ``gathered``, ``windowed`` and ``sampled``, or at a summary of them, ``low_rank``. None has a causal
mask: the real inputs come from an encoder.

All take Q [Nq, d], K [Nk, d], V [Nk, dv] of one floating dtype, ``scale`` (factor on the scores, 1/sqrt(d) if None) and
``memory`` (a ``Memory`` that books the traffic, a fresh one if None), and return O [Nq, dv] unless they say otherwise.
Br and Bc are rows of a tile of queries, and of a tile of keys and values. Shapes, dtypes or sizes that do not match
raise TypeError or ValueError; tiles that do not fit raise ``FastMemoryFull``.
"""

from collections.abc import Callable

import numpy as np

from flashlab.machine.arguments import check_arguments, check_whole
from flashlab.machine.memory import Memory
from flashlab.reference import masks, online_softmax, safe_softmax, standard_attention, tiling
from flashlab.reference.attention import scale_of
from flashlab.reference.rules import Rules
from flashlab.reference.tiling import tiles

Pattern = Callable[[int, int], np.ndarray]  # (i, Nk) -> the keys that query i sees


def row_by_row(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Bc: int, *, scale: float | None = None, memory: Memory | None = None
) -> np.ndarray:
    """Compute one query at a time: its row of scores fits into fast memory whole, and no other row is ever there."""
    memory, scale = _prepare(Q, K, V, 1, Bc, scale, memory)
    keys = tiles(len(K), Bc) or [slice(0, 0)]
    for row in tiles(len(Q), 1):
        with memory.kernel("row"):
            Q_i = memory.load("Q", row)  # [1, d]
            S_i = scale * np.concatenate([Q_i @ memory.load("K", cols).T for cols in keys], axis=1)  # [1, Nk]
            memory.hold(S_i=S_i)
            P_i = safe_softmax.safe(S_i)  # [1, Nk]
            O_i = sum(P_i[:, cols] @ memory.load("V", cols) for cols in keys)  # [1, dv]
            memory.store("O", O_i, row)
    return memory.tensors["O"]


def lazy(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    Br: int,
    Bc: int,
    *,
    scale: float | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Compute chunks of scores, keep a state (m, l, O) of each and merge all at the end: the division comes last.

    Every step is a kernel of its own, as an eager framework would run it: a chunk's scores
    and exponentials pass through slow memory, as the whole matrix did.

    Source: Rabe and Staats 2021, arXiv 2112.05682, who name Jang et al. 2019 for the lazy softmax.
    """
    memory, scale = _prepare(Q, K, V, Br, Bc, scale, memory)
    keys = tiles(len(K), Bc)
    shapes = {"S": (Br, Bc), "P": (Br, Bc), "m": (len(keys), Br), "l": (len(keys), Br)}
    for name, shape in {**shapes, "O_parts": (len(keys), Br, V.shape[1])}.items():
        memory.reserve(name, shape, scale.dtype)
    for rows in tiles(len(Q), Br):
        i = slice(0, rows.stop - rows.start)
        for part, cols in enumerate(keys):
            j = slice(0, cols.stop - cols.start)
            with memory.kernel("scores"):
                memory.store("S", scale * (memory.load("Q", rows) @ memory.load("K", cols).T), i, j)
            with memory.kernel("exponentials"):
                S_ij = memory.load("S", i, j)  # [Br, Bc]
                m = S_ij.max(-1)  # [Br]
                m_safe = np.where(m == -np.inf, 0, m)  # [Br]
                P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
                memory.store("P", P_ij, i, j)
                memory.store("m", m, part, i)
                memory.store("l", P_ij.sum(-1), part, i)
            with memory.kernel("values"):
                memory.store("O_parts", memory.load("P", i, j) @ memory.load("V", cols), part, i)
        with memory.kernel("merge"):
            state = online_softmax.identity(i.stop, V.shape[1], scale.dtype)
            for part in range(len(keys)):
                state_of_part = (memory.load(name, part, i) for name in ("m", "l", "O_parts"))
                state = online_softmax.merge(state, online_softmax.State(*state_of_part))
            memory.store("O", online_softmax.finish(state)[0], rows)
    return memory.tensors["O"]


@check_arguments(scale=-np.inf)
def trained(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    dO: np.ndarray,
    Br: int,
    *,
    checkpoint: bool,
    scale: float | None = None,
    memory: Memory | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run standard attention forward and backward: return the gradients (dQ, dK, dV) of sum(dO * O), for dO [Nq, dv].

    With ``checkpoint`` the forward pass leaves only the inputs, and the backward pass first repeats it.

    Source: Chen et al. 2016, arXiv 1604.06174.
    """
    memory = Memory() if memory is None else memory
    standard_attention.forward(Q, K, V, Rules(scale=scale), Br=Br, memory=memory)
    if checkpoint:
        del memory.tensors["S"], memory.tensors["P"]  # other layers may have the room until this one's turn comes
        standard_attention.forward(Q, K, V, Rules(scale=scale), Br=Br, memory=memory)
    return standard_attention.backward(dO, memory, Br=Br)


@check_arguments(scale=-np.inf)
def gathered(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    pattern: Pattern,
    *,
    scale: float | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Compute one query at a time. Only the keys that it sees are loaded: those with the indices ``pattern(i, Nk)``."""
    memory, scale = _prepare(Q, K, V, 1, 1, scale, memory)
    for i in range(len(Q)):
        with memory.kernel("row"):
            row, seen = slice(i, i + 1), pattern(i, len(K))
            Q_i, K_i, V_i = memory.load("Q", row), memory.load("K", seen), memory.load("V", seen)  # [1, d], [n, d], ...
            P_i = safe_softmax.safe(scale * (Q_i @ K_i.T))  # [1, n]
            memory.hold(P_i=P_i)
            memory.store("O", P_i @ V_i, row)
    return memory.tensors["O"]


@check_arguments(w=0)
def window(w: int) -> Pattern:
    """Return a sliding window as a pattern: keys at most w places away. Source: Beltagy et al., arXiv 2004.05150."""
    return lambda i, N: np.arange(*reach(i, i + 1, w, N))


@check_arguments(w=0)
def strided(w: int, stride: int) -> Pattern:
    """Return the pattern of a window and, beyond it, each stride-th key to both sides.

    Source: Child et al. 2019, arXiv 1904.10509, who look back only.
    """
    return lambda i, N: np.flatnonzero((abs(np.arange(N) - i) <= w) | ((np.arange(N) - i) % stride == 0))


def windowed(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    w: int,
    Br: int,
    Bc: int,
    *,
    scale: float | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Compute a sliding window by tiles: Br queries share one load of the tiles of keys that any of them sees."""
    if len(Q) != len(K):
        raise ValueError(f"a window needs as many keys as queries, got {len(Q)} queries and {len(K)} keys")
    rules = Rules(mask=masks.window(w, w), scale=scale)
    return tiling.fa2_forward(Q, K, V, Br, Bc, rules, memory=memory)[0]


def reach(start: int, stop: int, w: int, N: int) -> tuple[int, int]:
    """Return (start, stop) of the N keys that queries start, ..., stop - 1 see through a window of w to either side."""
    check_whole("start", start, 0)
    check_whole("stop", stop, 0)
    check_whole("w", w, 0)
    check_whole("N", N, 0)
    return max(start - w, 0), min(stop + w, N)


@check_arguments()
def low_rank(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    omega: np.ndarray,
    Br: int,
    Bc: int,
    *,
    scale: float | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Replace exp(q k) by a sum over r features: keys and values shrink to one state per feature, whatever N is.

    A feature processes the keys as a query does, with ``log_features`` in place of scores, and keeps the same state
    (m, l, O). Then each query mixes the r states.

    Args: omega: directions [r, d], as from ``directions``.
    Source: Choromanski et al. 2020 (Performer), arXiv 2009.14794.
    """
    memory, scale = _prepare(Q, K, V, Br, Bc, scale, memory)
    if omega.ndim != 2 or omega.shape[1] != Q.shape[1]:
        raise ValueError(f"expected directions omega [r, d] with d = {Q.shape[1]}, got {omega.shape}")
    r, root, names = len(omega), scale**0.5, ("m", "l", "O_parts")
    memory.tensors["omega"] = omega.astype(scale.dtype)
    for name, shape in zip(names, ((r,), (r,), (r, V.shape[1])), strict=True):
        memory.reserve(name, shape, scale.dtype)
    with memory.kernel("keys"):
        omega = memory.load("omega")  # [r, d]
        state = online_softmax.identity(r, V.shape[1], scale.dtype)
        memory.hold(**dict(zip(names, state, strict=True)))
        for cols in tiles(len(K), Bc):
            F_j = log_features(root * memory.load("K", cols), omega)  # [Bc, r]
            memory.hold(F_j=F_j)
            state = online_softmax.update(state, F_j.T, memory.load("V", cols))
        for name, tile in zip(names, state, strict=True):
            memory.store(name, tile)
    with memory.kernel("queries"):
        omega, m, l, O_parts = (memory.load(name) for name in ("omega", *names))  # [r, d], [r], [r], [r, dv]
        for rows in tiles(len(Q), Br):
            F_i = log_features(root * memory.load("Q", rows), omega) + m  # [Br, r]
            W_i = np.exp(F_i - F_i.max(-1, keepdims=True))  # [Br, r]
            memory.hold(W_i=W_i)
            memory.store("O", W_i @ O_parts / (W_i @ l)[:, None], rows)
    return memory.tensors["O"]


@check_arguments(seed=0)
def directions(r: int, d: int, seed: int = 0) -> np.ndarray:
    """Draw r random directions [r, d], float64: normal vectors in groups of d, whose members are orthogonal."""
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-r // d)):
        basis, R = np.linalg.qr(rng.normal(size=(d, d)))  # [d, d] both
        lengths = np.linalg.norm(rng.normal(size=(d, d)), axis=1)  # [d]
        blocks.append((basis * np.sign(np.diag(R))).T * lengths[:, None])
    return np.concatenate(blocks)[:r]


def log_features(X: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Compute log(phi(X)) [N, r] of X [N, d] for directions omega [r, d], without the constant 1/sqrt(r).

    On average over omega, phi(x) phi(y) is exp(x y). The result stays a logarithm, since phi itself may overflow.

    Source: Choromanski et al. 2020, lemma 1.
    """
    return X @ omega.T - (X * X).sum(-1, keepdims=True) / 2


@check_arguments(seed=0, scale=-np.inf)
def sampled(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    n: int,
    Br: int,
    *,
    seed: int = 0,
    scale: float | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Draw n keys once, without regard to the queries; every query attends to these and to no others."""
    memory, scale = _prepare(Q, K, V, Br, n, scale, memory)
    if n > len(K):
        raise ValueError(f"cannot draw {n} different keys from {len(K)}")
    sample = np.sort(np.random.default_rng(seed).permutation(len(K))[:n])  # [n]
    with memory.kernel("program"):
        K_j, V_j = memory.load("K", sample), memory.load("V", sample)  # [n, d], [n, dv]
        for rows in tiles(len(Q), Br):
            S_ij = scale * (memory.load("Q", rows) @ K_j.T)  # [Br, n]
            memory.hold(S_ij=S_ij)
            memory.store("O", safe_softmax.safe(S_ij) @ V_j, rows)
    return memory.tensors["O"]


def _prepare(
    Q: np.ndarray, K: np.ndarray, V: np.ndarray, Br: int, Bc: int, scale: float | None, memory: Memory | None
) -> tuple[Memory, np.floating]:
    """Check the inputs, and return the memory with the inputs in place and room for O, and the scale."""
    memory = tiling.placed(Q, K, V, Br, Bc, memory)
    del memory.tensors["lse"]  # no road writes it
    return memory, scale_of(scale, Q.shape[1], np.result_type(Q.dtype, np.float32))
