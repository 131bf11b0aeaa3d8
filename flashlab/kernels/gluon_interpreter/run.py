"""Run a launch: programs take turns on a few multiprocessors, and their arguments become values of the interpreter.

A kernel runs as a function of Python: the same code, with the interpreter's functions in place of Triton's.
"""

import functools
import itertools
import types
from contextlib import contextmanager
from typing import NamedTuple

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.runtime.jit import ConstexprFunction

from flashlab.kernels.gluon_interpreter import language, units
from flashlab.kernels.gluon_interpreter.language import end
from flashlab.kernels.gluon_interpreter.memory import Descriptor, Memory, Pointer, View
from flashlab.kernels.gluon_interpreter.scheduler import Agent, Run, me
from flashlab.kernels.gluon_interpreter.values import value


def fence_async_shared(cluster=False):
    """Let the copy engine and the tensor cores see all that the role has seen."""
    me().history.fence()


MODULES = {gl: language, tl: language, hopper.mbarrier: units, hopper.tma: units}
FUNCTIONS = {
    hopper.fence_async_shared: fence_async_shared,
    hopper.warpgroup_mma: units.warpgroup_mma,
    hopper.warpgroup_mma_wait: units.warpgroup_mma_wait,
    getattr(gl, "barrier", None) or gl.thread_barrier: language.barrier,
}
BUILTINS = {"range": language.counted}


class Names(dict):
    """The names of a function's module. The first use of a name binds it to the interpreter's counterpart."""

    def __init__(self, originals, bound):
        self.originals, self.bound = originals, bound

    def __missing__(self, name):
        found = self.originals[name] if name in self.originals else BUILTINS[name]  # KeyError: Python takes its builtin
        self[name] = self.bound(found)
        return self[name]


class Module:
    """A module of ours, or of Triton's, as a kernel sees it."""

    def __init__(self, module, bound):
        self._module, self._bound, self._ours = module, bound, MODULES.get(module)

    def __getattr__(self, name):
        found = getattr(self._ours, name, None) if self._ours else None
        if found is None:
            found = getattr(self._module, name)
            if self._ours and callable(found) and not isinstance(found, type | ConstexprFunction):
                raise NotImplementedError(f"the interpreter has no {self._module.__name__.split('.')[-1]}.{name}")
            found = self._bound(found)
        setattr(self, name, found)
        return found


class Binder:
    """Make functions of Python from kernels, for one launch: the next may have other kernels of the same names."""

    def __init__(self):
        self.functions = {}

    def __call__(self, x):
        """Return the interpreter's counterpart of an object that a kernel names."""
        if isinstance(x, gl.constexpr):
            return x.value
        if isinstance(x, types.ModuleType):
            ours = x in MODULES or x.__name__.startswith("flashlab.")
            return Module(x, self) if ours else x
        if isinstance(x, ConstexprFunction):
            return x.fn
        if isinstance(x, type) and issubclass(x, tuple) and hasattr(x, "_fields"):
            return functools.partial(named, x)
        if hasattr(x, "fn") and hasattr(x, "arg_names"):
            return self.function(x.fn)
        try:
            return FUNCTIONS.get(x, x)
        except TypeError:  # x cannot be a key
            return x

    def function(self, plain):
        """Return a kernel's function, for the interpreter."""
        if plain not in self.functions:
            defaults = tuple(map(self, plain.__defaults__ or ()))
            names = Names(plain.__globals__, self)
            self.functions[plain] = types.FunctionType(
                plain.__code__, names, plain.__name__, defaults, plain.__closure__
            )
        return self.functions[plain]


def named(cls, *values, **more):
    """Make a NamedTuple; shared memory has the name of its field from then on."""
    result = cls(*values, **more)
    for field, x in zip(cls._fields, result, strict=True):
        name(x, field)
    return result


def name(x, words):
    """Name shared memory, or the shared memory in the fields of a NamedTuple."""
    if isinstance(x, View) and not x.at:
        x.allocation.name = words
    elif hasattr(x, "_fields"):
        for field, part in zip(x._fields, x, strict=True):
            name(part, f"{words}.{field}")


BESIDE = 4  # programs at a time
_seeds = [0]  # the last one is in use
_noted = [None]  # the last one is in use: a list for races, or None, with which they are raised


@contextmanager
def seeded(seed):
    """Order roles, programs and copies inside by this seed."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


@contextmanager
def noted():
    """Collect races between accesses to memory inside, instead of raising them. Yields their list, a sentence each."""
    _noted.append([])
    try:
        yield _noted[-1]
    finally:
        _noted.pop()


class Program(NamedTuple):
    """A program of a launch."""

    kernel: str
    id: tuple
    grid: tuple

    def __str__(self):
        return "" if self.grid == (1, 1, 1) else f" of program {self.id}"


def interpret(kernel, grid, tensors, numbers):
    """Run a Gluon kernel for a grid (x, y, z) on the CPU.

    Args:
        tensors: torch tensors, descriptors of them, or None. numbers: all other arguments, as for ``launch.launch``.

    Raises:
        Race: two accesses to the same memory that nothing keeps apart, one of which writes; or a barrier gets more than
            it expects. Deadlock: all agents wait. IndexError: an access outside a tensor. NotImplementedError: a
            function that this interpreter lacks.
    """
    run, shadows, bound = Run(_seeds[-1], _noted[-1]), {}, Binder()
    arguments = []
    for parameter, x in zip(kernel.params, (*tensors, *numbers), strict=True):
        arguments.append(bound(x) if parameter.is_constexpr else argument(x, parameter.name, shadows, bound))
    function = bound(kernel)
    waiting = itertools.product(*map(range, reversed(grid)))  # x counts first

    def live():
        for number in waiting:
            program = Program(kernel.fn.__name__, number[::-1], tuple(grid))
            agent = Agent(f"the kernel{program}", program, run)
            run.add(agent, lambda agent=agent: (function(*arguments), end(agent), live()))
            return

    for _ in range(BESIDE):
        live()
    run.go()


def argument(x, name, shadows, bound):
    """Return the value of an argument that is no compile-time value."""
    if isinstance(x, torch.Tensor):
        return Pointer(Memory(x, name, shadows))
    if hasattr(x, "block_shape"):
        return Descriptor(Memory(x.base, name, shadows), x.shape, x.strides, x.block_shape, x.layout)
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", [name] * len(x))
        parts = [argument(part, field, shadows, bound) for part, field in zip(x, fields, strict=True)]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return value(x) if isinstance(x, bool | int | float) else bound(x)
