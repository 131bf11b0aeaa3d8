"""Which tiles, warps and pipeline stages a kernel is launched with."""

from typing import NamedTuple


class Configuration(NamedTuple):
    """One launch: rows and columns of a tile of scores, warps a program, stages of the pipeline that loads tiles."""

    Br: int
    Bc: int
    warps: int
    stages: int
    specialized: bool = False


def configuration(kernel, q, k, v, causal):
    if kernel == "row_constants":
        return Configuration(64, 0, 4, 1)
    if q.is_cuda and q.dtype.itemsize == 4:
        return Configuration(16, 32, 8, 1)
    return Configuration(64, 64, 8 if q.shape[-1] > 128 else 4, 2)
