"""The softmax of rows: ``softmax_row`` holds a row in one block, ``online`` reads it in many."""

import numpy as np
import torch

from flashlab.course.exercises.first_triton_kernel.vectors import BLOCK
from flashlab.grading.exercise import Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import sweep
from flashlab.grading.kernel_laws import (
    inside_margins,
    launched,
    moved,
    no_offset_wraps,
    no_small_number_added,
    stored_too_often,
)
from flashlab.grading.laws import nothing_clipped
from flashlab.kernels import DEVICE, first_triton_kernel, triton
from flashlab.reference import safe_softmax as in_numpy


def _apart(x):
    """Return x with a gap after each row: narrower than the output's if the number of rows is odd, else wider."""
    gap = 3 if len(x) % 2 else 13  # the output has MARGIN
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
    return stored_too_often(programs, x.nbytes)


def _two_readings(programs, x, Br=2, Bc=BLOCK):
    if moved("load", programs) > 2 * x.nbytes:
        return (
            "the numbers are right, but rows were read more than twice: the online softmax finds m and l in one "
            "reading, and the weights are written in the second."
        )
    return stored_too_often(programs, x.nbytes)


def _softmax(x, *tile):
    return in_numpy.safe(x)


def _softmax_cases():
    rng = np.random.default_rng(10)
    cases = [
        ("one row, one element", [[2.0]]),
        ("a row that fills its block", [[0.0, 1.0]]),
        ("a row that does not fill its block", [[0.0, 1.0, 2.0]]),
        ("negative scores: a masked element must not win the maximum", [[-5.0, -6.0, -7.0]]),
        ("a row far below 0 that fills its block", [[-200.0, -201.0]]),
        ("scores far below 0: a masked element must not win the maximum", [[-200.0, -201.0, -202.0]]),
        ("scores too large to be exponentiated", [[1000.0, 1001.0, 1002.0]]),
        ("several rows, which lie apart in memory", rng.normal(size=(3, 5))),
        ("the largest score in another place in each row", 100 * np.eye(6)),
        ("scores beyond the largest number of float16", [[7e4, 6.9e4, 7.1e4]]),
        ("a score below any number that one would take for −∞", [[-2e9, -np.inf, -np.inf]]),
        (
            "two scores below any number that one would take for −∞",
            [[-2e9, -3e9, -np.inf], [-3.2e38, -3.3e38, -np.inf]],
        ),
        ("four such scores, which fill their block", [[-2e9, -3e9, -4e9, -5e9]]),
        ("a row that is all −∞", [[-np.inf, -np.inf, -np.inf]]),
    ]
    small = [Case(name, (np.array(x, np.float32),)) for name, x in cases]
    long = np.random.default_rng(12).normal(size=(2, 1000)).astype(np.float32)
    long[1, 900] = 100
    return [
        *small,
        *sweep(_rows),
        Case("long rows", (long,)),
        Case("one score above 16,383 whose weights are small", (MANY_SMALL[:, 1:],)),
        Case("a block far longer than the row", (long[:, :3], 64)),
        Case("forty rows", (rng.normal(size=(40, 5)).astype(np.float32),)),
    ]


MANY_SMALL = np.float32([[-20.5] * 16_384 + [0]] * 2)  # each weight is 10⁻⁹, and all count


def _rows(draw, Br, N):
    return (draw.scores(Br, N),)


def _online_cases():
    rng = np.random.default_rng(11)
    low = [[-2e9] + [-np.inf] * 4, [-2e9, -3e9] + [-np.inf] * 3, [-3.2e38, -3.3e38] + [-np.inf] * 3]
    cases = [
        ("one row in one block", [[0.0, 1.0, 2.0, 3.0]]),
        ("a second block that raises the maximum", [[0.0, 0.0, 0.0, 0.0, 1.0]]),
        ("a second block that does not raise the maximum", [[1.0, 0.0, 0.0, 0.0, 0.0]]),
        ("negative scores: a masked element must not win the maximum", [[-5.0, -6.0, -7.0]]),
        ("scores too large to be exponentiated", [[1000.0, 1001.0, 1002.0, 1003.0, 1004.0]]),
        ("a last block far below the first: its maximum is not the row's", [[200.0, 0.0, 0.0, 0.0, 0.0]]),
        ("a first block that is all −∞", [[-np.inf] * 4 + [2.0]]),
        ("a first block that is all −∞, before scores far below 0", [[-np.inf] * 4 + [-200.0, -201.0]]),
        ("a row that is all −∞", [[-np.inf] * 5]),
        ("the largest score in another place in each row", 100 * np.eye(10)),
        ("scores beyond the largest number of float16", [[7e4, 6.9e4, 7.1e4, 7e4, 7e4]]),
        ("a score below any number that one would take for −∞", low),
        ("two full blocks: the last element counts", [[0.0] * 7 + [1.0]]),
        ("a second block that raises the maximum by little", [[0.0] * 4 + [by] for by in (0.005, 5e-4, 5e-5)]),
        ("a maximum that rises in the last of many blocks", [[0.0] * 69 + [100.0], np.arange(70) / 9]),
        ("rows that the tile does not divide, which lie apart in memory", rng.normal(0, 3, size=(5, 11))),
    ]
    small = [Case(name, (np.array(x, np.float32),)) for name, x in cases]
    return [
        *small,
        *(
            Case(f"maxima that all rise in the second block, {what}", (np.float32([[low] * 4 + [high]] * 2),))
            for what, low, high in (
                *((f"by {rise}", 0, rise) for rise in (0.05, 0.005, 5e-4, 5e-5)),
                ("from 10,000 to 10,000.1", 10_000, 10_000.1),
            )
        ),
        Case("one score after 16,384 whose weights are small", (MANY_SMALL, 2, 4096)),
        Case("one score before 16,384 whose weights are small", (MANY_SMALL[:, ::-1], 2, 4096)),
        *sweep(_rows, usual={"N": 11, "Br": 3}),
        *_tiles(),
    ]


