"""delta, the sum of O ∘ dO along each row: a kernel of its own, ``delta``."""

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import LARGER, REGIMES, sweep
from flashlab.grading.kernel_laws import inside_margins, launched, stored_too_often
from flashlab.grading.laws import proportional
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


def _delta_cases():
    rng = np.random.default_rng(12)
    square, ragged, long = ((rng.normal(size=(2, *shape)).astype(np.float32)) for shape in ((4, 4), (6, 3), (9, 5)))
    return [
        Case("one row of two", (np.float32([[3, 4]]), np.float32([[2, 5]]))),
        Case("four rows of four: one program", tuple(square)),
        Case("six rows of three: the last tile hangs over two edges", tuple(ragged)),
        Case("nine rows of five, in three programs", tuple(long)),
        Case("sixteen rows of three, in four full programs", tuple(rng.normal(size=(2, 16, 3)).astype(np.float32))),
        Case("a taller tile", (*long, 8)),
        Case("a tile of two rows", (*ragged, 2)),
        Case("inputs in float16: the sum needs float32", tuple(np.float16(100 * long))),
        Case("O in float16, dO in float32", (np.float16(long[0]), 1e5 * long[1])),
        Case(
            "rows that cancel, and rows of zeros",
            tuple(np.float32([[[1, 1], [0, 0], [2, 3]], [[1, -1], [3, 4], [0, 0]]])),
        ),
        Case("three rows of one, in a wider tile", (*rng.normal(size=(2, 3, 1)).astype(np.float32), 4, 8)),
        Case("three hundred rows, tiles of 128", (*rng.normal(size=(2, 300, 3)).astype(np.float32), 128)),
        *sweep(_delta_args, regimes=REGIMES[:1], sizes=LARGER, usual={"Nq": 5, "dv": 6}),
    ]


def _stored_once(programs, O, dO, *tile):
    """Law: each delta is stored once."""
    return stored_too_often(programs, 4 * len(O))


def _delta_args(draw, Nq, dv):
    return draw.normal(Nq, dv), draw.normal(Nq, dv)


def _delta_of(kernel, size):
    O, dO = np.float32([[1, 2], [-3, 0.7]]), np.float32([[3, -0.4], [0.2, 5]])
    return _launch_delta(kernel, O, np.float32(size) * dO)


delta = Exercise(
    reference=delta_of_rows,
    launch=_launch_delta,
    exact=_exact_delta,
    cases=_delta_cases,
    moves=(_stored_once,),
    once=(proportional(_delta_of, "dO"),),
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
        Mistake("summed over the queries: sum over the head dimension, axis 1.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum(dO_i * O_i, 0)"),
        Mistake("every program took the first rows: add program_id * Br.", "tl.program_id(0) * Br + ", ""),
        Mistake("columns past the row's end were counted, the next row's: mask columns < dv.",
                " & (columns < dv)[None, :]", ""),
        Mistake("rows lie dv elements apart, not width.", "rows[:, None] * dv", "rows[:, None] * width"),
        Mistake("the loads do not mask the rows: the last program reads past the end. rows < N.",
                "(rows < N)[:, None] & ", "(rows >= 0)[:, None] & "),
        Mistake("every program stored its sums in the first rows: add program_id * Br there, too.",
                "delta + rows", "delta + tl.arange(0, Br)"),
        Mistake("the store is not masked: the last program writes past the end.", ", mask=rows < N)", ")"),
        Mistake("the last row was masked out: rows < N are inside.", "mask=rows < N)", "mask=rows < N - 1)"),
        Mistake("the mask lets one row too many through: the last row is N − 1.", "mask=rows < N)", "mask=rows <= N)"),
        Mistake("the last column was masked out: columns < dv are inside.", "columns < dv", "columns < dv - 1"),
        Mistake("nothing was stored: only tl.store writes where delta points.",
                "tl.store(delta + rows, tl.sum(dO_i * O_i, 1), mask=rows < N)", "tl.sum(dO_i * O_i, 1)"),
        Mistake("O was multiplied with itself: delta is rowsum(dO ∘ O).", "dO_i * O_i", "O_i * O_i"),
        Mistake(
            "a masked load without other= reads anything at all, on a GPU: say what stands there.",
            "O_i = tl.load(O + at, mask=inside, other=0).to",
            "O_i = tl.load(O + at, mask=inside).to",
        ),
        Mistake(
            "the product was rounded to float16: take both .to(tl.float32) first.",
            "dO_i * O_i",
            "dO_i.to(O.dtype.element_ty) * O_i.to(O.dtype.element_ty)",
        ),
        Mistake("the sums were multiplied: multiply element by element first, and then sum.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum(dO_i, 1) * tl.sum(O_i, 1)"),
        Mistake('that is the sum of dO alone: multiply with O first.', 'dO_i * O_i', 'dO_i'),
        Mistake('that is the mean: delta is the sum.', 'tl.sum(dO_i * O_i, 1)', 'tl.sum(dO_i * O_i, 1) / dv'),
        Mistake("columns from 64 on were left out: a head may be wider.",
                "(columns < dv)[None, :]", "(columns < tl.minimum(dv, 64))[None, :]"),
        Mistake("the sum was taken in float16: it needs float32.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum((dO_i * O_i).to(tl.float16), 1).to(tl.float32)"),
        Mistake("the product was rounded to float16: take both .to(tl.float32) first.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum((dO_i.to(O.dtype.element_ty) * O_i.to(O.dtype.element_ty))"
                ".to(tl.float32), 1)"),
    ),
)  # fmt: skip
