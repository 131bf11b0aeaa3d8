"""Attention as it was before FlashAttention: one kernel per step, and every step's N x N result in slow memory.

Each kernel loads its operands, computes, and stores its result; the next kernel cannot see what was in fast memory and
loads it again. Within a kernel, rows pass in bands of Br: fast memory holds one band and at most one thin matrix, and
each operand is loaded once, which is the least without a cache. ``passes`` is the same bill as a closed form.

Source: FlashAttention, Algorithms 0 and 3; mask and dropout as in its Algorithms 2 and 4. As in the frameworks of its
time, the scale is folded into the product, the mask makes a new matrix, and dropout leaves one byte per element.
"""

from typing import Any, NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments, check_whole
from flashlab.machine.memory import Memory
from flashlab.reference import safe_softmax
from flashlab.reference.attention import scale_of
from flashlab.reference.dropout import Dropout
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.mask_kinds import Mask
from flashlab.reference.rules import PLAIN, Rules
from flashlab.reference.tiling import tiles

Bands = list[slice]  # of rows


def forward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    rules: Rules = PLAIN,
    *,
    Br: int | None = None,
    memory: Memory | None = None,
) -> np.ndarray:
    """Compute O = dropout(softmax(scale * Q K^T)) V of one head, in three to five kernels.

    Args:
        Q: queries [Nq, d]; K: keys [Nk, d]; V: values [Nk, dv], of one floating dtype. Everything stored has it;
            float16 is computed in float32.
        rules: mask, dropout and scale. The mask is computed from indices and never loaded.
        Br: rows of a band, all of them if None. It changes no number and no byte.
        memory: a ``Memory`` that books the traffic, a new one if None. It holds what ``backward`` needs.

    Returns:
        O [Nq, dv]. A row that sees no key has O = 0.

    Raises:
        TypeError, ValueError: dtypes or shapes that do not match, or rules with a score function or a sink.
    """
    bands = _check(Q, K, V, rules, Br)
    memory, S, P = Memory() if memory is None else memory, "S", "P"
    memory.place(Q=Q, K=K, V=V)
    for name, shape in {"S": (len(Q), len(K)), "P": (len(Q), len(K)), "O": (len(Q), V.shape[1])}.items():
        memory.reserve(name, shape, Q.dtype)
    scale = scale_of(rules.scale, Q.shape[1], np.result_type(Q.dtype, np.float32))
    memory.notes = {"scale": scale, "dropout": rules.dropout}
    _product(memory, "scores", "S", "Q", "K", bands, scale, transpose=True)
    if rules.mask != PLAIN.mask:
        S = "S_masked"
        _mask(memory, bands, rules.mask)
    _softmax(memory, bands, S)
    if rules.dropout is not None:
        P = "P_dropped"
        _dropout(memory, bands, rules.dropout)
    _product(memory, "output", "O", P, "V", bands)
    return memory.tensors["O"]


