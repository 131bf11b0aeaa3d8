"""Run a launch: programs take turns on a few multiprocessors, and their arguments become values of the interpreter."""

import itertools
from contextlib import contextmanager
from typing import NamedTuple

import torch

from flashlab.kernels.gluon_interpreter.agents import Agent, Run
from flashlab.kernels.gluon_interpreter.functions import Binder
from flashlab.kernels.gluon_interpreter.global_memory import Descriptor, Memory, Pointer
from flashlab.kernels.gluon_interpreter.roles import end
from flashlab.kernels.gluon_interpreter.values import value

BESIDE = 4  # programs at a time
_seeds = [0]  # the last one counts
_noted = [None]  # the last one counts: the list that takes races; None: they are raised


@contextmanager
def seeded(seed):
    """Inside, let roles, programs and copies take turns in the order that belongs to this seed."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


@contextmanager
def noted():
    """Note races between accesses to memory inside, and go on. Yields the list of them, a sentence each."""
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
            it expects. Deadlock: all wait. IndexError: an access outside a tensor. NotImplementedError: what this
            interpreter does not know.
    """
    run, shadows, bound = Run(_seeds[-1], _noted[-1]), {}, Binder()
    arguments = []
    for parameter, x in zip(kernel.params, (*tensors, *numbers), strict=True):
        arguments.append(bound(x) if parameter.is_constexpr else given(x, parameter.name, shadows, bound))
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


def given(x, name, shadows, bound):
    """Return an argument that the compiler does not know."""
    if isinstance(x, torch.Tensor):
        return Pointer(Memory(x, name, shadows))
    if hasattr(x, "block_shape"):
        return Descriptor(Memory(x.base, name, shadows), x.shape, x.strides, x.block_shape, x.layout)
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", [name] * len(x))
        parts = [given(part, field, shadows, bound) for part, field in zip(x, fields, strict=True)]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return value(x) if isinstance(x, bool | int | float) else bound(x)
