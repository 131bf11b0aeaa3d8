"""Merge two outputs by lse in a Triton kernel, which reads both once and writes the result once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashlab.kernels import tiles
from flashlab.kernels.checks import check_dense, check_device
from flashlab.kernels.launch import launch
from flashlab.machine.arguments import check_whole, shown

Br = 16  # rows of a program


def check_state(O: Tensor, lse: Tensor) -> None:
    """Raise TypeError or ValueError unless O [B, H, n, dv] and lse [B, H, n] can be changed in place by a kernel."""
    check_dense(O=O, lse=lse)
    if O.ndim != 4 or lse.shape != O.shape[:3]:
        raise ValueError(f"expected O [B, H, n, dv] and lse [B, H, n], got {list(O.shape)} and {list(lse.shape)}")
    if lse.dtype != torch.float32 or not (O.is_contiguous() and lse.is_contiguous()):
        found = f"lse {lse.dtype}, and strides {list(O.stride())} and {list(lse.stride())}"
        raise ValueError(f"O and lse must be contiguous, and lse float32, got {found}")


def check_results(**tensors: Tensor) -> None:
    """Raise TypeError unless these are dense tensors of floating-point numbers."""
    check_dense(**tensors)
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype}")


def merge_into(O: Tensor, lse: Tensor, O_b: Tensor, lse_b: Tensor, first: int, dtype: torch.dtype) -> Tensor:
    """Merge O_b [B, H, rows, dv] and lse_b [B, H, rows] into the rows from ``first`` on of O and lse; return O.

    O [B, H, n, dv] and lse [B, H, n] are contiguous, and lse is float32. lse is changed in place, and so is O if its
    dtype is ``dtype``; otherwise a new tensor is returned. Both sides are added in float32 and rounded once.

    Raises TypeError or ValueError for tensors and rows that are not as described.
    """
    check_state(O, lse)
    check_results(O_b=O_b, lse_b=lse_b)
    check_device(O=O, lse=lse, O_b=O_b, lse_b=lse_b)
    B, H, n, dv = O.shape
    rows = O_b.shape[2] if O_b.ndim == 4 else None
    if O_b.shape != (B, H, rows, dv) or lse_b.shape != (B, H, rows) or rows > n:
        expected = f"O_b [{B}, {H}, rows, {dv}] and lse_b [{B}, {H}, rows] with at most {n} rows"
        raise ValueError(f"expected {expected}, got {list(O_b.shape)} and {list(lse_b.shape)}")
    first = check_whole("first", first, 0, n - rows)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {shown(dtype)}")
    merged_O = O if O.dtype == dtype else torch.empty_like(O, dtype=dtype)
    begin, count = (first, rows) if merged_O is O else (0, n)  # all rows of a new tensor
    if B * H * count * dv:
        tensors = O, lse, O_b.contiguous(), lse_b.contiguous(), merged_O
        grid = tiles.count(count, Br), H, B
        launch(merge_rows, grid, tensors, (begin, begin + count, first, rows, n, dv, Br, tiles.width_of(dv)), warps=4)
    return merged_O


@triton.jit
def merge_rows(
    O, lse, O_b, lse_b,  # pointers: O [B, H, n, dv] and lse [B, H, n], O_b [B, H, rows, dv] and lse_b [B, H, rows]
    merged_O,  # pointer to the merged O, which may be O
    begin, end, first, rows, n, dv, Br: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Merge tile i of the rows begin .. end of head h of batch b: program (i, h, b)."""
    i, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head = (b * tl.num_programs(1) + h).to(tl.int64)
    row = begin + i * Br + tl.arange(0, Br)  # [Br]
    column = tl.arange(0, width)  # [dv]
    inside = row < end  # [Br]
    met = inside & (row >= first) & (row < first + rows)  # [Br]      rows that O_b has
    tile, tile_b = inside[:, None] & (column < dv)[None, :], met[:, None] & (column < dv)[None, :]  # [Br, dv]
    here, there = head * n + row, head * rows + row - first  # [Br]
    lse_i = tl.load(lse + here, mask=inside, other=0)  # [Br]
    lse_j = tl.load(lse_b + there, mask=met, other=-float("inf"))  # [Br]
    O_i = tl.load(O + here[:, None] * dv + column, mask=tile, other=0).to(tl.float32)  # [Br, dv]
    O_j = tl.load(O_b + there[:, None] * dv + column, mask=tile_b, other=0).to(tl.float32)  # [Br, dv]
    O_i, lse_i = merged(O_i, lse_i, O_j, lse_j)
    tl.store(merged_O + here[:, None] * dv + column, O_i.to(merged_O.dtype.element_ty), mask=tile)
    tl.store(lse + here, lse_i, mask=inside)


@triton.jit
def merged(O_i, lse_i, O_j, lse_j):
    """Return O [Br, dv] and lse [Br] of the keys of both results. All lse are natural logarithms."""
    m = tl.maximum(lse_i, lse_j)  # [Br]
    m_safe = tl.where(m == -float("inf"), 0, m)  # [Br]      a row that has seen no key yet
    l_i, l_j = tl.exp(lse_i - m_safe), tl.exp(lse_j - m_safe)  # [Br]
    l_safe = tl.where(m == -float("inf"), 1, l_i + l_j)  # [Br]
    O_i = (l_i / l_safe)[:, None] * O_i + (l_j / l_safe)[:, None] * O_j  # [Br, dv]
    return O_i, m + tl.log(l_safe)