def _tiles():
    for Br, Bc, rows, N in (
        (1, 8, 3, 9),
        (4, 2, 5, 7),
        (8, 16, 9, 33),
        (2, 2, 4, 4),
        (4, 4, 2, 3),
        (2, 4, 2, 70),
        (2, 64, 3, 1000),
        (2, 4, 40, 5),
        (512, 8, 1000, 9),
    ):
        x = np.random.default_rng(N).normal(0, 3, size=(rows, N)).astype(np.float32)
        x[-1] = 0
        yield Case(f"tiles of {Br} × {Bc}", (x, Br, Bc))


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
    cases=_softmax_cases,
    moves=(_one_reading,),
    once=(
        no_small_number_added(_launch_softmax, _ONE_ROW),
        nothing_clipped(_softmax_of),
        no_offset_wraps(2, 40_000, (*_APART, 4, 4), *(40_000 * apart for apart in _APART)),
    ),
    sways=True,
    level=2,
    minutes=15,
    hints=(
        "One program, one row: where in memory does row i begin, if rows are x_stride elements apart?",
        "Load the row once with other=-inf past the end, so that a masked element adds e^−∞ = 0 to the sum.",
        "m = tl.max(S, 0); P = tl.exp(S - m), with 0 for m where it is −∞; divide by tl.sum(P, 0), by 1 where it is 0.",
    ),
    mistakes=(
        Mistake("the maximum was not subtracted.", "tl.exp(S_i - m_safe)", "tl.exp(S_i)"),
        Mistake("masked elements were read as 0 and count in the sum: other=-float('inf').",
                'other=-float("inf")', "other=0.0"),
        Mistake("every program took the first row: add program_id times the stride.", "x + i * x_stride", "x"),
        Mistake("every program took the first row, and stored there: program_id says which row is its own.",
                "tl.program_id(0).to(tl.int64)", "0"),
        Mistake("the store is not masked: it writes past the end of the row.",
                "tl.where(l_i == 0, 1, l_i), mask=inside)", "tl.where(l_i == 0, 1, l_i))"),
        Mistake("rows of y lie y_stride elements apart.", "y + i * y_stride", "y + i * x_stride"),
        Mistake("rows of y lie y_stride elements apart.", "y + i * y_stride", "y + i * N"),
        Mistake("rows lie x_stride elements apart, not N.", "x + i * x_stride", "x + i * N"),
        Mistake("the exponentials were not divided by their sum.", "P_i / tl.where(l_i == 0, 1, l_i)", "P_i"),
        Mistake("−∞ − (−∞) and 0 / 0 are NaN: where the maximum is −∞ subtract 0, where the sum is 0 divide by 1.",
                'tl.where(m_i == -float("inf"), 0, m_i)', "m_i"),
        Mistake(
            "a masked element counted as 0 in the maximum, and a row far below 0 underflows: it must be −∞ there, "
            "too.",
            "tl.max(S_i, 0)",
            "tl.max(tl.where(inside, S_i, 0.0), 0)",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "m_safe = tl.where(m_i == -float(\"inf\"), 0, m_i)",
            "m_safe = tl.maximum(m_i, 0.0)",
        ),
        *(
            Mistake(
                "a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
                'm_safe = tl.where(m_i == -float("inf"), 0, m_i)',
                f"m_safe = tl.maximum(m_i, {bound})",
            )
            for bound in (-1e4, -1e6)
        ),
        Mistake(
            "a masked load without other= reads anything at all, on a GPU: say what stands there.",
            ", other=-float(\"inf\")",
            "",
        ),
        Mistake('a large negative number is not −∞: scores may lie below it.', 'other=-float("inf")', 'other=-1e9'),
        Mistake("the maximum was rounded to half precision, whose largest number is 65,504: keep it in float32.",
                "tl.max(S_i, 0)", "tl.max(S_i, 0).to(tl.float16).to(tl.float32)"),
        Mistake('2^x where e^x is meant: tl.exp.', 'tl.exp(', 'tl.exp2('),
        Mistake('rows lie x_stride elements apart, not Bc.', 'x + i * x_stride', 'x + i * Bc'),
        Mistake(
            "the minimum was taken: subtract the maximum, so that no exponential exceeds 1.",
            "tl.max(S_i, 0)",
            "tl.min(S_i, 0)",
        ),
    ),
)  # fmt: skip

