"""Compute with bfloat16 and float8 in Triton's interpreter as a GPU does.

The interpreter keeps a bfloat16 number as its bits, in uint16, and a float8 number as its code, in uint8.
``interpreter`` wraps the interpreter's operations in the functions of this file.
"""

import threading

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


class _Accumulator(threading.local):
    """The accumulator of float8 products, per thread: ``interpreter.tensor_core`` sets it."""

    bits = None  # after the leading one; None: all


accumulator = _Accumulator()


# bfloat16


def is_bfloat16(arg):
    """Return whether an argument is a handle of bfloat16 numbers."""
    return isinstance(arg, TensorHandle) and arg.dtype.scalar == tl.bfloat16


def widen(arg):
    """Return a bfloat16 handle as float32, exactly; anything else unchanged."""
    if not is_bfloat16(arg):
        return arg
    bits = np.ascontiguousarray(arg.data).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32).reshape(arg.data.shape), tl.float32)


def narrow(handle):
    """Return a handle of numbers rounded to bfloat16."""
    values = np.ascontiguousarray(handle.data, dtype=np.float32)
    return TensorHandle(bits_of_bfloat16(values).reshape(handle.data.shape), tl.bfloat16)


def bits_of_bfloat16(values):
    """Return float32 numbers as bits of bfloat16, uint16: rounded to nearest and ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # just below one half, or one half if odd
    return np.where(np.isnan(values), np.uint32(0x7FC0), (bits + half) >> np.uint32(16)).astype(np.uint16)


def in_float32(operation):
    """Run the operation on widened operands. Round the result if no operand was wider than bfloat16."""

    def run(self, *args):
        if not any(is_bfloat16(arg) for arg in args):
            return operation(self, *args)
        wider = any(isinstance(arg, TensorHandle) and arg.data.dtype.kind == "f" for arg in args)
        result = operation(self, *(widen(arg) for arg in args))
        return result if wider or result.data.dtype.kind != "f" else narrow(result)

    return run


def reduced_in_float32(apply):
    """Run the reduction or scan on widened inputs. A sum rounds once, at the end; a GPU rounds after each addition."""

    def retyped(tensor, handle):
        dtype = tl.block_type(handle.dtype, tensor.type.shape) if tensor.type.is_block() else handle.dtype
        return tl.tensor(handle, dtype)

    def run(self, inputs):
        if not isinstance(inputs, tuple):
            return run(self, (inputs,))[0]
        rounded = [is_bfloat16(tensor.handle) for tensor in inputs]
        widened = tuple(retyped(t, widen(t.handle)) if n else t for t, n in zip(inputs, rounded, strict=True))
        results = apply(self, widened)
        return tuple(retyped(t, narrow(t.handle)) if n else t for t, n in zip(results, rounded, strict=True))

    return run


def rounding_cast(towards_zero):
    """Return a wrapper for conversions: they round to nearest, unless the kernel asks for ``towards_zero``."""

    def wrapper(cast):
        def run(self, source, target, *rounding):
            if source.dtype.scalar in FLOAT8:
                source = from_float8(source)
            if target.scalar in FLOAT8:
                return to_float8(widen(source), target.scalar)
            if target.scalar != tl.bfloat16:
                return cast(self, widen(source), target, *rounding)
            if towards_zero in rounding or source.dtype.scalar.is_fp8():
                return cast(self, source, target, *rounding)
            return narrow(widen(source))

        return run

    return wrapper


# comparisons


def comparing(operation):
    """Give the results of comparisons the type int1, in place of the operands' type.

    Otherwise a scalar result that meets a block would become a block of integers, which chooses no elements.
    """

    def run(self, *args):
        result = operation(self, *args)
        return TensorHandle(result.data, tl.int1) if result.data.dtype == bool else result

    return run


# float8


def from_float8(handle):
    """Return a handle of float8 numbers as float32, exactly."""
    codes = torch.from_numpy(np.ascontiguousarray(handle.data))
    return TensorHandle(codes.view(FLOAT8[handle.dtype.scalar]).float().numpy(), tl.float32)


def to_float8(handle, target):
    """Return a handle of numbers rounded to float8; those past its range are clamped, and NaN stays NaN."""
    dtype = FLOAT8[target]
    values = torch.from_numpy(np.ascontiguousarray(handle.data, dtype=np.float32))
    codes = values.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    return TensorHandle(codes.view(torch.uint8).numpy(), target)


def float8_dot(dot):
    """Multiply float8 numbers exactly, and add the products up as ``accumulator`` says."""

    def run(self, a, b, d, precision, flush):
        if not {a.dtype.scalar, b.dtype.scalar} <= FLOAT8.keys():
            return dot(self, a, b, d, precision, flush)
        A, B = from_float8(a).data, from_float8(b).data  # [M, K], [K, N]
        exact = accumulator.bits is None or flush == 0
        result = d.data + A @ B if exact else add_products(d.data, A, B, accumulator.bits, flush)  # [M, N]
        return TensorHandle(result.astype(d.data.dtype), d.dtype.scalar)

    return run


def add_products(C, A, B, bits, flush):
    """Return C + A @ B, added up 32 products at a time. After each addition a sum keeps ``bits`` after the leading one.

    flush: the number of products after which a sum is added to one in float32, and begins again at 0.
    """
    total, sums = (C, 0.0 * C) if flush <= A.shape[-1] else (0.0 * C, C)  # [M, N], [M, N]
    for start in range(0, A.shape[-1], 32):
        block = slice(start, start + 32)
        sums = sums + A[..., block].astype(np.float64) @ B[..., block, :]  # [M, N]
        step = np.ldexp(1.0, np.frexp(sums)[1] - 1 - bits)  # [M, N]
        sums = (np.trunc(sums / step) * step).astype(np.float32)
        if (start + 32) % flush == 0:
            total, sums = total + sums, 0 * sums
    return total + sums


def without_bfloat16(atomic):
    """Refuse an atomic operation on bfloat16: the interpreter would compute with the bits."""

    def run(self, operation, pointers, *args):
        if pointers.get_element_ty() == tl.bfloat16:
            raise NotImplementedError("the interpreter has no atomic operations on bfloat16: accumulate in float32")
        return atomic(self, operation, pointers, *args)

    return run
