"""Masks and score functions in the Hopper kernels, and the derivatives of score functions.

Soft caps and ALiBi are those of ``flashlab.kernels.scores`` in Gluon. A function there takes the positions of all
scores, i [Br, 1] and j [1, Bc]; for the forward kernel, a function here takes only those of the first row and key.

``flashlab.kernels.masks`` decides which keys a row sees; the schedule on the host runs the same lines.

The backward kernel has no registers to hold scores until their gradient is there, so it multiplies the weights by the
derivative at once.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks, scores
from flashlab.kernels.masks import questions


def kernel_args(problem):
    """Return, per step of a problem's score function, a function of this file and its arguments."""
    if capped_only(problem.score):
        return ((tanh, ()),)
    looks_back = isinstance(problem.mask, masks.Window) and problem.mask.right == 0
    ours = {scores.capped: capped, scores.lowered: lowered_before if looks_back else lowered}
    return tuple((ours[function], arguments) for function, arguments, *_ in problem.score.kernel_args(problem))


def factors(problem):
    """Return the factor on the scores before the steps of ``kernel_args``, and the one after them."""
    if capped_only(problem.score):
        cap = problem.score.steps[0].cap
        return problem.scale / cap, cap * problem.factor
    return problem.scale, problem.factor


def capped_only(score):
    """Return whether a score function is one soft cap and no more: a hyperbolic tangent between two factors."""
    return len(score.steps) == 1 and isinstance(score.steps[0], scores.Softcap)


@gluon.jit
def apply(steps, S_ij, b, h, row, key, Nq, Nk):
    """Return the scores S_ij [Br, Bc] after all steps. row, key: the places of the first ones."""
    for step in gl.static_range(len(steps)):
        S_ij = steps[step][0](S_ij, b, h, row, key, Nq, Nk, *steps[step][1])
    return S_ij


@gluon.jit
def tanh(S_ij, b, h, row, key, Nq, Nk):
    """Return the hyperbolic tangent as the hardware has it: right to 11 bits, as float16 is."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [S_ij], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def capped(S_ij, b, h, row, key, Nq, Nk, cap):
    """Return ``scores.capped`` by ``tanh``."""
    return cap * tanh(S_ij * (1 / cap), b, h, row, key, Nq, Nk)


@gluon.jit
def lowered(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered``."""
    per_block, own, place = distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head)
    return S_ij - per_block * gl.abs(own[:, None] - place[None, :])


@gluon.jit
def lowered_before(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered`` for the keys up to each query's own, an instruction shorter."""
    per_block, own, place = distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head)
    return S_ij + (per_block * place[None, :] - (per_block * own)[:, None])


@gluon.jit
def distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return a head's slope per block of keys, the keys at the places of the queries [Br], and all keys [Bc].

    Places are counted in blocks of Bc keys, from key ``key`` - Bc on, in float32. The conversion of an integer takes as
    long as an exponential, so the bits of 1 + j / Bc are put together instead.
    """
    Bc: gl.constexpr = S_ij.shape[1]
    gl.static_assert(Bc == 64 or Bc == 128, "the number of a key has 6 or 7 bits")
    shift: gl.constexpr = 17 if Bc == 64 else 16  # a mantissa has 23
    rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    keys = gl.arange(0, Bc, layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    own = (row + rows + Nk - Nq - key).to(gl.float32) * (1 / Bc) + 1  # [Br]
    place = (keys << shift | 0x3F800000).to(gl.float32, bitcast=True)  # [Bc]
    return gl.load(slopes + b * batch + h * head).to(gl.float32) * Bc, own, place


LATER = gl.constexpr(-1)  # the end of a window that only the launch passes


def static_window(mask):
    """Return the compile-time part of a window: which ends are missing, and which are 0. A ``Rule`` has no ends."""
    ends = mask if isinstance(mask, masks.Window) else masks.full()
    return masks.Window(*(end if end in (None, 0) else LATER.value for end in ends))


class Intervals(NamedTuple):
    """The forward kernel's arguments of a ``Rule``: the first and the last key that each query sees."""

    table: torch.Tensor  # int32 [B or 1, Nq, 2]
    batch: int  # from the table of one batch to that of the next

    @classmethod
    def of(cls, problem):
        """Return the intervals of a ``Problem``."""
        key = "intervals", problem.Nq, problem.Nk
        table = problem.mask.cached(problem.device, key, lambda: torch.stack(problem.mask.keys(problem), 2))
        return cls(table, table.stride(0) if len(table) > 1 else 0)


