"""The softmax of rows: ``softmax_row`` holds a row in one block, ``online`` reads it in many."""

import numpy as np
import torch

from flashlab.course.exercises.first_triton_kernel.vectors import BLOCK
from flashlab.grading.draws import scores
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import (
    inside_margins,
    launched,
    moved,
    no_offset_wraps,
    no_small_number_added,
    wrong_stores,
)
from flashlab.grading.laws import nothing_clipped
from flashlab.kernels import DEVICE, first_triton_kernel, triton
from flashlab.reference import safe_softmax as in_numpy


def _apart(x):
    """Return x with a gap after each row: narrower than the output's if the number of rows is odd, else wider."""
    gap = 3 if len(x) % 2 else 13  # the output's gap is kernel_laws.MARGIN, 8
    return torch.nn.functional.pad(torch.tensor(x), (0, gap), value=np.nan).to(DEVICE)[:, : x.shape[1]]


def _launch_softmax(kernel, x, Bc=None):
    y, result = inside_margins(*x.shape)
    x, N = _apart(x), x.shape[1]
    Bc = triton.next_power_of_2(N) if Bc is None else Bc
    launched(kernel, (len(x),), x, y, x.stride(0), y.stride(0), N, Bc)
    return result()


def _launch_online(kernel, x, Br=2, Bc=BLOCK):
    y, result = inside_margins(*x.shape)
    x = _apart(x)
    launched(kernel, (triton.cdiv(len(x), Br),), x, y, x.stride(0), y.stride(0), *x.shape, Br, Bc)
    return result()


def _one_reading(programs, x, Bc=None):
    if moved("load", programs) > x.nbytes:
        return "the numbers are right, but a row was read more than once: it fits into its block, so keep it there."
    return wrong_stores(programs, x.nbytes, in_order=True)


def _two_readings(programs, x, Br=2, Bc=BLOCK):
    if moved("load", programs) > 2 * x.nbytes:
        return (
            "the numbers are right, but rows were read more than twice: the online softmax finds m and l in one "
            "reading, and the weights are written in the second."
        )
    return wrong_stores(programs, x.nbytes, in_order=True)


def _softmax(x, *tile):
    return in_numpy.safe(x)


def _row(*scores):
    return (np.float32([scores]),)


def _draw_rows(rng, size):
    """Draw short or long rows of scores."""
    N = int(rng.choice([rng.integers(1, 2 * size + 1), rng.integers(1, 10 * size + 1)]))
    return scores(rng, int(rng.integers(1, size + 1)), N)


def _draw_softmax(rng, size):
    x = _draw_rows(rng, size)
    return x, int(rng.choice([1, 1, 4])) * triton.next_power_of_2(x.shape[1])


def _draw_online(rng, size):
    return _draw_rows(rng, size), 2 ** int(rng.integers(0, 5)), 2 ** int(rng.integers(1, 7))


MANY_SMALL = np.float32([[0] + [-20.5] * 16_384, [-20.5] * 16_384 + [0]])  # weights of 10⁻⁹, whose sum counts

_ONE_ROW = np.zeros((1, 3), np.float32)

_APART = 100_003, 100_008  # how far rows of x and y lie apart


def _softmax_of(kernel, x):
    return _launch_softmax(kernel, x[None])[0]


def _online_of(kernel, x):
    return _launch_online(kernel, x[None])[0]


