"""Add to the sums of dQ in global memory, float32, and narrow them at the end.

Many programs add to the same sums. A tile [64, width] is added in two halves of its columns, or, ``transposed``, of its
rows. Within a half, the sums are in the order in which four warps hold a product [64, width / 2] in their registers. So
each thread adds four neighbours with one instruction, and a warp adds 512 adjacent bytes.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

HALVES = gl.constexpr(2)


@gluon.constexpr_function
def transposed(width):
    """Tell whether tiles of dQ come transposed: where K^T, then their left operand, fits into registers."""
    return width == 64


@gluon.jit
def add(sums, tile, w: gl.constexpr, dQ):
    """Add dQ [64, columns], the sums of a product in the registers of four warps, to half w of a tile."""
    columns: gl.constexpr = dQ.shape[1]
    size: gl.constexpr = dQ.shape[0] * columns
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    x = gl.reshape(dQ, [4, 2, 8, columns // 8, 4, 2])
    x = gl.reshape(gl.permute(x, (3, 0, 2, 4, 1, 5)), [size])
    x = gl.convert_layout(x, flat, assert_trivial=True)
    at = tile.to(gl.int64) * (HALVES * size) + w * size
    gl.atomic_add(sums + at + gl.arange(0, size, layout=flat), x, sem="relaxed")


@triton.jit
def narrow(
    dQ, sums,  # pointers: dQ [B, H, Nq, d] contiguous, and the sums that ``add`` leaves
    scale, Nq, Nq_padded, d,
    Br: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Write scale * sums, in the order of dQ, as one half of a tile: program (i, half, head)."""
    i, half, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns: tl.constexpr = width // HALVES
    size: tl.constexpr = Br * columns
    x = tl.load(sums + head * Nq_padded * width + (i * HALVES + half) * size + tl.arange(0, size))
    x = tl.reshape(x, [columns // 8, 4, 8, 4, 2, 2])
    if transposed(width):
        dQ_i = tl.reshape(tl.permute(x, (0, 3, 5, 1, 4, 2)), [Br // HALVES, width]) * scale  # [Br / 2, d]
        row = i * Br + half * (Br // HALVES) + tl.arange(0, Br // HALVES)  # [Br / 2]
        column = tl.arange(0, width)  # [d]
    else:
        dQ_i = tl.reshape(tl.permute(x, (1, 4, 2, 0, 3, 5)), [Br, columns]) * scale  # [Br, d / 2]
        row = i * Br + tl.arange(0, Br)  # [Br]
        column = half * columns + tl.arange(0, columns)  # [d / 2]
    at = dQ + (head * Nq + row[:, None]) * d + column[None, :]
    tl.store(at, dQ_i.to(dQ.dtype.element_ty), mask=(row < Nq)[:, None] & (column < d)[None, :])
