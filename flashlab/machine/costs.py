"""What a way of computing attention costs, counted in the run: error, extra memory, bytes moved, FLOPs.

FLOPs are those of matrix products, as the papers count them: 2 m n k for [m, k] times [k, n]. Exponentials, sums and
comparisons are left out.
"""

from typing import NamedTuple

import numpy as np

from flashlab.machine.hardware import PER_SM
from flashlab.machine.memory import Memory

GIVEN = {"Q", "K", "V", "O", "dO", "dQ", "dK", "dV"}  # inputs and outputs, which every way of computing needs


class Bill(NamedTuple):
    """What a run cost."""

    error: float  # of the output, as ``error`` measures it
    extra: int  # bytes of slow memory beside inputs and outputs
    moved: int  # bytes between slow and fast memory, either way
    flops: int  # of matrix products


def bill(function, *inputs, exact, output="O", sram_bytes=PER_SM["8.0"].block_bytes, **options) -> Bill:
    """Run ``function(*inputs, memory=..., **options)`` and draw up its bill.

    exact: what the tensor called ``output`` should be at the end; sram_bytes: size of the fast memory, as much as one
    block of threads may have on an A100 if not given.
    """
    memory = Memory(sram_bytes)
    _, flops = counted(function, *inputs, memory=memory, **options)
    extra = sum(tensor.nbytes for name, tensor in memory.tensors.items() if name not in GIVEN)
    return Bill(error(memory.tensors[output], exact), extra, memory.moved, flops)


def error(O, exact) -> float:
    """|O - exact| / |exact|, in Frobenius norms: 0 for the right output, 1 for an output of zeros.

    Works for arrays of numpy and for tensors of torch.
    """
    return float((((O - exact) ** 2).sum() / (exact**2).sum()) ** 0.5)


def counted(function, *args, **options):
    """``function(*args, **options)``, and the FLOPs of its numpy matrix products: a pair (result, FLOPs).

    The arrays in ``args`` are watched, and so is all that is computed from them. A product that none of these enters is
    not seen.
    """

    class Watched(np.ndarray):
        flops = 0

        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **rest):
            if out:
                rest["out"] = tuple(_plain(array) for array in out)
            result = getattr(ufunc, method)(*(_plain(array) for array in inputs), **rest)
            if ufunc is np.matmul:
                Watched.flops += 2 * result.size * np.shape(inputs[0])[-1]
            return result.view(Watched) if isinstance(result, np.ndarray) else result

    result = function(*(arg.view(Watched) if isinstance(arg, np.ndarray) else arg for arg in args), **options)
    return result, Watched.flops


def _plain(array):
    return array.view(np.ndarray) if isinstance(array, np.ndarray) else array
