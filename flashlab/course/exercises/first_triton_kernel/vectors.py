"""Two vectors, one of them from its end: ``add``."""

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.kernel_laws import (
    inside_margins,
    launched,
    no_offset_wraps,
    stored_too_often,
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
        if sum(event.nbytes for event in loads) > 2 * Bc * x.itemsize:
            if len({(it.name, at) for it in loads for at in range(len(x))[it.region[0]]}) <= 2 * Bc:
                return "the numbers are right, but a program read its own block more than once."
            return (
                "the numbers are right, but a program read more than its own block: tl.program_id(0) says which block "
                "is its own, so that the programs share the work."
            )
    return stored_too_often(programs, x.nbytes)


def _vectors(N):
    return tuple(np.random.default_rng(N).normal(size=(2, N)).astype(np.float32))


def _add_cases():
    one = np.array([[2.0], [3.0]], np.float32)
    return [
        Case("a single element: the rest of the block is masked", (one[0], one[1])),
        Case("exactly one block", _vectors(4)),
        Case("exactly two blocks", _vectors(8)),
        Case("two blocks, the second one not full", _vectors(6)),
        Case("many blocks", _vectors(29)),
        Case("a wider block", (*_vectors(29), 16)),
        Case("a narrower block", (*_vectors(5), 2)),
        Case("blocks of a thousand", (*_vectors(2500), 1024)),
        Case("seventy blocks", _vectors(278)),
        Case("very large numbers", tuple(np.float32([[2e38, -3e38, 1e30, 6e4, 7e4], [6e4, -7e4, 1e30, 2e38, 1e38]]))),
        Case("very small numbers", tuple(np.float32([[2e-35, -3e-30, 1e-20], [3e-35, 1e-30, 0]]))),
        Case("zeros", tuple(np.float32([[0, 1, 0, -2], [3, 0, 0, 5]]))),
    ]


_FAR = 1_500_000_000  # the number of a program

add = Exercise(
    reference=add_from_the_end,
    launch=_launch_add,
    exact=_sum,
    cases=_add_cases,
    moves=(_own_block,),
    once=(no_offset_wraps(3, _FAR, (4 * _FAR + 4, 4), 4 * _FAR, -4 * _FAR),),
    level=2,
    minutes=10,
    hints=(
        "Which elements of z are yours, if each program takes Bc? And where in y is what belongs to element k?",
        "columns = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc); those with columns < N exist. What belongs "
        "to the first one is y's last element, y + N - 1.",
        "Load x + columns and y + N - 1 - columns with mask=inside, and tl.store(z + columns, sum, mask=inside).",
    ),
    mistakes=(
        Mistake("every program took the first block: add program_id * Bc.",
                "tl.program_id(0).to(tl.int64) * Bc + ", ""),
        Mistake("blocks overlap: program j begins at j * Bc, not at j.",
                "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0).to(tl.int64)"),
        Mistake(
            "a load is not masked where there is nothing to load: x ends at N, y begins at 0. columns < N masks both.",
            "x_j = tl.load(x + columns, mask=inside)",
            "x_j = tl.load(x + columns)",
        ),
        Mistake(
            "the store is not masked: the last block writes past the end.", "x_j + y_j, mask=inside)", "x_j + y_j)"
        ),
        Mistake(
            "nothing was stored: only tl.store writes where z points.",
            "tl.store(z + columns, x_j + y_j, mask=inside)",
            "x_j + y_j",
        ),
        Mistake("blocks overlap: program j begins at j * Bc.",
                "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0).to(tl.int64) * (Bc - 1)"),
        Mistake("y was read from its beginning: what belongs to element k is y's element N − 1 − k.",
                "y + N - 1 - columns", "y + columns"),
        Mistake("off by one: the last element of y is N − 1.", "y + N - 1 - columns", "y + N - columns"),
        Mistake("y was read from the end of its last block, which need not be full: its last element is N − 1.",
                "y + N - 1 - columns", "y + tl.cdiv(N, Bc) * Bc - 1 - columns"),
        Mistake("each block was inverted by itself: all of y is to be read from its end.",
                "y + N - 1 - columns", "y + tl.minimum(tl.program_id(0) * Bc + Bc, N) - 1 - tl.arange(0, Bc)"),
        Mistake("each block was inverted by itself: all of y is to be read from its end.",
                "y + N - 1 - columns", "y + tl.program_id(0) * Bc + Bc - 1 - tl.arange(0, Bc)"),
        Mistake("the sum was rounded to half precision.", "x_j + y_j", "(x_j + y_j).to(tl.float16)"),
        Mistake("x was inverted as well: it is read from its beginning.", "x + columns", "x + N - 1 - columns"),
        Mistake("x was inverted instead of y.",
                "x + columns, mask=inside)  # [Bc]\n    y_j = tl.load(y + N - 1 - columns",
                "x + N - 1 - columns, mask=inside)\n    y_j = tl.load(y + columns"),
        Mistake("the mask lets one element too many through: the last column is N − 1.", "columns < N", "columns <= N"),
        Mistake("the last element was masked out: columns < N are inside.", "columns < N", "columns < N - 1"),
        Mistake("y was never read.", "x_j + y_j", "x_j + x_j"),
        Mistake("x and y were multiplied: add them.", "x_j + y_j", "x_j * y_j"),
        Mistake(
            "every program stored into the first block: the result belongs where its block begins.",
            "z + columns",
            "z + tl.arange(0, Bc)",
        ),
        Mistake("y was read from the end of its last block, which need not be full: its last element is N − 1.",
                "y_j = tl.load(y + N - 1 - columns, mask=inside)",
                "back = (tl.num_programs(0) - tl.program_id(0)) * Bc - 1 - tl.arange(0, Bc)\n"
                "    y_j = tl.load(y + back, mask=back < N)"),
        Mistake("each block was inverted by itself: all of y is to be read from its end.",
                "y_j = tl.load(y + N - 1 - columns, mask=inside)",
                "back = tl.program_id(0) * Bc + Bc - 1 - tl.arange(0, Bc)\n"
                "    y_j = tl.load(y + back, mask=back < N)"),
        Mistake("that is the right block of y, but it was not inverted: what belongs to its first element comes last.",
                "y_j = tl.load(y + N - 1 - columns, mask=inside)",
                "back = N - (tl.program_id(0) + 1) * Bc + tl.arange(0, Bc)\n"
                "    y_j = tl.load(y + back, mask=(back >= 0) & (back < N))"),
        Mistake("tl.flip must be told along which dimension: tl.flip(y_j, 0).",
                "x_j + y_j, mask", "x_j + tl.flip(y_j), mask"),
    ),
)  # fmt: skip
