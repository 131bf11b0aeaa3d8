"""The merge of two outputs by lse, as a Triton kernel: it reads both once and writes in place."""

import triton
import triton.language as tl

from flashlab.kernels import tiles
from flashlab.kernels.launch import launch

Br = 16  # rows of a program


def merge_into(O, lse, O_b, lse_b, first: int):
    """Merge O_b [B, H, rows, dv] and lse_b [B, H, rows] into the rows from ``first`` on of O and lse.

    O [B, H, n, dv] and lse [B, H, n] are contiguous float32 tensors; O_b may have another dtype.
    """
    B, H, rows, dv = O_b.shape
    if O_b.numel():
        tensors = O, lse, O_b.contiguous(), lse_b.contiguous()
        grid = tiles.count(rows, Br), H, B
        launch(merge_rows, grid, tensors, (first, rows, O.shape[2], dv, Br, tiles.width_of(dv)), warps=4)


@triton.jit
def merge_rows(O, lse, O_b, lse_b, first, rows, n, dv, Br: tl.constexpr, width: tl.constexpr):
    """Merge rows i * Br .. (i + 1) * Br of head h of batch b: program (i, h, b)."""
    i, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head = (b * tl.num_programs(1) + h).to(tl.int64)
    row = i * Br + tl.arange(0, Br)  # [Br]
    column = tl.arange(0, width)  # [dv]
    inside = row < rows  # [Br]
    tile = inside[:, None] & (column < dv)[None, :]  # [Br, dv]
    here, there = head * n + first + row, head * rows + row  # [Br]
    lse_i = tl.load(lse + here, mask=inside, other=0)  # [Br]
    lse_j = tl.load(lse_b + there, mask=inside, other=0)  # [Br]
    O_i = tl.load(O + here[:, None] * dv + column, mask=tile, other=0)  # [Br, dv]
    O_j = tl.load(O_b + there[:, None] * dv + column, mask=tile, other=0).to(tl.float32)  # [Br, dv]
    O_i, lse_i = merged(O_i, lse_i, O_j, lse_j)
    tl.store(O + here[:, None] * dv + column, O_i, mask=tile)
    tl.store(lse + here, lse_i, mask=inside)


@triton.jit
def merged(O_i, lse_i, O_j, lse_j):
    """Return O [Br, dv] and lse [Br] of the keys of two results, whose lse are natural logarithms."""
    m = tl.maximum(lse_i, lse_j)  # [Br]
    m_safe = tl.where(m == -float("inf"), 0, m)  # [Br]      a row that has met no key yet
    l_i, l_j = tl.exp(lse_i - m_safe), tl.exp(lse_j - m_safe)  # [Br]
    l_safe = tl.where(m == -float("inf"), 1, l_i + l_j)  # [Br]
    O_i = (l_i / l_safe)[:, None] * O_i + (l_j / l_safe)[:, None] * O_j  # [Br, dv]
    return O_i, m + tl.log(l_safe)
