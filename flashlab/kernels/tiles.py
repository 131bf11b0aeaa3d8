"""Tiles of a tensor [B, H, N, d] in global memory, by descriptor: (batch, head, first row) names a tile.

A descriptor holds the sizes of the tensor. Elements of a tile past the end (rows past N, columns past d) are read as
zeros and never written, so kernels need no masks to stay inside memory. From compute capability 9.0 on, the
descriptor is made on the host and the hardware's copy engine (TMA) serves it. Elsewhere, and in the interpreter, the
kernel makes it from a pointer, and the compiler turns it into addresses and masks.
"""

import functools

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.kernels.launch import describe


@triton.jit
def view(X, shape, strides, rows: tl.constexpr, width: tl.constexpr, transposed: tl.constexpr = False):
    """Return the descriptor of X [B, H, N, d] with tiles of rows x width; X itself if it is one already.

    transposed: in memory, X is [B, H, d, N]; strides are in this order.
    """
    if isinstance(X, tl.tensor_descriptor):
        return X
    elif transposed:
        return tl.make_tensor_descriptor(X, [shape[0], shape[1], shape[3], shape[2]], strides, [1, 1, width, rows])
    else:
        return tl.make_tensor_descriptor(X, shape, strides, [1, 1, rows, width])


@triton.jit
def load(X, b, h, start, rows: tl.constexpr, width: tl.constexpr, transposed: tl.constexpr = False):
    """Return rows start .. start + rows of head h of batch b: [rows, width]."""
    if transposed:
        return tl.reshape(X.load([b, h, 0, start]), [width, rows]).T
    else:
        return tl.reshape(X.load([b, h, start, 0]), [rows, width])


@triton.jit
def store(X, b, h, start, tile, rows: tl.constexpr, width: tl.constexpr, transposed: tl.constexpr = False):
    """Write a tile [rows, width], narrowed to the dtype of X."""
    if transposed:
        X.store([b, h, 0, start], tl.reshape(tile.to(X.dtype).T, [1, 1, width, rows]))
    else:
        X.store([b, h, start, 0], tl.reshape(tile.to(X.dtype), [1, 1, rows, width]))


@triton.jit
def is_finite(tile):
    """Return whether a tile has neither NaN nor infinities."""
    return tl.min((tl.abs(tile.to(tl.float32)) < float("inf")).to(tl.int32)) != 0


@functools.cache
def width_of(d):
    """Return the width of a tile that holds d columns: a power of two, and at least 16, as ``tl.dot`` requires."""
    return max(16, triton.next_power_of_2(d))


def width_in_pieces(d):
    """Return the width of a tile that holds d columns in ``pieces``: as ``width_of``, or 192."""
    return 192 if 128 < d <= 192 else width_of(d)


@triton.constexpr_function
def columns_of(width):
    """Return the columns of each piece of a tile: the largest power of two that divides its width."""
    return width & -width


def count(N, B):
    """Return the number of tiles of B that cover N."""
    return -(-N // B)


def suits(x):
    """Return whether the layout of x suits the kernels.

    A descriptor requires strides of rows, heads and batches that are multiples of 16 bytes, a start at such a multiple,
    and the elements of a row side by side. Tensors of other ranks (lse [B, H, Nq]) must be contiguous.
    """
    if x.ndim == 4:
        regular = _is_regular(x.shape, x.stride(), x.element_size())
    else:
        regular = x.is_contiguous()
    return regular and x.data_ptr() % 16 == 0


@functools.lru_cache(maxsize=4096)
def _is_regular(shape, strides, itemsize):
    (B, H, N, _), (b, h, n, unit) = shape, strides
    step = 16 // itemsize
    return unit == 1 and all(s > 0 and s % step == 0 for s, size in ((b, B), (h, H), (n, N)) if size > 1)


def ready(x):
    """Return x unchanged if its layout suits the kernels, otherwise a contiguous copy.

    Rows must be multiples of 16 bytes wide: ``pad_rows`` makes them so.
    """
    simple = x.is_contiguous() and x.data_ptr() % 16 == 0  # faster to check
    return x if simple or suits(x) else x.clone(memory_format=torch.contiguous_format)


def pad_rows(x):
    """Append zero columns until a row is a multiple of 16 bytes. Zeros change no score; callers cut O to V's width."""
    missing = -x.shape[-1] % (16 // x.element_size())
    return F.pad(x, (0, missing)) if missing else x


def arguments(tensors, rows, transposed=(), in_pieces=False):
    """Build the launch arguments for tensors: first the tensors or their descriptors, then their strides.

    rows: the height of each tensor's tiles. transposed: the indices of the tensors in which the elements of a column,
    not those of a row, are side by side. in_pieces: the tiles are those of ``pieces``.
    Where the hardware has the copy engine, descriptors take the place of the tensors, and strides are not used.
    """
    stored = [x.mT if n in transposed else x for n, x in enumerate(tensors)]
    if has_copy_engine(tensors[0].device):
        pairs = enumerate(zip(stored, rows, strict=True))
        descriptors = [_descriptor(x, r, n in transposed, in_pieces) for n, (x, r) in pairs]
        return descriptors, ((0, 0, 0, 1),) * len(tensors)
    return stored, tuple(strides_of(x) for x in stored)


def strides_of(x):
    """Return the strides of x in elements. Dimensions of size one get a harmless stride, which is never used."""
    B, H, N, d = x.shape
    b, h, n, _ = x.stride()
    any_will_do = count(d, 16) * 16  # descriptors check that it is a multiple of 16 bytes
    return b if B > 1 else any_will_do, h if H > 1 else any_will_do, n if N > 1 else any_will_do, 1


@functools.cache
def has_copy_engine(device):
    """Return whether a device has the copy engine (TMA): compute capability 9.0 or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def _descriptor(x, rows, transposed=False, in_pieces=False):
    """Return the descriptor of x, ``ready``, in tiles of this many rows.

    transposed: x is [B, H, d, N], and its tiles have ``rows`` of the last dimension.
    """
    if transposed:
        block = width_of(x.shape[2]), rows
    else:
        d = x.shape[3]
        block = rows, (columns_of(width_in_pieces(d)) if in_pieces else width_of(d))
    return describe(x, TensorDescriptor, {"shape": x.shape, "strides": strides_of(x), "block_shape": [1, 1, *block]})


def precision_of(x):
    """Return how ``tl.dot`` multiplies float32: "ieee" for true products if torch is set to them, else "tf32"."""
    return "ieee" if x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"
