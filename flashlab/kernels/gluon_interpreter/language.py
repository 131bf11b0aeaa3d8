"""The functions of Gluon's language, ``gl``, and those of Triton's that its kernels call, for ``Value``.

Types, layouts and constants have no function here: they are Triton's own. ``warp_specialize`` makes one agent of each
role, and the program continues when all have ended. ``inline_asm_elementwise`` computes the result of a block of PTX,
and refuses a block that is not in its table.
"""

from collections import Counter
from functools import partial

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter import memory
from flashlab.kernels.gluon_interpreter.memory import allocate_shared_memory
from flashlab.kernels.gluon_interpreter.scheduler import Agent, me
from flashlab.kernels.gluon_interpreter.values import ARRAYS, Value, computed, narrowed, together, value, widened
from flashlab.kernels.ptx import MULTIPLY_32, MULTIPLY_64, NARROW
from flashlab.machine.sm import Race


def warp_specialize(partitions, worker_num_warps, worker_num_regs):
    """Run functions, each with its arguments, side by side; the first one in the calling agent."""
    whole = me()
    agents = [Agent(name, whole.program, whole.run, whole.history.copy()) for name in names(partitions, whole.program)]
    alive = list(agents[1:])

    def play(agent, function, arguments):
        function(*arguments)
        end(agent)
        alive.remove(agent)

    for agent, (function, arguments) in zip(agents[1:], partitions[1:], strict=True):
        whole.run.add(agent, partial(play, agent, function, arguments))
    function, arguments = partitions[0]
    name, whole.name = whole.name, agents[0].name
    function(*arguments)
    end(whole)
    whole.pause(lambda: not alive, "the other roles to end")
    whole.name = name
    for agent in agents[1:]:
        whole.history.include(agent.history)


def names(partitions, program):
    """Name each role by its function, or by the function that is its first argument; numbered if several are alike."""
    roles = [(arguments[0] if callable(arguments[0]) else function).__name__ for function, arguments in partitions]
    count, seen = Counter(roles), Counter()
    for role in roles:
        number = f" {seen[role]}" if count[role] > 1 else ""
        seen[role] += 1
        yield f"{role}{number}{program}"


def end(agent):
    """Raise Race if a role ends while copies or products of its own still use shared memory."""
    if agent.stores:
        raise Race(f"{agent.name} ends before a store_wait for the copies that still read shared memory")
    if agent.products:
        raise Race(f"{agent.name} ends before a warpgroup_mma_wait for its products")


def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """Compute the result of a block of PTX.

    Raises:
        NotImplementedError: the block is not in the table.
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
    """Return the 32 bits of a register, or as e4m3 the four codes in it; then x has each register four times."""
    (x,) = args
    if dtype != gl.float8e4nv:
        return x
    codes = np.ascontiguousarray(x.data[:, ::4]).view(np.uint8)  # [rows, columns]
    return Value(widened(codes, dtype), dtype, x._layout)


def fence(args, dtype):
    """Let the asynchronous proxy see all that the role has seen."""
    me().history.fence()


MEANINGS = {
    "tanh.approx.f32 $0, $1;": tanh,
    MULTIPLY_32.value: product,
    MULTIPLY_64.value: product,
    NARROW.value: four_in_one,
    "mov.b32 $0, $1;": moved,
    "fence.proxy.async; mov.b32 $0, 0;": fence,
}


load, store, atomic_add = memory.load, memory.store, memory.atomic_add

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
    A, B = np.broadcast_arrays(a.data, b.data)
    return Value(A, a.dtype, a._layout or b._layout), Value(B, b.dtype, b._layout or a._layout)


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
