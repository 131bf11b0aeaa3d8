"""Two vectors, one of them from its end: ``add``."""

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import (
    inside_margins,
    launched,
    moved,
    no_offset_wraps,
    wrong_stores,
)
from flashlab.kernels import DEVICE, tl, triton

BLOCK = 4  # elements a program of the cases handles at once: small enough to follow by hand


@triton.jit
def add_from_the_end(x, y, z, N, Bc: tl.constexpr):
    columns = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)  # [Bc]
    inside = columns < N  # [Bc]
    x_j = tl.load(x + columns, mask=inside)  # [Bc]
    y_j = tl.load(y + N - 1 - columns, mask=inside)  # [Bc]
    tl.store(z + columns, x_j + y_j, mask=inside)


def _launch_add(kernel, x, y, Bc=BLOCK):
    z, result = inside_margins(1, len(x))
    x, y = (torch.tensor(array, device=DEVICE) for array in (x, y))
    launched(kernel, (triton.cdiv(len(x), Bc),), x, y, z, len(x), Bc)
    return result()[0]


def _sum(x, y, Bc=BLOCK):
    return x + y[::-1]


def _own_block(programs, x, y, Bc=BLOCK):
    for program in programs:
        loads = [event for event in program if event.kind == "load"]
        if len({(it.name, at) for it in loads for at in range(len(x))[it.region[0]]}) > 2 * Bc:
            return (
                "the numbers are right, but a program read more than its own block: tl.program_id(0) says which block "
                "is its own, so that the programs share the work."
            )
    if moved("load", programs) > 2 * x.nbytes:
        return (
            "the numbers are right, but elements were loaded more than once: a program needs each only once, and a "
            "mask leaves out what is past an end."
        )
    return wrong_stores(programs, x.nbytes)


def _draw(rng, size):
    """Draw two vectors of numbers of any size, of one or many blocks, the last one full or not."""
    Bc = 2 ** int(rng.integers(1, 11))  # tl.flip takes no block of 1
    N = max(1, Bc * int(rng.integers(0, 2 * size + 1)) + int(rng.integers(-Bc // 2, Bc // 2 + 1)))
    x, y = rng.choice([0, 1], (2, N), p=[0.2, 0.8]) * rng.normal(size=(2, N)) * 10.0 ** rng.choice([0, 0, 4, 37, -35])
    return np.float32(x), np.float32(y), Bc


def _vectors(*values, Bc=BLOCK):
    return *np.float32(values), Bc


_FAR = 1_500_000_000  # the number of a program
_LAST_TWO = range(4 * _FAR, 4 * _FAR + 2)  # its elements, half of a block

add = Exercise(
    reference=add_from_the_end,
    launch=_launch_add,
    exact=_sum,
    edges=(
        Case("a single element: the rest of the block is masked", _vectors([2], [3])),
        Case("exactly one block", _vectors([1, 2, 3, 4], [10, 20, 30, 40])),
        Case("two blocks, the second one not full", _vectors([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60])),
    ),
    draw=_draw,
    draws=20,
    moves=(_own_block,),
    once=(no_offset_wraps(_FAR, (4 * _FAR + 2, 4), _LAST_TWO, range(2), _LAST_TWO),),
    mistakes=(
        Mistake("let every program take the first block.", "Add program_id * Bc.",
                "tl.program_id(0).to(tl.int64) * Bc + ", ""),
        Mistake("let the blocks overlap.", "Program j begins at j * Bc, not at j.",
                "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0).to(tl.int64)"),
        Mistake("loaded without a mask where there is nothing to load.",
                "x ends at N and y begins at 0: columns < N masks both.",
                "x_j = tl.load(x + columns, mask=inside)", "x_j = tl.load(x + columns)"),
        Mistake("stored without a mask: the last block writes past the end.", "Give tl.store mask=inside, too.",
                "x_j + y_j, mask=inside)", "x_j + y_j)"),
        Mistake("read y from its beginning.", "What belongs to element k is y's element N − 1 − k.",
                "y + N - 1 - columns", "y + columns"),
        Mistake("reversed each block by itself.", "All of y is to be read from its end.",
                "y + N - 1 - columns", "y + tl.minimum(tl.program_id(0) * Bc + Bc, N) - 1 - tl.arange(0, Bc)"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Which elements of z are yours, if each program takes Bc? And where in y is what belongs to element k?",
        "columns = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc); those with columns < N exist. What belongs "
        "to the first one is y's last element, y + N - 1.",
        "Load x + columns and y + N - 1 - columns with mask=inside, and tl.store(z + columns, sum, mask=inside).",
    ),
)  # fmt: skip
