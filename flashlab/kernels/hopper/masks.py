"""Answer the Hopper kernels: which blocks of keys do some rows meet, and what becomes of the scores of one?

``flashlab.kernels.masks`` decides which keys a row sees; the schedule on the host reads the same lines.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks
from flashlab.kernels.masks import questions

LATER = gl.constexpr(-1)  # the end of a window that the compiler does not know, only the launch


def known(mask):
    """Return a window as far as the compiler knows it: which ends are missing, and which are 0. Of a ``Rule``: none."""
    ends = mask if isinstance(mask, masks.Window) else masks.full()
    return masks.Window(*(end if end in (None, 0) else LATER.value for end in ends))


class Intervals(NamedTuple):
    """A ``Rule`` as the forward kernel takes it: the first and the last key that each query sees."""

    table: torch.Tensor  # int32 [B or 1, Nq, 2]
    batch: int  # from the table of one batch to that of the next

    @classmethod
    def of(cls, problem):
        """Return the intervals of a ``Problem``."""
        key = "intervals", problem.Nq, problem.Nk
        table = problem.mask.cached(key, lambda: torch.stack(problem.mask.keys(problem), 2))
        return cls(table, table.stride(0) if len(table) > 1 else 0)


@gluon.jit
def end_of(known: gl.constexpr, end):
    """Return an end of a window: what is known of it, or else what comes with the launch."""
    return end if known == LATER else known


@gluon.jit
def blocks(variant: gl.constexpr, mask, start, rows: gl.constexpr, Bc: gl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the blocks of keys that the rows start .. start + rows meet in a window.

    mask: the ends that come with the launch. There is at least 1 block, which may be hidden as a whole.
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
    """Return the same where the columns belong to these keys [Bc]."""
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
