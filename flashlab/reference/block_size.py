"""The size of a tile: the paper's formula, the room that tiles really take, and the time that they save.

Fast memory is counted in elements (``M``) where the paper does so, and in bytes (``sram_bytes``) everywhere else.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine import costs, hardware
from flashlab.machine.arguments import check_arguments
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import tiling


@check_arguments()
def formula(M: int, d: int) -> tuple[int, int]:
    """Return the paper's tile sizes (Br, Bc) for a fast memory of M elements and head dimension d.

    Bc = ceil(M / 4d) makes K_j and V_j about a quarter of M each, and Q_i and O_i no larger. Br is at most d, so that
    the tile of scores is about a quarter of M at most, too. The five together may exceed M.

    Raises: ValueError for a memory or a head without elements. Source: FlashAttention, Algorithm 1, line 1.
    """
    Bc = -(-M // (4 * d))
    return min(Bc, d), Bc


@check_arguments()
def working_set(Br: int, Bc: int, d: int, dtype: DTypeLike = np.float16) -> dict[str, int]:
    """Return the bytes of each tile that ``tiling.fa2_forward`` holds at once, by name.

    What is loaded has ``dtype``, what is computed float32 or better. P_ij takes the place of S_ij.
    """
    e, wide = np.dtype(dtype).itemsize, np.result_type(dtype, np.float32).itemsize
    operands = {"Q": Br * d * e, "K": Bc * d * e, "V": Bc * d * e}
    return {**operands, "S_ij": Br * Bc * wide, "O_i": Br * d * wide, "m_i": Br * wide, "l_i": Br * wide}


@check_arguments()
def shared_memory(Br: int, Bc: int, d: int, dtype: DTypeLike = np.float16, stages: int = 1) -> int:
    """Return the bytes of shared memory where S_ij, O_i, m_i and l_i live in registers, as in shipped kernels.

    What is left is one tile of queries and ``stages`` of keys and of values: with two, the next one arrives while the
    kernel works on this one.
    """
    return (Br + 2 * stages * Bc) * d * np.dtype(dtype).itemsize


@check_arguments(sram_bytes=0)
def peak(Br: int, Bc: int, d: int, dtype: DTypeLike = np.float16, sram_bytes: float | None = None) -> int:
    """Run ``fa2_forward`` on one tile of queries and one of keys, and return the peak of fast memory in bytes.

    Raises: FastMemoryFull where the tiles need more than ``sram_bytes``.
    """
    memory = Memory(sram_bytes)
    Q_i, K_j = np.zeros((Br, d), dtype), np.zeros((Bc, d), dtype)
    tiling.fa2_forward(Q_i, K_j, K_j, Br, Bc, memory=memory)
    return memory.peak_bytes


@check_arguments(sram_bytes=(0, 2**27))
def largest(sram_bytes: float, d: int, dtype: DTypeLike = np.float16, step: int = 16) -> int:
    """Return the largest B, a multiple of ``step``, whose tiles of B x B run in a fast memory of ``sram_bytes``.

    It tries one B after another. Raises: ValueError where not even one step fits, or for a memory above 2^27 bytes.
    """
    B = 0
    while _runs(B + step, d, dtype, sram_bytes):
        B += step
    if B == 0:
        room = peak(step, step, d, dtype)
        raise ValueError(f"no tile fits: {step} x {step} at d = {d} takes {room:,} bytes, there are {sram_bytes:,}")
    return B


def _runs(B: int, d: int, dtype: DTypeLike, sram_bytes: float) -> bool:
    try:
        peak(B, B, d, dtype, sram_bytes)
    except FastMemoryFull:
        return False
    return True


class Clocks(NamedTuple):
    """The seconds that a card needs for bytes and for arithmetic. The two overlap, so the larger decides."""

    bytes: float
    arithmetic: float


@check_arguments()
def clocks(card: hardware.Card, N: int, d: int, B: int, dtype: str = "float16") -> Clocks:
    """Return what one head of N tokens costs ``card`` (a ``hardware.Card``) in square tiles of B.

    The queries are in the outer loop. Bytes are the program's requests, before any cache; rates are the card's peaks;
    enough heads are in flight to keep all of it busy. Raises: ValueError where the card's rate of arithmetic in
    ``dtype`` is not known.
    """
    rate = hardware.flop_rate(card, dtype)
    moved = tiling.fa2_traffic(N, N, d, B, B, dtype=hardware.stored(dtype)).total()
    return Clocks(moved / card.dram_rate, costs.flops(N, N, d) / rate)


@check_arguments(required=0, limit=0)
def refusal(required: int, limit: int) -> str:
    """Return what Triton says when a kernel needs more shared memory than a block of threads may have (triton 3.7)."""
    return (
        f"out of resource: shared memory, Required: {required}, Hardware limit: {limit}. "
        "Reducing block sizes or `num_stages` may help."
    )