_GUARD, _LAST_GUARD = (f'tl.where({m} == -float("inf"), 0, {m})' for m in ("m_new", "m_i"))  # of both loops


def _guarded_by(bound):
    """Return the kernel of the online softmax with another guard in its first loop."""
    return edited(first_triton_kernel.softmax_online_kernel, _GUARD, f"tl.maximum(m_new, {bound})")


_without_maximum = edited(
    edited(first_triton_kernel.softmax_online_kernel, _GUARD, "tl.zeros([Br], tl.float32)"),
    "tl.exp(m_i - m_safe)",
    "tl.zeros([Br], tl.float32) + 1",
)

_weights_stored_early = edited(
    first_triton_kernel.softmax_online_kernel,
    "        m_i = m_new\n",
    "        m_i = m_new\n"
    "        tl.store(y + rows[:, None] * y_stride + start + columns[None, :], P_ij, mask=inside)\n",
)

online = Exercise(
    reference=first_triton_kernel.softmax_online_kernel,
    launch=_launch_online,
    exact=_softmax,
    cases=_online_cases,
    moves=(_two_readings,),
    once=(
        no_small_number_added(_launch_online, _ONE_ROW),
        nothing_clipped(_online_of),
        no_offset_wraps(2, 20_000, (*_APART, 50_000, 8, 2, 4), *(40_000 * apart for apart in _APART)),
    ),
    sways=True,
    level=3,
    minutes=30,
    hints=(
        "Two loops over the blocks of the row: one finds m and l as the online softmax does, one writes the weights.",
        "Between blocks keep m_i and l_i [Br] in registers, -inf and 0 at first; a block's masked elements are −∞.",
        "In the first loop the lines are those of online_softmax.update without O. In the second, load the block again "
        "and store tl.exp(S_ij - m_safe[:, None]) / l_safe[:, None].",
    ),
    mistakes=(
        Mistake("the old sum was not rescaled: multiply it by e^(m_old − m_new).", "alpha * l_i", "l_i"),
        Mistake("alpha is inverted: it is e^(m_old − m_new).", "tl.exp(m_i - m_safe)", "tl.exp(m_safe - m_i)"),
        Mistake("the maximum was not kept for the next block: m_i = m_new.", "        m_i = m_new\n", ""),
        Mistake("−∞ − (−∞) is NaN: subtract 0 where the maximum is still −∞.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("−∞ − (−∞) and 0 / 0 are NaN: after the last block, too, subtract 0 for −∞ and divide by 1 for 0.",
                "tl.where(l_i == 0, 1, l_i)", "l_i"),
        Mistake("masked elements were read as 0 and count in the sum: other=-float('inf').",
                'other=-float("inf")).to(tl.float32)  # [Br, Bc]\n        m_new',
                "other=0.0).to(tl.float32)  # [Br, Bc]\n        m_new"),
        Mistake("weights were written before the last block had been seen: they need the m and l of the whole row.",
                "        m_i = m_new\n",
                "        m_i = m_new\n        tl.store(y + rows[:, None] * y_stride + start + columns[None, :], "
                "P_ij / l_i[:, None], mask=inside)\n    N = 0\n"),
        Mistake("rows past the last one are not masked: rows < R.", "tl.zeros([Br], tl.float32)  # [Br]\n",
                "tl.zeros([Br], tl.float32)  # [Br]\n    R += Br\n"),
        Mistake("rows of y lie y_stride elements apart.",
                "y + rows[:, None] * y_stride", "y + rows[:, None] * x_stride"),
        Mistake("rows of y lie y_stride elements apart.", "y + rows[:, None] * y_stride", "y + rows[:, None] * N"),
        Mistake("the maximum of the last block was used, not the row's.",
                "tl.maximum(m_i, tl.max(S_ij, 1))", "tl.max(S_ij, 1)"),
        Mistake("only the last block was summed: add to the rescaled l_i.", "alpha * l_i + tl.sum", "tl.sum"),
        Mistake("the weights were not divided by the sum.", " / l_safe[:, None]", ""),
        Mistake("programs overlap: program p begins at row p * Br, not at row p.",
                "tl.program_id(0).to(tl.int64) * Br", "tl.program_id(0).to(tl.int64)"),
        Mistake(
            "the maximum was frozen at the first tile: a later one may hold a larger score.",
            "tl.maximum(m_i, tl.max(S_ij, 1))",
            "tl.where(m_i == -float(\"inf\"), tl.max(S_ij, 1), m_i)",
        ),
        Mistake("0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
                _GUARD, "tl.maximum(m_new, 0.0)"),
        Mistake("0 was put in the place of −∞, at first or in a guard, and negative rows underflow: guard −∞ alone.",
                _LAST_GUARD, "tl.maximum(m_i, 0.0)", of=_guarded_by(0.0)),
        *(
            Mistake(
                "a finite number was put in the place of −∞, at first or in a guard, and scores may lie below it.",
                _GUARD,
                f"tl.maximum(m_new, {bound})",
            )
            for bound in (-1e4, -1e6)
        ),
        *(
            Mistake(
                "a finite number was put in the place of −∞, at first or in a guard, and scores may lie below it.",
                _LAST_GUARD,
                f"tl.maximum(m_i, {bound})",
                of=_guarded_by(bound),
            )
            for bound in (-1e4, -1e6)
        ),
        Mistake("no maximum was subtracted: exp overflows.",
                _LAST_GUARD, "tl.zeros([Br], tl.float32)", of=_without_maximum),
        Mistake("summed over the rows: each row has its own sum, along axis 1.", "tl.sum(P_ij, 1)", "tl.sum(P_ij, 0)"),
        Mistake("the store is not masked: it writes past the end of the row.", "P_ij, mask=inside)", "P_ij)"),
        Mistake("the store does not mask the rows: past the last one there may be another's. rows < R.",
                "P_ij, mask=inside)", "P_ij, mask=(start + columns < N)[None, :])"),
        Mistake("columns past the row's end were read, the next row's: mask columns < N.",
                "N, Bc):\n        inside = (rows < R)[:, None] & (start + columns < N)[None, :]",
                "N, Bc):\n        inside = (rows < R)[:, None] & (columns >= 0)[None, :]"),
        Mistake("0 was subtracted wherever the block is masked, but the past may hold keys: guard m_new.",
                _GUARD, 'tl.where(tl.max(S_ij, 1) == -float("inf"), 0, m_new)'),
        Mistake("0 was subtracted in the first block: guard m_new, and not the old maximum.",
                _GUARD, 'tl.where(m_i == -float("inf"), 0, m_new)'),
        Mistake("0 was put in the place of −∞, at first or in a guard, and negative rows underflow: guard −∞ alone.",
                'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        *(
            Mistake("a finite number was put in the place of −∞, at first or in a guard, and scores may lie below it.",
                    'tl.full([Br], -float("inf"), tl.float32)', f"tl.full([Br], {bound}, tl.float32)")
            for bound in (-1e4, -1e6, -1e9)
        ),
        Mistake("the guarded maximum was kept: as long as all scores are −∞, so is m_i. Guard a copy.",
                "        m_i = m_new\n", "        m_i = m_safe\n"),
        Mistake("the maximum was rounded to half precision, whose largest number is 65,504: keep it in float32.",
                "        m_i = m_new\n", "        m_i = m_new.to(tl.float16).to(tl.float32)\n"),
        Mistake("one maximum for all rows: a row far below it underflows. tl.max(S_ij, 1) has one for each.",
                "tl.max(S_ij, 1)", "tl.max(tl.max(S_ij, 1), 0)"),
        Mistake("Bc stands where Br belongs: program p begins at row p * Br.",
                "tl.program_id(0).to(tl.int64) * Br", "tl.program_id(0).to(tl.int64) * Bc"),
        Mistake("a masked load without other= reads anything at all, on a GPU: say what stands there.",
                'other=-float("inf")).to(tl.float32)  # [Br, Bc]\n        m_new',
                ').to(tl.float32)  # [Br, Bc]\n        m_new'),
        Mistake("weights relative to the maximum so far were stored: a later block may raise it, and they must shrink.",
                "P_ij = tl.exp(S_ij - m_safe[:, None]) / l_safe[:, None]",
                "P_ij = tl.load(y + rows[:, None] * y_stride + start + columns[None, :], mask=inside, other=0) "
                "/ l_safe[:, None]",
                of=_weights_stored_early),
        Mistake("the last block, which is not full, was left out of the sum.",
                "range(0, N, Bc):\n", "range(0, N - N % Bc, Bc):\n"),
    ),
)  # fmt: skip
