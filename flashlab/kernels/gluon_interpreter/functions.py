"""Kernels as functions of Python: the same code, with the interpreter's functions in place of Triton's."""

import functools
import types

import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.runtime.jit import ConstexprFunction

from flashlab.kernels.gluon_interpreter import barriers, copies, language, products
from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.shared_memory import View


def fence_async_shared(cluster=False):
    """Let the copy engine and the tensor cores see what the role knows to be written."""
    me().knowledge.fence()


MODULES = {gl: language, tl: language, hopper.mbarrier: barriers, hopper.tma: copies}
FUNCTIONS = {
    hopper.fence_async_shared: fence_async_shared,
    hopper.warpgroup_mma: products.warpgroup_mma,
    hopper.warpgroup_mma_wait: products.warpgroup_mma_wait,
    getattr(gl, "barrier", None) or gl.thread_barrier: language.barrier,
}
BUILTINS = {"range": language.counted}


class Names(dict):
    """The names of a function's module. Each is bound, when first asked for, to what the interpreter has for it."""

    def __init__(self, known, bound):
        self.known, self.bound = known, bound

    def __missing__(self, name):
        found = self.known[name] if name in self.known else BUILTINS[name]  # KeyError: one of Python's own
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
    """Makes functions of Python from kernels, for one launch: the next may find other ones under the same names."""

    def __init__(self):
        self.made = {}

    def __call__(self, x):
        """Return what the interpreter has for an object that a kernel names."""
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
        if plain not in self.made:
            defaults = tuple(map(self, plain.__defaults__ or ()))
            names = Names(plain.__globals__, self)
            self.made[plain] = types.FunctionType(plain.__code__, names, plain.__name__, defaults, plain.__closure__)
        return self.made[plain]


def named(cls, *values, **more):
    """Make a NamedTuple; shared memory has the name of its field from then on."""
    made = cls(*values, **more)
    for field, x in zip(cls._fields, made, strict=True):
        if isinstance(x, View) and not x.at:
            x.allocation.name = field
    return made