@gluon.jit
def end_of(static: gl.constexpr, end):
    """Return an end of a window: the compile-time value, or else that of the launch."""
    return end if static == LATER else static


@gluon.jit
def blocks(variant: gl.constexpr, mask, start, rows: gl.constexpr, Bc: gl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the blocks of keys that the rows start .. start + rows meet in a window.

    mask: the ends that the launch passes. There is at least 1 block, which may be hidden as a whole.
    """
    left: gl.constexpr = variant.mask.left
    right: gl.constexpr = variant.mask.right
    ends = masks.Window(mask.left if left == LATER else left, mask.right if right == LATER else right)
    first, end = questions.bounds(ends, start, rows, Nq, Nk)
    return first // Bc, gl.maximum(gl.cdiv(end, Bc), 1)


@gluon.jit
def hide(S_ij, limit, causal: gl.constexpr):
    """Return S_ij [Br, Bc] with -inf for the keys past ``limit``, the last key that row 0 may see.

    Keys are counted from the block's first. causal: the limit grows by one per row.
    """
    keys = gl.arange(0, S_ij.shape[1], layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    return hide_keys(S_ij, keys, limit, causal)


@gluon.jit
def hide_keys(S_ij, keys, limit, causal: gl.constexpr):
    """Return ``hide`` of S_ij [Br, Bc], whose columns belong to these keys [Bc]."""
    rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    limits = limit + rows if causal else limit + rows * 0  # [Br]
    return gl.where(keys[None, :] <= limits[:, None], S_ij, -float("inf"))


@gluon.jit
def hide_before(S_ij, first):
    """Return S_ij [Br, Bc] with -inf for the keys before ``first``, the first key that row 0 sees; one more per row."""
    keys = gl.arange(0, S_ij.shape[1], layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    firsts = first + rows  # [Br]
    return gl.where(keys[None, :] >= firsts[:, None], S_ij, -float("inf"))


@gluon.jit
def hide_outside(S_ij, intervals, tile, start, Nq):
    """Return S_ij [Br, Bc] with -inf outside the intervals of the tile's queries; start: the first key."""
    keys = start + gl.arange(0, S_ij.shape[1], layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    rows = tile.start + gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    at = intervals.table + tile.b * intervals.batch + 2 * gl.minimum(rows, Nq - 1)  # past Nq, nothing is stored
    first, last = gl.load(at), gl.load(at + 1)  # [Br] each
    # one comparison for both ends: before the first key, an unsigned difference is large
    seen = (keys[None, :] - first[:, None]).to(gl.uint32) <= (last - first).to(gl.uint32)[:, None]
    return gl.where(seen, S_ij, -float("inf"))


def derivative_args(problem):
    """Return ``Chain.kernel_args`` of a problem, with functions of ``FASTER``, which also return their derivatives."""
    if problem.score is None:
        return None
    args = problem.score.kernel_args(problem)
    return tuple((FASTER[step[0]], step[1]) if step[0] in FASTER else step for step in args)


@gluon.jit
def apply_with_slope(problem, St_ij, b, h, i, j):
    """Return the scores after all steps, and their derivatives by the scaled scores St_ij [Bc, Br].

    i, j: places in the whole matrix, [1, Br] and [Bc, 1].
    """
    b, i, j, Nq, Nk = scores.places(problem.texts, b, i, j, problem.Nq, problem.Nk)
    i, j = gl.minimum(i, Nq - 1), gl.maximum(gl.minimum(j, Nk - 1), 0)
    slope = 1.0
    for n in gl.static_range(len(problem.score)):
        if len(problem.score[n]) == 2:
            St_ij, factor = problem.score[n][0](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][1])
            slope *= factor
        else:
            slope *= problem.score[n][2](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][3])
            St_ij = problem.score[n][0](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][1])
    return St_ij, slope


@gluon.jit
def capped_with_slope(s, b, h, i, j, Nq, Nk, cap):
    """Return ``scores.capped`` and its derivative, by the hardware's hyperbolic tangent.

    That is right to 11 bits, as float16 is: one special instruction in the place of two.
    """
    t = gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [s * (1 / cap)], dtype=gl.float32, is_pure=True, pack=1
    )
    return cap * t, 1 - t * t


@gluon.jit
def lowered_with_slope(s, b, h, i, j, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered`` and its derivative, with places that are float32 before they are subtracted."""
    slope = gl.load(slopes + b * batch + h * head).to(gl.float32)
    return s - slope * gl.abs((i + Nk - Nq).to(gl.float32) - j.to(gl.float32)), 1.0


FASTER = {scores.capped: capped_with_slope, scores.lowered: lowered_with_slope}
