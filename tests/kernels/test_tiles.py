"""Tiles of tensors: what kernels can take, and how it is described to them."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.kernels import DEVICE, tiles


@pytest.mark.parametrize("shape", [(2, 3, 40, 32), (1, 1, 1, 64), (2, 1, 7, 16)])
def test_a_descriptor_is_what_its_constructor_makes(shape):
    """The constructor's fields are private to Triton: those set without it must be all, and the same."""
    x = torch.zeros(shape, dtype=torch.float16)
    ours = tiles._descriptor(x, 16)
    block = [1, 1, 16, tiles.width_of(shape[3])]
    made = TensorDescriptor(x, list(x.shape), list(tiles.strides_of(x)), block)
    for field in TensorDescriptor.__dataclass_fields__:
        mine, theirs = getattr(ours, field), getattr(made, field)
        assert mine is theirs or list(mine) == list(theirs) if isinstance(mine, (list, tuple)) else mine is theirs, (
            field
        )


def test_what_a_kernel_can_take_is_not_copied():
    x = torch.randn(2, 3, 40, 32)
    assert tiles.ready(x) is x
    assert tiles.ready(view := x.transpose(1, 2).contiguous().transpose(1, 2)) is view
    for other in (x[..., 1:], x.mT, x.expand(2, 3, 40, 32)[:, :1].expand(2, 3, 40, 32)):
        copy = tiles.ready(other)
        assert copy is not other and copy.is_contiguous() and torch.equal(copy, other)


@triton.jit
def copy_from_sheet(X, strides, out, B, H, N, start, rows: tl.constexpr, width: tl.constexpr):
    h, b = tl.program_id(0), tl.program_id(1)
    sheet = tiles.sheet(X, strides, B, H, N, rows, width)
    tile = tiles.load_from_sheet(sheet, strides, b, h, start)  # [rows, width]
    at = tl.arange(0, rows)[:, None] * width + tl.arange(0, width)
    tl.store(out + (b * H + h) * rows * width + at, tile)


LAYOUTS = {
    "heads first": lambda: torch.randn(2, 3, 40, 32),
    "rows first": lambda: torch.randn(2, 40, 3, 32).transpose(1, 2),
    "packed with others": lambda: torch.randn(2, 40, 3, 5, 32)[:, :, 1, 1:4].transpose(1, 2),
    "batches last": lambda: torch.randn(40, 3, 2, 32).permute(2, 1, 0, 3),
    "some rows": lambda: torch.randn(2, 3, 64, 32)[:, :, 8:48],
    "one row": lambda: torch.randn(2, 3, 1, 32),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tile_of_a_tensor_is_one_of_its_sheet(layout):
    x = LAYOUTS[layout]().to(DEVICE, torch.float16)
    B, H, N, d = x.shape
    start, rows = (16, 16) if N > 1 else (0, 16)
    assert tiles.is_sheet(x)
    out = torch.full((B, H, rows, d), torch.nan, device=DEVICE, dtype=torch.float16)
    copy_from_sheet[(H, B)](x, tiles.strides_of(x), out, B, H, N, start, rows, d)
    there = x[:, :, start : start + rows]
    assert torch.equal(out[:, :, : there.shape[2]], there)


def test_a_row_that_runs_past_the_end_of_its_sheet_is_noticed():
    apart = torch.zeros(2 * 3 * 41 * 32 + 64)
    assert not tiles.is_sheet(apart.as_strided((2, 3, 40, 32), (3 * 41 * 32 + 8, 41 * 32, 32, 1)))
    assert not tiles.is_sheet(apart.as_strided((1, 4, 4, 32), (400, 24, 80, 1)))
