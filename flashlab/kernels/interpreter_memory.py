"""Watch the addresses of kernels in Triton's interpreter: refuse accesses outside of tensors, and book all others.

A kernel's pointers into its n-th tensor, counted from 1, are n * ``APART`` too large. So an address names its tensor,
and no two tensors are neighbours. ``interpreter`` wraps the interpreter's accesses in the functions of this file.
"""

import threading
from typing import NamedTuple

import numpy as np
import torch
from triton.runtime.interpreter import TensorHandle

from flashlab.machine.memory import Event

APART = 2**48  # above all addresses of a process


class OutsideItsTensor(IndexError):
    """An access outside of the tensor of its pointer."""


class Span(NamedTuple):
    """A tensor and the addresses of its elements."""

    name: str
    tensor: torch.Tensor
    first: int  # address of the first element
    last: int  # address past the last one


class _Launch:
    """The launch that runs: its kernel's name, its tensors, and the addresses of their elements in the kernel."""

    def __init__(self):
        self.begin("", {})

    def begin(self, kernel, arguments):
        """Begin the launch of the kernel with these arguments, a dict by parameter."""
        self.kernel = kernel
        self.tensors = [span for name, arg in arguments.items() for span in _spans_of(name, arg)]
        self.places = [(t.first + at * APART, t.last + at * APART) for at, t in enumerate(self.tensors, 1)]


class _Bills(threading.local):
    """The bills of ``interpreter.count``, per thread: a launch belongs to the thread that makes it."""

    def __init__(self):
        self.open = []  # (Memory, ``Span`` of each tensor that the caller named)


launched, bills = _Launch(), _Bills()


def _spans_of(name, arg):
    """Return the spans of the tensors in an argument of a launch. In a NamedTuple each has the name of its field."""
    if isinstance(arg, tuple):
        names = getattr(arg, "_fields", [name] * len(arg))
        return [x for part, value in zip(names, arg, strict=True) for x in _spans_of(part, value)]
    base = getattr(arg, "base", arg)  # descriptors and wrappers have a base
    return spans({name: base}) if hasattr(base, "data_ptr") else []


def spans(tensors):
    """Return the ``Span`` of each of these tensors, a dict by name."""
    found = []
    for name, tensor in tensors.items():
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        first = tensor.data_ptr()
        found.append(Span(name, tensor, first, first + (extent * tensor.element_size() if tensor.numel() else 0)))
    return found


def moved_apart(convert):
    """Move each pointer of a launch by a multiple of ``APART``, that of its tensor."""

    def run(arg):
        converted = convert(arg)
        if hasattr(arg, "data_ptr"):
            (own,) = _spans_of("", arg)
            at = [(t.first, t.last) for t in launched.tensors].index((own.first, own.last))
            converted.handle.data += np.uint64((at + 1) * APART)
        return converted

    return run


def watched(*kinds, pointers, mask=None):
    """Return a wrapper for a load, store or atomic that checks and books its addresses.

    kinds: those of its events. pointers, mask: positions of these arguments.
    """

    def wrapper(access):
        def run(self, *args, **kwargs):
            handle = args[pointers]
            seen = True if mask is None else getattr(args[mask], "data", args[mask])
            addresses = handle.data[np.broadcast_to(np.asarray(seen), handle.data.shape)].astype(np.int64)  # [elements]
            real = TensorHandle(handle.data % np.uint64(APART), handle.dtype, handle.attr)
            if addresses.size:
                itemsize = max(1, handle.get_element_ty().primitive_bitwidth // 8)
                _check(kinds[0], addresses, itemsize, self.grid_idx)
                for kind in kinds:
                    for memory, named in bills.open:
                        _book(memory, kind, addresses % APART, itemsize, named + launched.tensors)
            return access(self, *args[:pointers], real, *args[pointers + 1 :], **kwargs)

        return run

    return wrapper


def _check(kind, addresses, itemsize, program):
    """Raise an error that names the tensor if an element at one of these addresses is outside of all tensors."""
    lowest, highest = addresses.min(), addresses.max() + itemsize
    if any(first <= lowest and highest <= last for first, last in launched.places):
        return
    outside = np.ones(addresses.shape, bool)
    for first, last in launched.places:
        outside &= (addresses < first) | (addresses + itemsize > last)
    if outside.any():
        at = addresses[outside][0] // APART - 1
        name = launched.tensors[at].name if 0 <= at < len(launched.tensors) else "every tensor"
        raise OutsideItsTensor(f"outside {name}: {kind} of {outside.sum()} element(s), in program {program}")


def from_the_first_element(kind):
    """Return a wrapper for accesses by descriptor that refuses a tile which begins before its tensor."""

    def wrapper(access):
        def run(self, descriptor, *args, **kwargs):
            indices = args[-1] if kind == "store" else args[0]
            first = [int(index.data.item()) for index in indices]
            if min(first) < 0:
                name = launched.tensors[int(descriptor.base.data.item()) // APART - 1].name
                raise OutsideItsTensor(
                    f"outside {name}: {kind} of a tile that begins at {first}, in program {self.grid_idx}"
                )
            return access(self, descriptor, *args, **kwargs)

        return run

    return wrapper


def _book(memory, kind, addresses, itemsize, spans):
    """Book an access in a ``Memory``, as one event for each tensor, under the name of the first span that has it."""
    for t in spans:
        inside = (t.first <= addresses) & (addresses < t.last)
        if inside.any():
            nbytes = int(inside.sum()) * itemsize
            region = _region(t.tensor, (addresses[inside] - t.first) // itemsize)
            memory.book(Event(kind, t.name, region, nbytes))
            addresses = addresses[~inside]


def _region(tensor, offsets):
    """Return the smallest box of slices that holds the elements at these offsets [elements] from the tensor's first."""
    region = [slice(0, size) for size in tensor.shape]
    for dim in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.shape[dim] > 1 and tensor.stride(dim):
            index, offsets = np.divmod(offsets, tensor.stride(dim))
            region[dim] = slice(int(index.min()), int(index.max()) + 1)
    return tuple(region)
