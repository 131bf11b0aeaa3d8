"""The costs of computing attention: error, extra memory, bytes moved and FLOPs, counted in a run or by formula.

FLOPs are those of matrix products, as the papers count them: 2 m n k for [m, k] times [k, n]. Exponentials, sums and
comparisons are left out.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.machine.hardware import PER_SM
from flashlab.machine.memory import Memory

INPUTS_AND_OUTPUTS = {"Q", "K", "V", "O", "dO", "dQ", "dK", "dV"}  # inputs and outputs of every algorithm


class Costs(NamedTuple):
    """The costs of one run."""

    error: float  # of the output, as ``error`` measures it
    extra: int  # bytes of slow memory beside inputs and outputs
    moved: int  # bytes between slow and fast memory, either way
    flops: int  # of matrix products


def measure(
    function: Callable,
    *inputs: np.ndarray,
    exact: np.ndarray,
    output: str = "O",
    sram_bytes: int | None = PER_SM["8.0"].block_bytes,
    **options: object,
) -> Costs:
    """Run ``function(*inputs, memory=..., **options)`` and return what it cost.

    exact: what the tensor named ``output`` should be at the end; sram_bytes: size of the fast memory, by
    default that of one block of threads on an A100; unlimited if None.
    """
    memory = Memory(sram_bytes)
    _, products = counted(function, *inputs, memory=memory, **options)
    if output not in memory.tensors:
        raise ValueError(f"output must be one of {', '.join(memory.tensors)}, got {output!r:.40}")
    extra = sum(tensor.nbytes for name, tensor in memory.tensors.items() if name not in INPUTS_AND_OUTPUTS)
    return Costs(error(memory.tensors[output], exact), extra, memory.moved, products)


def error(O: np.ndarray, exact: np.ndarray) -> float:
    """Return |O - exact| / |exact| in Frobenius norms: 0 for the right output, 1 for an output of zeros.

    O may be one row for all rows of exact.
    """
    if exact.shape not in (O.shape, (*exact.shape[:-1], *O.shape)):
        raise ValueError(f"expected O and exact of one shape, got {O.shape} and {exact.shape}")
    return float(np.linalg.norm(O - exact) / np.linalg.norm(exact))


@check_arguments(Nq=0, Nk=0)
def flops(Nq: int, Nk: int, d: int, *, training: bool = False, rebuilt: bool = False) -> int:
    """Return the FLOPs of one head's matrix products, 2 Nq Nk d for each of them.

    Forward has two products (S and O). ``training`` adds the four of the backward pass (dV, dP, dQ and dK), and
    ``rebuilt`` to these S once more, for weights that were not kept. Softmax is left out: it takes a few operations for
    each of the Nq Nk scores, where one product takes 2 d.
    """
    products = 2 + 4 * training + (training and rebuilt)
    return products * 2 * Nq * Nk * d


@check_arguments(room=0)
def longest(room: float, need: Callable[[int], float], most: int = 2**40) -> int:
    """Return the largest N up to ``most`` with ``need(N) <= room``, where need grows with N; 0 if there is none.

    Raises: ValueError for a room that is not a finite number.
    """
    return bisect_right(range(1, most + 1), room, key=need)


@check_arguments()
def counted(function: Callable, *args: object, **options: object) -> tuple:
    """Return ``function(*args, **options)`` and the FLOPs of its numpy matrix products: a pair (result, FLOPs).

    The arrays in ``args`` are watched, and so is all that is computed from them. A product of other
    arrays is not counted.
    """

    class Watched(np.ndarray):
        flops = 0

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **rest: Any) -> Any:
            if out:
                rest["out"] = tuple(_plain(array) for array in out)
            result = getattr(ufunc, method)(*(_plain(array) for array in inputs), **rest)
            if ufunc is np.matmul:
                Watched.flops += 2 * result.size * np.shape(inputs[0])[-1]
            return result.view(Watched) if isinstance(result, np.ndarray) else result

    result = function(*(arg.view(Watched) if isinstance(arg, np.ndarray) else arg for arg in args), **options)
    return result, Watched.flops


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, np.ndarray) else array
