"""Tiles of a tensor [B, H, N, d] in global memory, by descriptor: (batch, head, first row) names a tile.

A descriptor knows where the tensor ends. What a tile holds beyond the end (rows past N, columns past d) is read as
zero and never written, so kernels need no masks for memory's sake. From compute capability 9.0 on, the descriptor is
made on the host and the hardware's copy engine (TMA) serves it. Elsewhere, and in the interpreter, the kernel makes it
from a pointer, and the compiler turns it into addresses and masks.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def view(X, shape, strides, rows: tl.constexpr, width: tl.constexpr):
    """The descriptor of X [B, H, N, d] with tiles of rows x width; X itself if it is one already."""
    if isinstance(X, tl.tensor_descriptor):
        return X
    else:
        return tl.make_tensor_descriptor(X, shape, strides, [1, 1, rows, width])


@triton.jit
def load(X, b, h, start, rows: tl.constexpr, width: tl.constexpr):
    """Rows start .. start + rows of head h of batch b: [rows, width]."""
    return tl.reshape(X.load([b, h, start, 0]), [rows, width])


@triton.jit
def store(X, b, h, start, tile, rows: tl.constexpr, width: tl.constexpr):
    """Write a tile [rows, width], narrowed to the dtype of X."""
    X.store([b, h, start, 0], tl.reshape(tile.to(X.dtype), [1, 1, rows, width]))


def width_of(d):
    """The width of a tile that holds d columns: a power of two, and at least 16, as ``tl.dot`` wants it."""
    return max(16, triton.next_power_of_2(d))


def strides_of(x):
    """Strides of x in elements. Those of dimensions of size one, never used, are replaced by a harmless one."""
    return tuple(s if n > 1 else x.shape[-1] for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True)) + (1,)


def ready(x):
    """x itself if a descriptor can describe it, otherwise a contiguous copy.

    A descriptor asks for 16-byte steps between rows, heads and batches, a start at a multiple of 16 bytes, and
    elements of a row side by side. Rows whose width is no multiple of 16 bytes were padded before (``attention``).
    """
    steps = [s for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n > 1]
    describable = (
        x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s * x.element_size() % 16 == 0 for s in steps)
    )
    return x if describable else x.clone(memory_format=torch.contiguous_format)


def on_host(x, rows):
    """What a launch passes for x: a descriptor with tiles of this many rows where the copy engine exists, else x."""
    if x.is_cuda and _has_copy_engine(x.device):
        return TensorDescriptor(x, list(x.shape), list(strides_of(x)), [1, 1, rows, width_of(x.shape[-1])])
    return x


@functools.cache
def _has_copy_engine(device):
    return torch.cuda.get_device_capability(device)[0] >= 9


def precision_of(x):
    """How ``tl.dot`` multiplies float32: "ieee" for true products where torch is set to them, else "tf32"."""
    return "ieee" if x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"
