"""Shared and global memory: every access is checked for races.

Shared memory holds NaN until a kernel writes to it. Global memory has pointers that contain their tensor, descriptors
of tensors in tiles, and atomic additions.
"""

import functools
import linecache
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter.scheduler import ADD, READ, WRITE, History, Shadow, me
from flashlab.kernels.gluon_interpreter.values import OF_TORCH, Value, in_memory, narrowed, value, widened

CELL = 4  # bytes that are watched together, at most


class Allocation:
    """Bytes of shared memory, and the last accesses to them, under the name of a variable or a field."""

    def __init__(self, nbytes, cell, name):
        self.cell, self.name = cell, name
        self.bytes = np.full(nbytes, 0xFF, np.uint8)  # NaN in every type
        self.shadow = Shadow(nbytes // cell, begins_unwritten=True)
        self.barriers = {}  # by index


class View:
    """Part of an allocation, as a tile of numbers: Gluon's ``shared_memory_descriptor``."""

    def __init__(self, allocation, dtype, layout, places, index=()):
        self.allocation, self.dtype, self.layout, self.places, self.at = allocation, dtype, layout, places, index
        self._parts = {}  # views of this one, made once

    @classmethod
    def of(cls, allocation, dtype, shape, layout, first=0):
        """Return an allocation from its first byte on, as numbers of this shape and layout."""
        return cls(allocation, dtype, layout, first + places(tuple(shape), dtype.primitive_bitwidth // 8, layout))

    @property
    def shape(self):
        return list(self.places.shape)

    @property
    def rank(self):
        return self.places.ndim

    @property
    def type(self):
        return self

    @property
    def nbytes(self):
        return self.places.size * in_memory(self.dtype).itemsize

    def index(self, i):
        """Return the i-th of the buffers."""
        i = int(i)
        if not 0 <= i < len(self.places):
            raise IndexError(f"{self} has {len(self.places)} buffers, and no buffer {i}")
        return self._part(("index", i), lambda: self.places[i], (*self.at, i))

    def slice(self, start, length, dim=0):
        """Return ``length`` numbers from ``start`` on, in one dimension."""
        start = int(start)
        there = (slice(None),) * dim + (slice(start, start + length),)
        return self._part(("slice", start, length, dim), lambda: self.places[there], self.at)

    def permute(self, order):
        """Return the same bytes with dimensions in another order."""
        return self._part(("permute", *order), lambda: self.places.transpose(order), self.at)

    def reshape(self, shape):
        """Return the same bytes in another shape."""
        return self._part(("reshape", *shape), lambda: self.places.reshape(shape), self.at)

    def _part(self, how, make, at):
        if how not in self._parts:
            self._parts[how] = View(self.allocation, self.dtype, self.layout, make(), at)
        return self._parts[how]

    def _reinterpret(self, dtype, shape, layout):
        how = "reinterpret", dtype.name, *shape, layout
        if how not in self._parts:
            first = int(self.places.min()) * in_memory(self.dtype).itemsize // in_memory(dtype).itemsize
            self._parts[how] = View.of(self.allocation, dtype, shape, layout, first)
            self._parts[how].at = self.at
        return self._parts[how]

    @functools.cached_property
    def cells(self):
        """The cells of the allocation that hold these numbers."""
        return np.unique(self.places * in_memory(self.dtype).itemsize // self.allocation.cell)

    def __str__(self):
        return self.allocation.name + "".join(f"[{i}]" for i in self.at)

    def load(self, layout=None):
        """Return the numbers, in registers."""
        self.access(READ, "reads")
        return Value(self.read(), self.dtype, layout)

    def store(self, x):
        """Write numbers from registers."""
        if list(value(x).shape) != self.shape:
            raise ValueError(f"{self} {self.shape} cannot hold {value(x).shape}")
        self.access(WRITE, "writes")
        self.write(value(x).to(self.dtype).data)

    def access(self, kind, does, engine=""):
        """Record an access by the running agent, or by a unit that works for it. Return its number."""
        return me().access(self.allocation.shadow, self.cells, self, kind, does, engine)

    def read(self):
        """Return the current numbers."""
        return widened(self.allocation.bytes.view(in_memory(self.dtype))[self.places], self.dtype)

    def write(self, array):
        """Replace the numbers."""
        self.allocation.bytes.view(in_memory(self.dtype))[self.places] = narrowed(array, self.dtype)


def allocate_shared_memory(dtype, shape, layout, value=None):
    """Allocate tiles, as many as the first dimension says. A line ``ring = ...`` gives them the name ring."""
    itemsize = dtype.primitive_bitwidth // 8
    caller = sys._getframe(1)
    variable = re.match(r"\s*(\w+) = ", linecache.getline(caller.f_code.co_filename, caller.f_lineno))
    name = variable[1] if variable else "shared memory"
    allocation = Allocation(math.prod(shape) * itemsize, math.gcd(CELL, shape[-1] * itemsize), name)
    return View.of(allocation, dtype, shape, layout)


@functools.cache
def places(shape, itemsize, layout):
    """Return where each number of a tile is, counted in numbers from the first, for tiles of this layout.

    A layout for products and copies has panels as wide as its swizzle, one after the other. Within a panel it swizzles,
    alike for all that use these bytes; so the swizzle is left out here.
    """
    size = math.prod(shape)
    wide = layout.swizzle_byte_width // itemsize if isinstance(layout, gl.NVMMASharedLayout) else 0
    if not wide or shape[-1] <= wide:
        return np.arange(size).reshape(shape)
    rows = math.prod(shape[-layout.rank : -1])
    by_panel = np.arange(size).reshape(-1, shape[-1] // wide, rows, wide)  # [tiles, panels, rows, columns]
    return by_panel.swapaxes(1, 2).reshape(shape)


OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # types that numpy has


class Memory:
    """A tensor of the launch: its numbers from first to last, gaps included, and the last accesses to them."""

    def __init__(self, tensor, name, shadows):
        self.name, self.dtype = name, OF_TORCH[tensor.dtype]
        extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        flat = tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))
        self.flat = flat.view(OF_SIZE[tensor.element_size()]).numpy().view(in_memory(self.dtype))
        storage = tensor.untyped_storage()
        self.first = tensor.data_ptr() - storage.data_ptr() if tensor.numel() else 0  # bytes
        if storage.data_ptr() not in shadows:  # tensors may share memory
            shadows[storage.data_ptr()] = Shadow(-(-storage.nbytes() // CELL), begins_unwritten=False), {}
        self.shadow, self.released = shadows[storage.data_ptr()]  # released: by counter, a ``History``

    def cells(self, offsets):
        """Return the watched cells of the numbers at these offsets."""
        return (self.first + offsets * self.flat.itemsize) // CELL

    def access(self, offsets, kind, does, engine=""):
        """Note an access to the numbers at these offsets. Return its number."""
        return me().access(self.shadow, self.cells(offsets), self.name, kind, does, engine)


class Pointer(Value):
    """Pointers into one tensor: offsets from its first number."""

    def __init__(self, memory, offsets=0):
        super().__init__(np.asarray(offsets, np.int64), gl.pointer_type(memory.dtype))
        self.memory = memory

    def __add__(self, steps):
        return Pointer(self.memory, self.data + value(steps).data.astype(np.int64))

    __radd__ = __add__

    def __getitem__(self, key):
        return Pointer(self.memory, self.data[key])

    def reached(self, mask, kind):
        """Return the offsets that a mask leaves, and the mask; raise IndexError unless all are inside the tensor."""
        seen = np.broadcast_to(True if mask is None else value(mask).data, self.data.shape)
        offsets = self.data[seen]
        outside = (offsets < 0) | (offsets >= len(self.memory.flat))
        if outside.any():
            program = me().program
            raise IndexError(
                f"{program.kernel} goes outside {self.memory.name}: {kind} of {outside.sum()} element(s), "
                f"in program {program.id}"
            )
        return offsets, seen


def load(pointer, mask=None, other=None, **hints):
    """Load numbers, and ``other`` or garbage where the mask hides them."""
    memory = pointer.memory
    offsets, seen = pointer.reached(mask, "load")
    bits = np.full(pointer.data.shape, -1, np.int64).astype(in_memory(memory.dtype))
    if other is not None:
        bits[...] = narrowed(value(other).to(memory.dtype).data, memory.dtype)
    elif memory.flat.dtype.kind == "f":
        bits[...] = np.nan
    if offsets.size:
        memory.access(offsets, READ, "reads")
        bits[seen] = memory.flat[offsets]
    return Value(widened(bits, memory.dtype), memory.dtype)


def store(pointer, x, mask=None, **hints):
    """Store numbers, rounded to the tensor's type."""
    memory, x = pointer.memory, value(x)
    offsets, seen = pointer.reached(mask, "store")
    if offsets.size:
        memory.access(offsets, WRITE, "writes")
        numbers = narrowed(x.to(memory.dtype).data, memory.dtype)
        memory.flat[offsets] = np.broadcast_to(numbers, pointer.data.shape)[seen]


def atomic_add(pointer, x, mask=None, sem="acq_rel", scope=None):
    """Add to each number atomically, and return the earlier numbers.

    Additions do not race with each other. All agents see additions to one address, a counter, in the same order. With
    ``sem`` an agent leaves its history there (release), or includes the histories that are there (acquire).
    """
    memory, agent = pointer.memory, me()
    offsets, seen = pointer.reached(mask, "atomic_add")
    alone = pointer.data.ndim == 0
    if alone:
        agent.pause()
        poll(agent, memory, int(offsets[0]))
        cell = int(memory.cells(offsets)[0])
        for (kind, _), numbers in memory.shadow.others.items():
            if kind == ADD and numbers[cell] >= 0:
                agent.record(int(numbers[cell]))
    before = memory.flat[pointer.data]
    added = np.broadcast_to(value(x).to(memory.dtype).data, pointer.data.shape)[seen]
    np.add.at(memory.flat, offsets, added)
    memory.access(offsets, ADD, "adds to")
    if alone:
        agent.polled = (memory, int(offsets[0]), before.item()) if not added.any() else None
        released = memory.released.setdefault(int(offsets[0]), History())
        if sem in ("release", "acq_rel"):
            released.include(agent.history)
        if sem in ("acquire", "acq_rel"):
            agent.history.include(released)
    return Value(before, memory.dtype)


def poll(agent, memory, at):
    """Wait until this counter has changed, if the agent has just read it and done nothing else."""
    seen = memory.flat[at].item()
    if agent.polled == (memory, at, seen):
        agent.pause(lambda: memory.flat[at] != seen, f"{memory.name}[{at}] to be other than {seen}")


class Descriptor:
    """A tensor in tiles, as a descriptor defines them."""

    def __init__(self, memory, shape, strides, block_shape, layout):
        self.memory, self.block_shape, self.layout, self.dtype = memory, list(block_shape), layout, memory.dtype
        self.shape, self.strides = tuple(map(int, shape)), tuple(map(int, strides))
        self.block_type = SimpleNamespace(
            shape=self.block_shape,
            element_ty=self.dtype,
            nbytes=math.prod(block_shape) * in_memory(self.dtype).itemsize,
        )
        steps = [step * memory.flat.itemsize for step in self.strides]
        self.array = as_strided(memory.flat, self.shape, steps)

    def tile(self, at):
        """Return the ``Tile`` at these coordinates."""
        return Tile(self, [int(x) for x in at])


class Tile:
    """A tile of a described tensor. Part of it may be past the tensor's ends."""

    def __init__(self, described, at):
        self.described, self.memory = described, described.memory
        sizes = list(zip(at, described.block_shape, described.shape, strict=True))
        self.inside = tuple(slice(max(x, 0), max(min(x + n, size), 0)) for x, n, size in sizes)  # of the tensor
        self.part = tuple(
            slice(s.start - x, max(s.stop - x, s.start - x)) for s, (x, *_) in zip(self.inside, sizes, strict=True)
        )

    def access(self, kind, does):
        """Note an access by the copy engine. Return its number."""
        offsets = np.zeros((1,) * len(self.inside), np.int64)
        for dim, (s, step) in enumerate(zip(self.inside, self.described.strides, strict=True)):
            places = np.arange(s.start, s.stop) * step
            offsets = offsets + places.reshape((-1,) + (1,) * (len(self.inside) - dim - 1))
        one_per_cell = offsets[..., :: max(1, CELL // self.memory.flat.itemsize)]  # rows begin where a cell does
        return self.memory.access(one_per_cell.ravel(), kind, does, "copies")

    def read(self):
        """Return the numbers, and 0 past the ends."""
        bits = np.zeros(self.described.block_shape, self.memory.flat.dtype)
        bits[self.part] = self.described.array[self.inside]
        return widened(bits, self.memory.dtype)

    def write(self, array):
        """Replace the numbers inside the tensor."""
        self.described.array[self.inside] = narrowed(array, self.memory.dtype)[self.part]
