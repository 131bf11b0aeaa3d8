"""Make the descriptors that tell the copy engine a tensor's shape, and the layout it writes in shared memory."""

import functools

import torch
import torch.nn.functional as F
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlab.kernels import tiles

DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
}


def descriptor(x, rows, width, N=None):
    """Describe x [B, H, N, d], ready (``tiles.ready``), in tiles of rows x width; or only its first N rows.

    What is past the end reads as zero and is never written.
    """
    shape = x.shape if N is None else (*x.shape[:2], N, x.shape[3])
    return _described(x, shape, tiles.strides_of(x), (1, 1, rows, width))


def fours_descriptor(x, rows, width):
    """Describe x [B, H, N, d] as [B, H, N / 4, 4, d], in tiles of two rows of each four, ``rows / 2`` in all.

    A tile has at most 128 columns. Rows of zeros are appended until 4 divides N.
    """
    missing = -x.shape[2] % 4
    if missing:
        x = F.pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype)
    B, H, N, d = x.shape
    b, h, n, _ = tiles.strides_of(x)
    return _described(x, (B, H, N // 4, 4, d), (b, h, 4 * n, n, 1), (1, 1, rows // 4, 2, min(width, 128)))


def flat_descriptor(x, size):
    """Describe all numbers of x, contiguous, as one row in tiles of ``size``."""
    return _described(x, (x.numel(),), (1,), (size,))


def rows_descriptor(x, rows, columns):
    """Describe all numbers of x, contiguous, as rows of this many columns in tiles of rows x columns."""
    return _described(x, (x.numel() // columns, columns), (columns, 1), (rows, columns))


def _described(x, shape, strides, block):
    described = object.__new__(TensorDescriptor)  # without the constructor's checks, as in ``tiles``
    described.base, described.shape, described.strides = x, shape, strides
    described.block_shape, described.layout = list(block), layout(block, x.dtype)
    described.padding, described.round_f32_to_tf32 = "zero", False
    return described


@functools.cache
def layout(block, dtype):
    """Return the layout of a tile of the shape ``block`` in shared memory, swizzled so that 8 rows share no bank."""
    return gl.NVMMASharedLayout.get_default_for(list(block), DTYPES[dtype])


@functools.cache
def multiprocessors(device):
    """Return how many programs of these kernels run side by side: each takes most of a multiprocessor's memory.

    In the interpreter a few, so that each computes several tiles.
    """
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count
