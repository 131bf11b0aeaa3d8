"""delta, the sum of O ∘ dO along each row: a kernel of its own, ``delta``."""

import numpy as np
import torch

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import inside_margins, launched, wrong_stores
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference import recomputation


@triton.jit
def delta_of_rows(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    rows = tl.program_id(0) * Br + tl.arange(0, Br)  # [Br]
    columns = tl.arange(0, width)  # [width]
    inside = (rows < N)[:, None] & (columns < dv)[None, :]  # [Br, width]
    at = rows[:, None] * dv + columns[None, :]  # [Br, width]
    O_i = tl.load(O + at, mask=inside, other=0).to(tl.float32)  # [Br, width]
    dO_i = tl.load(dO + at, mask=inside, other=0).to(tl.float32)  # [Br, width]
    tl.store(delta + rows, tl.sum(dO_i * O_i, 1), mask=rows < N)


def _launch_delta(kernel, O, dO, Br=4, width=None):
    delta, result = inside_margins(1, len(O))
    O, dO = (torch.tensor(x, device=DEVICE) for x in (O, dO))
    N, dv = O.shape
    width = triton.next_power_of_2(dv) if width is None else width
    launched(kernel, (triton.cdiv(N, Br),), O, dO, delta, N, dv, Br, width)
    return result()[0]


def _exact_delta(O, dO, Br=4, width=None):
    return recomputation.delta(dO, O)


def _draw(rng, size):
    """Draw O and dO, each of its own dtype and size of numbers, some rows of zeros, and a tile."""
    N, dv, Br = whole(rng, size, 300), whole(rng, size, 150), 2 ** int(rng.integers(0, 8))
    arrays = []
    for _ in range(2):
        dtype, factor = ((np.float32, 1), (np.float32, 1e12), (np.float32, 1e-12), (np.float16, 100))[rng.integers(4)]
        rows = factor * rng.choice([0, 1], (N, 1), p=[0.2, 0.8])  # [N, 1]
        arrays.append((rows * rng.normal(size=(N, dv))).astype(dtype))
    return *arrays, Br, int(rng.choice([1, 1, 4])) * triton.next_power_of_2(dv)


def _rows(property, O, dO, *tile):
    return Case(property, (np.float32(O), np.float32(dO), *tile))


def _stored_once(programs, O, dO, *tile):
    """Law: each delta is stored once."""
    return wrong_stores(programs, 4 * len(O))


delta = Exercise(
    reference=delta_of_rows,
    launch=_launch_delta,
    exact=_exact_delta,
    edges=(
        _rows("one row of two", [[3, 4]], [[2, 5]]),
        _rows("three rows of three, in two programs", np.eye(3) + 1, np.arange(9).reshape(3, 3), 2),
        _rows("five rows, one of zeros: the last program has one row", [[1], [2], [0], [4], [5]], [[2]] * 5),
        _rows("a wide head", [[1] * 100] * 2, [[0.5] * 100, range(100)]),
    ),
    draw=_draw,
    draws=40,
    moves=(_stored_once,),
    sways=True,
    level=2,
    minutes=10,
    hints=(
        "The first kernel's pattern in two dimensions: which rows are yours, which of them and of the columns exist?",
        "The element in row r and column c is r * dv + c elements after the first: rows[:, None] * dv + "
        "columns[None, :].",
        "Load O and dO there with other=0 and mask (rows < N)[:, None] & (columns < dv)[None, :], take them "
        ".to(tl.float32); store tl.sum(dO_i * O_i, 1) to delta + rows where rows < N.",
    ),
    mistakes=(
        Mistake("summed over the queries.", "Sum over the head dimension, axis 1.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum(dO_i * O_i, 0)"),
        Mistake("let every program take the first rows.", "Add program_id * Br.", "tl.program_id(0) * Br + ", ""),
        Mistake("counted columns past the row's end, which are the next row's.", "Mask columns < dv.",
                " & (columns < dv)[None, :]", ""),
        Mistake("took rows to lie width elements apart.", "They lie dv elements apart.",
                "rows[:, None] * dv", "rows[:, None] * width"),
        Mistake("rounded the product to float16.", "Take O and dO .to(tl.float32) before the product.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum((dO_i.to(O.dtype.element_ty) * O_i.to(O.dtype.element_ty))"
                ".to(tl.float32), 1)"),
        Mistake("loaded masked elements without other=.", "A GPU reads anything there: give other=0.",
                "O_i = tl.load(O + at, mask=inside, other=0).to", "O_i = tl.load(O + at, mask=inside).to"),
    ),
)  # fmt: skip
