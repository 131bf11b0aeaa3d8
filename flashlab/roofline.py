"""How long work takes when bytes and arithmetic flow side by side: the slower of the two clocks decides.

Source: Williams, Waterman and Patterson 2009, "Roofline".
"""

from typing import NamedTuple

NBYTES = {"float8": 1, "float16": 2, "float32": 4}


class Work(NamedTuple):
    """What an operation asks for: FLOPs, bytes to and from DRAM, exponentials."""

    flops: float
    nbytes: float
    exps: float = 0


def seconds(flops, nbytes, flop_rate, byte_rate):
    """The least time for ``flops`` operations and ``nbytes`` bytes, at so many of each a second."""
    return max(flops / flop_rate, nbytes / byte_rate)


def intensity(work) -> float:
    """FLOPs for each byte that is moved."""
    return work.flops / work.nbytes


def reachable(work, flop_rate, byte_rate) -> float:
    """FLOPs a second of this work where ``seconds`` is the whole truth: the height of the roof above its intensity."""
    return work.flops / seconds(work.flops, work.nbytes, flop_rate, byte_rate)


def attention(N, d, dtype="float16", Br=128) -> dict[str, Work]:
    """What attention forward asks for, one head without mask: three kernels, their sum, and one fused kernel.

    FLOPs are those of the matrix products, as the papers count them; only the softmax by itself, which has none, is
    booked with 5 operations an entry (maximum, difference, exponential, sum, division). The fused kernel keeps a tile
    of Br queries and reads all keys and values for it: that is what the program asks for, before any cache. "fused,
    read once" is the least that any kernel can move. Both write O and a float32 lse.

    Source: FlashAttention, algorithm 0; FlashAttention-2, algorithm 1.
    """
    e = NBYTES[dtype]
    matrix, tensor, Tr = e * N * N, e * N * d, -(-N // Br)
    products = Work(2 * N * N * d, 2 * tensor + matrix)  # QK^T reads Q, K, writes S; PV reads P, V, writes O
    softmax = Work(5 * N * N, 2 * matrix, N * N)
    return {
        "QKᵀ": products,
        "softmax": softmax,
        "PV": products,
        "standard": Work(4 * N * N * d, 2 * products.nbytes + softmax.nbytes, N * N),
        "fused": Work(4 * N * N * d, (2 + 2 * Tr) * tensor + 4 * N, N * N),
        "fused, read once": Work(4 * N * N * d, 4 * tensor + 4 * N, N * N),
    }