softmax_row = Exercise(
    reference=first_triton_kernel.softmax_kernel,
    launch=_launch_softmax,
    exact=_softmax,
    edges=(
        Case("a row that does not fill its block", _row(0, 1, 2)),
        Case("scores far below 0: a masked element must not become the maximum", _row(-200, -201, -202)),
        Case("scores too large to be exponentiated", _row(1000, 1001, 1002)),
        Case("a score far below −1e9, which is often used for −∞", _row(-3e38, -np.inf, -np.inf)),
        Case("a row that is all −∞", _row(-np.inf, -np.inf, -np.inf)),
    ),
    draw=_draw_softmax,
    draws=40,
    moves=(_one_reading,),
    once=(
        no_small_number_added(_launch_softmax, _ONE_ROW),
        nothing_clipped(_softmax_of),
        no_offset_wraps(40_000, (*_APART, 3, 4), *(range(40_000 * it, 40_000 * it + 3) for it in _APART)),
    ),
    sways=True,
    mistakes=(
        Mistake("did not subtract the maximum.", "e^1000 overflows, and e^−200 is 0: subtract it first.",
                "tl.exp(S_i - m_safe)", "tl.exp(S_i)"),
        Mistake("read masked elements as 0, and they count in the sum.", "Load with other=-float('inf').",
                'other=-float("inf")', "other=0.0"),
        Mistake("let every program take the first row.", "Row i begins at x + i * x_stride.", "x + i * x_stride", "x"),
        Mistake("took rows to lie N elements apart.", "They lie x_stride elements apart.",
                "x + i * x_stride", "x + i * N"),
        Mistake("stored without a mask, past the end of the row.", "Give tl.store mask=inside.",
                "tl.where(l_i == 0, 1, l_i), mask=inside)", "tl.where(l_i == 0, 1, l_i))"),
        Mistake("subtracted −∞ from −∞, or divided 0 by 0: both give NaN.",
                "Where the maximum is −∞ subtract 0; where the sum is 0 divide by 1.",
                'tl.where(m_i == -float("inf"), 0, m_i)', "m_i"),
    ),
    level=2,
    minutes=15,
    hints=(
        "One program, one row: where in memory does row i begin, if rows are x_stride elements apart?",
        "Load the row once with other=-inf past the end, so that a masked element adds e^−∞ = 0 to the sum.",
        "m = tl.max(S, 0); P = tl.exp(S - m), with 0 for m where it is −∞; divide by tl.sum(P, 0), by 1 where it is 0.",
    ),
)  # fmt: skip

online = Exercise(
    reference=first_triton_kernel.softmax_online_kernel,
    launch=_launch_online,
    exact=_softmax,
    edges=(
        Case("a second block that raises the maximum, by much or by little",
             (np.float32([[0, 0, 0, 0, 1], [0, 0, 0, 0, 5e-4]]), 1)),
        Case("a score far below −1e9, which is often used for −∞", _row(-3e38, *[-np.inf] * 4)),
        Case("a first block that is all −∞, before scores far below 0", _row(*[-np.inf] * 4, -200, -201)),
        Case("a row that is all −∞", _row(*[-np.inf] * 5)),
        Case("one score before or after 16,384 whose weights are small", (MANY_SMALL, 1, 4096)),
    ),
    draw=_draw_online,
    draws=60,
    moves=(_two_readings,),
    once=(
        no_small_number_added(_launch_online, _ONE_ROW),
        nothing_clipped(_online_of),
        no_offset_wraps(20_000, (*_APART, 40_001, 7, 2, 4), *(range(40_000 * it, 40_000 * it + 7) for it in _APART)),
    ),
    sways=True,
    mistakes=(
        Mistake("did not rescale the old sum.", "Multiply it by e^(m_old − m_new).", "alpha * l_i", "l_i"),
        Mistake("did not keep the maximum for the next block.", "At the end of each turn m_new becomes m_i.",
                "        m_i = m_new\n", ""),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Subtract 0 where the maximum is still −∞.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("left NaN in a row that is all −∞.",
                "Divide by 1 where the sum is 0, and subtract 0 where the maximum is −∞, in the second loop, too.",
                "tl.where(l_i == 0, 1, l_i)", "l_i"),
        Mistake("read masked elements as 0, and they count in the sum.", "Load with other=-float('inf').",
                'other=-float("inf")).to(tl.float32)  # [Br, Bc]\n        m_new',
                "other=0.0).to(tl.float32)  # [Br, Bc]\n        m_new"),
        Mistake("wrote weights before the last block had been seen.", "They need the m and l of the whole row.",
                "        m_i = m_new\n",
                "        m_i = m_new\n        tl.store(y + rows[:, None] * y_stride + start + columns[None, :], "
                "P_ij / l_i[:, None], mask=inside)\n    N = 0\n"),
    ),
    level=3,
    minutes=30,
    hints=(
        "Two loops over the blocks of the row: one finds m and l as the online softmax does, one writes the weights.",
        "Between blocks keep m_i and l_i [Br] in registers, -inf and 0 at first; a block's masked elements are −∞.",
        "In the first loop the lines are those of online_softmax.update without O. In the second, load the block again "
        "and store tl.exp(S_ij - m_safe[:, None]) / l_safe[:, None].",
    ),
)  # fmt: skip
