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


@functools.cache
def width_of(d):
    """The width of a tile that holds d columns: a power of two, and at least 16, as ``tl.dot`` wants it."""
    return max(16, triton.next_power_of_2(d))


def count(N, B):
    """How many tiles of B cover N."""
    return -(-N // B)


def ready(x):
    """x itself if a kernel can take it as it lies, otherwise a contiguous copy.

    A descriptor asks for 16-byte steps between rows, heads and batches, a start at a multiple of 16 bytes, and
    elements of a row side by side. Rows whose width is no multiple of 16 bytes were padded before (``attention``).
    What has no rows of its own (lse [B, H, Nq]) must be contiguous.
    """
    if x.ndim == 4:
        B, H, N, _ = x.shape
        b, h, n, unit = x.stride()
        step = 16 // x.element_size()
        regular = unit == 1 and all(s > 0 and s % step == 0 for s, size in ((b, B), (h, H), (n, N)) if size > 1)
    else:
        regular = x.is_contiguous()
    return x if regular and x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def arguments(tensors, rows):
    """What a launch passes for tensors, tiled by so many rows each: first the tensors, then their strides.

    Where the hardware has the copy engine, descriptors take the place of the tensors, and strides are not looked at.
    """
    if has_copy_engine(tensors[0].device):
        return [_descriptor(x, r) for x, r in zip(tensors, rows, strict=True)], [(0, 0, 0, 1)] * len(tensors)
    return list(tensors), [strides_of(x) for x in tensors]


def strides_of(x):
    """Strides of x in elements. Those of dimensions of size one, never used, are replaced by a harmless one."""
    B, H, N, d = x.shape
    b, h, n, _ = x.stride()
    return b if B > 1 else d, h if H > 1 else d, n if N > 1 else d, 1


@functools.cache
def has_copy_engine(device):
    """Compute capability 9.0 or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def _descriptor(x, rows):
    """A ``TensorDescriptor``, without its constructor's checks: ``ready`` has seen to them, and they take as long."""
    descriptor = object.__new__(TensorDescriptor)
    descriptor.base, descriptor.shape, descriptor.strides = x, x.shape, strides_of(x)
    descriptor.block_shape = [1, 1, rows, width_of(x.shape[3])]
    return descriptor


def precision_of(x):
    """How ``tl.dot`` multiplies float32: "ieee" for true products where torch is set to them, else "tf32"."""
    return "ieee" if x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"
