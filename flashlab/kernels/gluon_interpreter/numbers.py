"""Numbers as a GPU has them: which numpy type holds each of Triton's types, and what rounding does.

numpy has neither bfloat16 nor float8. Their numbers are kept in float32, rounded, and in memory as bits.
"""

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlab.kernels.interpreter import bits_of_bfloat16

ARRAYS = {  # Triton's type: numpy's, for arithmetic
    gl.int1: np.bool_,
    gl.int8: np.int8, gl.int16: np.int16, gl.int32: np.int32, gl.int64: np.int64,
    gl.uint8: np.uint8, gl.uint16: np.uint16, gl.uint32: np.uint32, gl.uint64: np.uint64,
    gl.float8e4nv: np.float32, gl.float8e5: np.float32, gl.bfloat16: np.float32,
    gl.float16: np.float16, gl.float32: np.float32, gl.float64: np.float64,
}  # fmt: skip
BITS = {gl.bfloat16: np.uint16, gl.float8e4nv: np.uint8, gl.float8e5: np.uint8}  # in memory, where numpy lacks the type
OF_TORCH = {
    torch.bool: gl.int8, torch.uint8: gl.uint8, torch.int8: gl.int8, torch.int16: gl.int16, torch.int32: gl.int32,
    torch.int64: gl.int64, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32,
    torch.float64: gl.float64, torch.float8_e4m3fn: gl.float8e4nv, torch.float8_e5m2: gl.float8e5,
}  # fmt: skip
FLOAT8 = {gl.float8e4nv: torch.float8_e4m3fn, gl.float8e5: torch.float8_e5m2}


def in_memory(dtype):
    """Return the numpy type of a number's bits in memory."""
    return np.dtype(BITS.get(dtype, ARRAYS[dtype]))


def rounded(array, dtype):
    """Return an array as ``dtype``, rounded to nearest and ties to even; integers wrap, float8 saturates."""
    if dtype in BITS:
        return widened(narrowed(array, dtype), dtype)
    return array.astype(ARRAYS[dtype], copy=False)


def narrowed(array, dtype):
    """Return the bits of an array's numbers in memory."""
    if dtype == gl.bfloat16:
        return bits_of_bfloat16(array.astype(np.float32))
    if dtype in FLOAT8:
        most = torch.finfo(FLOAT8[dtype]).max
        values = torch.from_numpy(np.array(array, np.float32)).clamp(-most, most)
        return values.to(FLOAT8[dtype]).view(torch.uint8).numpy()
    return array.astype(ARRAYS[dtype], copy=False)


def widened(bits, dtype):
    """Return the numbers that these bits in memory are."""
    if dtype == gl.bfloat16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOAT8:
        return torch.from_numpy(np.array(bits)).view(FLOAT8[dtype]).float().numpy()
    return bits
