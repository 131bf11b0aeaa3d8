"""Launch a kernel with little work on the host.

Triton inspects every argument of every launch to find the compiled kernel that fits, and then encodes the descriptors
for the copy engine. Both take longer than a small kernel runs. The fit depends on everything but the contents of the
tensors, and the encoding of a descriptor on layout and address alone, so this module remembers them.
"""

import contextlib
import copy
import functools
from types import SimpleNamespace

import torch
import triton

FORGET_AFTER = 4096  # launches of different shapes
KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # the versions whose launchers ``Repeat`` knows
_compiled = {}  # all that a launch depends on -> the compiled kernel
_repeats = {}  # all that a launch by ``again`` depends on, but for addresses -> its ``Repeat``, or None after the first


def launch(kernel, grid, tensors, numbers, *, warps, stages=1, early=False):
    """Run a grid (x, y, z) of programs. The kernel's arguments are tensors, or descriptors of them, and then numbers.

    numbers: sizes, strides, constexprs, and what a problem tells, which may hold more tensors. A tensor that a kernel
    can do without may be None. early: launch it before the kernel before it has ended, for which it waits by itself
    (compute capability 9.0). Returns the compiled kernel and its arguments, for ``again``; None in the interpreter.
    """
    bases = tuple(getattr(x, "base", x) for x in tensors)  # the tensors that descriptors describe
    device = bases[0].device
    if device.type != "cuda":
        kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages)
        return None
    key = (kernel, device, warps, stages, early, _fit(bases), _fit(numbers))
    compiled = _compiled.get(key)
    with _current(device):
        if compiled is None:
            options = {"launch_pdl": True} if early else {}
            compiled = kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages, **options)
            _remember(_compiled, key, compiled)
        else:
            compiled[grid](*tensors, *numbers)
    return compiled, grid, tensors, numbers


def again(start, tensors, *options, when=True):
    """Call ``start(*tensors, *options)``; if it was called twice with tensors like these, only repeat its launch.

    start: a function that launches one kernel and returns what ``launch`` does. The kernel's first arguments must be
    these tensors, or descriptors of them, in this order; all others must follow from their layouts and the options.
    when: whether they do.
    """
    device = tensors[0].device
    if device.type != "cuda" or not (when and KNOWN) or _watched():
        start(*tensors, *options)
        return
    at = [0 if x is None else x.data_ptr() for x in tensors]
    like = [x if x is None else (x.shape, x.stride(), x.dtype, p % 16) for x, p in zip(tensors, at, strict=True)]
    key = start, device, options, *like
    repeat = _repeats.get(key)
    if repeat is not None:
        with _current(device):
            repeat(at, device)
    else:  # made the second time: most launches of a text that grows come once
        launched = start(*tensors, *options)
        _remember(_repeats, key, Repeat(*launched, given=len(tensors)) if key in _repeats else None)


class Repeat:
    """A launch that waits for the addresses of the given tensors, the first of the kernel's arguments."""

    def __init__(self, kernel, grid, tensors, numbers, given):
        self.kernel, self.grid, self.run = kernel, grid, _launcher(kernel)
        self.others = tensors[given:]  # kept, so that their addresses are
        encodings = iter(kernel.metadata.tensordesc_meta or ())
        self.arguments = []
        self.blanks = []  # per given tensor: its place among the arguments, and its ``Form`` if it is described
        for x in tensors[:given]:
            form = Form(x, next(encodings)) if hasattr(x, "base") else None
            self.blanks.append((len(self.arguments), form))
            self.arguments += [None] if form is None else [None, *x.shape, *x.strides]
        self.arguments += *[x.data_ptr() for x in self.others], *numbers

    def __call__(self, addresses, device):
        """Launch with the given tensors at these addresses, on the current stream of the current device."""
        arguments = self.arguments.copy()
        for (blank, form), address in zip(self.blanks, addresses, strict=True):
            arguments[blank] = address if form is None else _encoded(form, address)
        kernel, stream = self.kernel, triton.runtime.driver.active.get_current_stream(device.index)
        self.run(*self.grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments)


@functools.cache
def _launcher(kernel):
    """Return Triton's launcher of a compiled kernel, made to take descriptors as the copy engine reads them."""
    encodings = iter(kernel.metadata.tensordesc_meta or ())
    kinds = []
    for kind in kernel.src.signature.values():
        if isinstance(kind, str) and kind.startswith("tensordesc"):
            rank = len(next(encodings)["block_size"])
            kinds += ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]  # encoded; shape, strides
        else:
            kinds.append(kind)
    source = SimpleNamespace(signature=dict(enumerate(kinds)))
    return triton.runtime.driver.active.launcher_cls(source, kernel.metadata._replace(tensordesc_meta=None))


class Form:
    """A descriptor that waits for the address of its tensor."""

    def __init__(self, descriptor, encoding):
        self.descriptor, self.encoding = copy.copy(descriptor), encoding
        self.descriptor.base = None  # so that nothing keeps the tensor


@functools.lru_cache(maxsize=8 * FORGET_AFTER)
def _encoded(form, address):
    """Return the descriptor of this form, of the tensor at this address, as the copy engine reads it."""
    from triton.backends.nvidia.driver import make_tensordesc_arg  # late: only an NVIDIA GPU has it

    descriptor = copy.copy(form.descriptor)
    descriptor.base = SimpleNamespace(data_ptr=lambda: address)
    return make_tensordesc_arg(descriptor, form.encoding)[0]


def _watched():
    """Return whether a profiler wants to hear of each launch, which Triton's own way of launching tells it."""
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _remember(known, key, value):
    """Keep a value, and forget all others if there are many."""
    if len(known) >= FORGET_AFTER:
        known.clear()
    known[key] = value


def _current(device):
    """Return the context in which torch and Triton launch on this device."""
    return contextlib.nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _fit(x):
    """Return x with each tensor replaced by what the fit depends on: its dtype, and whether it is aligned."""
    if isinstance(x, tuple):
        return tuple(map(_fit, x))
    return (x.dtype, x.data_ptr() % 16 == 0) if isinstance(x, torch.Tensor) else x
