"""PTX inside kernels: what each block of it computes. A block that is not in the table is refused."""

import numpy as np
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.numbers import narrowed, widened
from flashlab.kernels.gluon_interpreter.values import Value
from flashlab.kernels.hopper.products import MULTIPLY_32, MULTIPLY_64, NARROW


def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """Compute what a block of PTX does.

    Raises:
        NotImplementedError: the block is not known here.
    """
    if asm not in MEANINGS:
        raise NotImplementedError(f"the interpreter does not know what this PTX computes: {asm[:60]!r}")
    return MEANINGS[asm](args, dtype)


def tanh(args, dtype):
    """Compute the hyperbolic tangent, which the GPU approximates."""
    (x,) = args
    return Value(np.tanh(x.data), dtype, x._layout)


def product(args, dtype):
    """Multiply. The block skips this where all factors of a warp are 1, which changes nothing."""
    x, factors = args
    return Value(x.data * factors.data, dtype, x._layout)


def four_in_one(args, dtype):
    """Return the codes of e4m3 of four numbers each in 32 bits, the first in the lowest."""
    codes = np.stack([narrowed(x.data, gl.float8e4nv) for x in args], -1)
    return Value(codes.view(np.int32)[..., 0], dtype)


def moved(args, dtype):
    """Return what one register holds: 32 bits, or the four codes in the first of four that are alike."""
    (x,) = args
    if dtype != gl.float8e4nv:
        return x
    codes = np.ascontiguousarray(x.data[:, ::4]).view(np.uint8)  # [rows, columns]
    return Value(widened(codes, dtype), dtype, x._layout)


def fence(args, dtype):
    """Let the asynchronous proxy see what the role knows to be written."""
    me().knowledge.fence()


MEANINGS = {
    "tanh.approx.f32 $0, $1;": tanh,
    MULTIPLY_32.value: product,
    MULTIPLY_64.value: product,
    NARROW.value: four_in_one,
    "mov.b32 $0, $1;": moved,
    "fence.proxy.async; mov.b32 $0, 0;": fence,
}