def backward(dO: np.ndarray, memory: Memory, *, Br: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the gradients of sum(dO * O) from what ``forward`` left in ``memory``, in five or six kernels.

    dO: [Nq, dv]; Br: as in ``forward``; scale and dropout are those of the forward pass, which left them in ``memory``.
    Returns (dQ, dK, dV), with the shapes and dtypes of Q, K, V.

    The mask has no kernel: where a score was masked, P is 0, and so is dS.

    Raises: ValueError where ``memory`` comes from no forward pass.
    """
    if "O" not in memory.tensors or dO.shape != memory.tensors["O"].shape:
        raise ValueError(f"expected the memory of a forward pass and dO of the shape of its O, got dO {dO.shape}")
    scale, dropout = memory.notes["scale"], memory.notes["dropout"]
    Q, K, V, P = (memory.tensors[name] for name in "QKVP")
    # the weights by which V was multiplied, and their gradient
    P_used, dP_used = ("P_dropped", "dP_dropped") if dropout is not None else ("P", "dP")
    bands = _bands(Q, Br)
    memory.place(dO=dO)
    for name, like in {"dQ": Q, "dK": K, "dV": V, "dP": P, dP_used: P, "dS": P}.items():
        memory.reserve(name, like.shape, like.dtype)
    _transposed_product(memory, "dV", P_used, "dO", bands)
    _product(memory, "dP", dP_used, "dO", "V", bands, transpose=True)
    if dropout is not None:
        _dropout_backward(memory, bands, dropout)
    _softmax_backward(memory, bands)
    _product(memory, "dQ", "dQ", "dS", "K", bands, scale)
    _transposed_product(memory, "dK", "dS", "Q", bands, scale)
    return memory.tensors["dQ"], memory.tensors["dK"], memory.tensors["dV"]


class Passes(NamedTuple):
    """The number of times that a kernel loads or stores a matrix of each kind."""

    square: int  # N x N, of the inputs' dtype
    thin: int  # N x d, of the inputs' dtype
    byte: int = 0  # N x N, one byte per element: the dropout mask

    @check_arguments(N=0)
    def bytes(self, N: int, d: int, itemsize: int = 2) -> int:
        """Return the bytes of these passes for one head, at ``itemsize`` bytes per number (2 for float16)."""
        return itemsize * (self.square * N * N + self.thin * N * d) + self.byte * N * N


FORWARD = {
    "scores": Passes(1, 2),  # load Q, K; store S
    "mask": Passes(2, 0),  # load S; store S_masked
    "softmax": Passes(2, 0),  # load S; store P
    "dropout": Passes(2, 0, 1),  # load P; store P_dropped, Z
    "output": Passes(1, 2),  # load P, V; store O
}
BACKWARD = {
    "dV": Passes(1, 2),  # load P, dO; store dV
    "dP": Passes(1, 2),  # load dO, V; store dP
    "dropout backward": Passes(2, 0, 1),  # load dP_dropped, Z; store dP
    "softmax backward": Passes(3, 0),  # load P, dP; store dS
    "dQ": Passes(1, 2),  # load dS, K; store dQ
    "dK": Passes(1, 2),  # load dS, Q; store dK
}


@check_arguments()
def passes(*, mask: bool = False, dropout: bool = False, backward: bool = False) -> dict[str, Passes]:
    """Return the passes of each kernel for N queries, N keys, and a mask that is computed and not loaded."""
    runs = {"mask": mask, "dropout": dropout, "dropout backward": dropout}
    kernels = FORWARD | (BACKWARD if backward else {})
    return {name: kernel for name, kernel in kernels.items() if runs.get(name, True)}


@check_arguments(N=0)
def moved(
    N: int, d: int, itemsize: int = 2, *, mask: bool = False, dropout: bool = False, backward: bool = False
) -> int:
    """Return the bytes that one head moves: ``passes``, added up."""
    kernels = passes(mask=mask, dropout=dropout, backward=backward)
    return sum(kernel.bytes(N, d, itemsize) for kernel in kernels.values())


def _product(
    memory: Memory,
    kernel: str,
    C: str,
    A: str,
    B: str,
    bands: Bands,
    factor: float | np.floating = 1,
    transpose: bool = False,
) -> None:
    """C = factor * A B, or factor * A B^T: the thin matrix B stays in fast memory, bands of A pass by."""
    with memory.kernel(kernel):
        right = memory.load(B).T if transpose else memory.load(B)
        for rows in bands:
            C_i = factor * (memory.load(A, rows) @ right)  # [Br, columns of C]
            memory.hold(**{C: C_i})
            memory.store(C, C_i, rows)


def _transposed_product(memory: Memory, C: str, A: str, B: str, bands: Bands, factor: float | np.floating = 1) -> None:
    """C = factor * A^T B, a thin matrix: it stays in fast memory while bands of A and B pass by."""
    with memory.kernel(C):
        total: Any = 0  # [Nk, columns of B]
        for rows in bands:
            total = total + memory.load(A, rows).T @ memory.load(B, rows)
            memory.hold(**{C: total})
        memory.store(C, factor * total)


def _mask(memory: Memory, bands: Bands, mask: Mask) -> None:
    Nq, Nk = memory.tensors["S"].shape
    memory.reserve("S_masked", (Nq, Nk), memory.tensors["S"].dtype)
    with memory.kernel("mask"):
        seen = mask.dense((Nq, Nk))  # [Nq, Nk]
        for rows in bands:
            memory.store("S_masked", np.where(seen[rows], memory.load("S", rows), -np.inf), rows)


def _softmax(memory: Memory, bands: Bands, S: str) -> None:
    with memory.kernel("softmax"):
        for rows in bands:
            memory.store("P", safe_softmax.safe(memory.load(S, rows)), rows)


def _dropout(memory: Memory, bands: Bands, dropout: Dropout) -> None:
    P = memory.tensors["P"]
    memory.reserve("P_dropped", P.shape, P.dtype)
    memory.reserve("Z", P.shape, np.uint8)  # 1 where a weight is kept
    with memory.kernel("dropout"):
        for rows in bands:
            P_i = memory.load("P", rows)  # [Br, Nk]
            Z_i = dropout.tile(rows, slice(0, P.shape[1]), P_i.dtype.type)  # [Br, Nk]
            memory.store("P_dropped", P_i * Z_i, rows)
            memory.store("Z", Z_i > 0, rows)


def _dropout_backward(memory: Memory, bands: Bands, dropout: Dropout) -> None:
    with memory.kernel("dropout backward"):
        for rows in bands:
            dP_i, Z_i = memory.load("dP_dropped", rows), memory.load("Z", rows)  # [Br, Nk] both
            memory.store("dP", dP_i * Z_i * dP_i.dtype.type(dropout.factor), rows)


def _softmax_backward(memory: Memory, bands: Bands) -> None:
    with memory.kernel("softmax backward"):
        for rows in bands:
            P_i, dP_i = memory.load("P", rows), memory.load("dP", rows)  # [Br, Nk] both
            memory.store("dS", P_i * (dP_i - (P_i * dP_i).sum(-1, keepdims=True)), rows)


def _check(Q: np.ndarray, K: np.ndarray, V: np.ndarray, rules: Rules, Br: int | None) -> Bands:
    """Check the arguments of ``forward``, and return its bands of rows."""
    one_dtype(Q=Q, K=K, V=V)
    if Q.ndim != 2 or K.ndim != 2 or V.ndim != 2 or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    Rules.check(rules)
    if rules.score is not None or rules.sink is not None:
        raise ValueError("standard attention has no score function and no sink")
    return _bands(Q, Br)


def _bands(Q: np.ndarray, Br: int | None) -> Bands:
    return tiles(len(Q), max(len(Q), 1) if Br is None else check_whole("Br", Br))
