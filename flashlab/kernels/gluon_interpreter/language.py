"""The functions of Gluon's language, ``gl``, and those of Triton's that its kernels call, on each ``Value``.

What has no function here, types, layouts and constants, is Triton's own.
"""

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter import assembly, global_memory
from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.numbers import ARRAYS
from flashlab.kernels.gluon_interpreter.roles import warp_specialize
from flashlab.kernels.gluon_interpreter.shared_memory import allocate_shared_memory
from flashlab.kernels.gluon_interpreter.values import Value, computed, together, value

load, store, atomic_add = global_memory.load, global_memory.store, global_memory.atomic_add
inline_asm_elementwise = assembly.inline_asm_elementwise

__all__ = ["allocate_shared_memory", "warp_specialize"]  # and all functions below


def program_id(axis):
    return value(me().program.id[axis])


def num_programs(axis):
    return value(me().program.grid[axis])


def barrier():
    """Wait for the other threads of the role: here a role is one."""


thread_barrier = barrier


# making values


def to_tensor(x):
    return value(x)


def full(shape, x, dtype, layout=None):
    return Value(np.full(shape, value(x).to(dtype).data), dtype, layout)


def zeros(shape, dtype, layout=None):
    return full(shape, 0, dtype, layout)


def arange(start, end, layout=None):
    return Value(np.arange(start, end, dtype=np.int32), gl.int32, layout)


# element by element


def cast(x, dtype, bitcast=False):
    return value(x).to(dtype, bitcast)


def maximum(a, b, propagate_nan=tl.PropagateNan.NONE):
    larger = np.maximum if propagate_nan == tl.PropagateNan.ALL else np.fmax  # of a number and NaN: the number
    return computed(larger, value(a), b)


def minimum(a, b):
    return computed(np.fmin, value(a), b)


def where(condition, a, b):
    a, b, dtype, layout = together(a, b)
    return Value(np.where(value(condition).data, a, b), dtype, layout)


def cdiv(a, b):
    return (a + (b - 1)) // b


def fma(a, b, c):
    return a * b + c


def div_rn(a, b):
    return a / b


def _in_floats(function):
    def run(x):
        x = value(x)
        return Value(function(x.data).astype(x.data.dtype), x.dtype, x._layout)

    return run


exp, exp2, log, log2, sqrt, abs = map(_in_floats, (np.exp, np.exp2, np.log, np.log2, np.sqrt, np.abs))
rsqrt = _in_floats(lambda x: 1 / np.sqrt(x))


# along dimensions


def _reduced(function, x, axis):
    layout = None if x._layout is None or axis is None else gl.SliceLayout(axis, x._layout)
    return Value(function(x.data, axis).astype(ARRAYS[x.dtype]), x.dtype, layout)


def max(x, axis=None):
    return _reduced(lambda data, axis: np.fmax.reduce(data, axis), x, axis)


def min(x, axis=None):
    return _reduced(lambda data, axis: np.fmin.reduce(data, axis), x, axis)


def sum(x, axis=None):
    return _reduced(np.sum, x, axis)


# shapes


def reshape(x, *shape):
    return Value(x.data.reshape(*shape), x.dtype)


def permute(x, *order):
    return Value(x.data.transpose(*order), x.dtype)


def join(a, b):
    return Value(np.stack([a.data, b.data], -1), a.dtype)


def split(x):
    return Value(x.data[..., 0], x.dtype), Value(x.data[..., 1], x.dtype)


def broadcast(a, b):
    datas = np.broadcast_arrays(a.data, b.data)
    return tuple(Value(data, x.dtype, x._layout or y._layout) for data, x, y in zip(datas, (a, b), (b, a), strict=True))


def broadcast_to(x, *shape):
    return Value(np.broadcast_to(x.data, *shape), x.dtype, x._layout)


def convert_layout(x, layout, assert_trivial=False):
    return Value(x.data, x.dtype, layout)


# of the compiler


def static_assert(condition, message=""):
    assert condition, message


def static_range(*ends):
    """Count as the compiler does when it unrolls a loop."""
    return range(*map(int, ends))


def counted(*ends, **hints):
    """Count as a loop of a kernel does, whose counter is a number of 32 bits."""
    return map(value, range(*map(int, ends)))
