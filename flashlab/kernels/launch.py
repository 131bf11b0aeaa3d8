"""Launch kernels, and launch them again with other tensors of the same layouts.

Triton inspects every argument of every launch to find the compiled kernel that fits. A second call of the same kind
needs none of that: only addresses differ. ``plan`` keeps the launches of such calls.
"""

import contextlib
from collections.abc import Callable

import torch

HERE = contextlib.nullcontext()  # on the current device
started = set()  # compiled kernels, each added at the first start of a ``Launch``; benchmarks clear the set
_of_graphs = []  # launches that CUDA graphs repeat: their tables must last


class Launch:
    """A grid (x, y, z) of programs of a kernel, with all arguments but the addresses of its tensors.

    tensors, numbers, warps, stages, early: as for ``launch``.
    """

    def __init__(self, kernel, grid, tensors, numbers, warps, stages, early):
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        self.options = {"num_warps": warps, "num_stages": stages} | ({"launch_pdl": True} if early else {})
        self.described = [_described(x) for x in tensors]
        self.device = getattr(tensors[0], "base", tensors[0]).device
        self.compiled = None  # after the first start: the function that starts the compiled kernel
        self.reads_tables = any(isinstance(x, torch.Tensor) for x in numbers)

    def __call__(self, *tensors):
        """Start the grid with these tensors. Where ``launch`` got a descriptor, make one of the new tensor."""
        self.start([x if it is None else describe(x, *it) for x, it in zip(tensors, self.described, strict=True)])

    def start(self, arguments):
        """Start the grid with these tensors and descriptors."""
        if self.device.type != "cuda":
            self._interpret(arguments)
            return
        if self.reads_tables and torch.cuda.is_current_stream_capturing():
            _of_graphs.append(self)
        with HERE if self.device.index == torch.cuda.current_device() else torch.cuda.device(self.device):
            if self.compiled is None:
                compiled = self.kernel[self.grid](*arguments, *self.numbers, **self.options)
                started.add(compiled)
                self.compiled = compiled[self.grid]
            else:
                self.compiled(*arguments, *self.numbers)

    def _interpret(self, arguments):
        if hasattr(self.kernel, "is_gluon") and self.kernel.is_gluon():  # Triton interprets no Gluon
            from flashlab.kernels.gluon_interpreter import interpret  # late: few launches need it

            interpret(self.kernel, self.grid, arguments, self.numbers)
        else:
            self.kernel[self.grid](*arguments, *self.numbers, **self.options)


def launch(kernel, grid, tensors, numbers, *, warps, stages=1, early=False) -> Launch:
    """Run a grid (x, y, z) of programs. The kernel's arguments are tensors, or descriptors of them, and then numbers.

    tensors: the arguments that differ in another call of the same kind. Those that a kernel can do without may be None.
    numbers: sizes, strides, constexprs, tables, and the arguments of a problem, which may contain tensors.
    early: start before the previous kernel has ended; the kernel itself waits for that end (from capability 9.0 on).
    """
    result = Launch(kernel, grid, tensors, numbers, warps, stages, early)
    result.start(tensors)
    return result


def repeat(launched: dict, name, tensors: tuple, first: Callable[[], Launch]) -> None:
    """Start a launch of an earlier call of the same kind with these tensors, or the first one.

    launched: the launches of earlier calls of this kind, by name. ``first`` makes and starts one that is missing.
    """
    earlier = launched.get(name)
    if earlier is None:
        launched[name] = first()
    else:
        earlier(*tensors)


def _described(x):
    """Return the type and the fields of a descriptor, without its tensor; None for a tensor."""
    return (type(x), {name: it for name, it in vars(x).items() if name != "base"}) if hasattr(x, "base") else None


def describe(x: torch.Tensor, kind: type, fields: dict):
    """Return the descriptor of x, of a type of Triton's, with these fields.

    This does not call the constructor: its checks take time, and ``tiles.ready`` has made them.
    """
    descriptor = object.__new__(kind)
    vars(descriptor).update(fields, base=x)
    return descriptor
