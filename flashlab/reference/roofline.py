"""The least time of work whose transfers and arithmetic overlap: the longer of the two times decides.

Source: Williams, Waterman and Patterson 2009, "Roofline".
"""

from typing import NamedTuple

from flashlab.machine import costs, hardware
from flashlab.machine.arguments import check_arguments, check_fields, check_number
from flashlab.reference import standard_attention
from flashlab.reference.tiling import fa2_traffic


class Work(NamedTuple):
    """The demands of an operation: FLOPs, bytes to and from DRAM, exponentials."""

    flops: float
    nbytes: float
    exps: float = 0


def seconds(flops: float, nbytes: float, flop_rate: float, byte_rate: float) -> float:
    """Return the least time for ``flops`` operations and ``nbytes`` bytes at these rates per second."""
    check_number("flops", flops, 0)
    check_number("nbytes", nbytes, 0)
    check_number("flop_rate", flop_rate)
    check_number("byte_rate", byte_rate)
    return max(flops / flop_rate, nbytes / byte_rate)


@check_arguments()
def intensity(work: Work) -> float:
    """Return the FLOPs per byte that is moved."""
    check_fields(work, flops=0, exps=0)
    return work.flops / work.nbytes


@check_arguments()
def reachable(work: Work, flop_rate: float, byte_rate: float) -> float:
    """Return the FLOPs of this work divided by its ``seconds``: the height of the roof at its intensity."""
    check_fields(work, flops=0, exps=0)
    return work.flops / seconds(work.flops, work.nbytes, flop_rate, byte_rate)


@check_arguments()
def attention(N: int, d: int, dtype: str = "float16", Br: int = 128) -> dict[str, Work]:
    """Return the work of a forward pass, one head without mask: of three kernels, of their sum, and of fused kernels.

    FLOPs are those of the matrix products, as the papers count them. Only the entry "softmax" counts the softmax: 5
    operations per score (maximum, difference, exponential, sum, division). "fused" keeps a tile of Br queries and reads
    all keys and values for each tile: these are the bytes that the program requests, before any cache. "fused, read
    once" reads and writes each tensor once, the least that any kernel can move.

    Source: FlashAttention, algorithm 0; FlashAttention-2, algorithm 1.
    """
    stored = hardware.stored(dtype)
    kernels = {name: kernel.bytes(N, d, stored.itemsize) for name, kernel in standard_attention.passes().items()}
    whole = costs.flops(N, N, d)

    def fused(Br: int) -> Work:
        return Work(whole, fa2_traffic(N, N, d, Br, Br, dtype=stored).total(), N * N)

    return {
        "QKᵀ": Work(whole / 2, kernels["scores"]),
        "softmax": Work(5 * N * N, kernels["softmax"], N * N),
        "PV": Work(whole / 2, kernels["output"]),
        "standard": Work(whole, sum(kernels.values()), N * N),
        "fused": fused(Br),
        "fused, read once": fused(N),
    }
