"""Shared memory: what is allocated holds NaN until something is written, and every access is checked for races."""

import functools
import linecache
import math
import re
import sys

import numpy as np
from triton.experimental.gluon import language as gl

from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.knowledge import READ, WRITE, Shadow
from flashlab.kernels.gluon_interpreter.numbers import in_memory, narrowed, widened
from flashlab.kernels.gluon_interpreter.values import Value, value

CELL = 16  # bytes that are watched as one, at most: part of a row of a tile


class Allocation:
    """Bytes of shared memory, and the last accesses to them. The name is that of the variable, or of the field."""

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

    def _part(self, how, made, at):
        if how not in self._parts:
            self._parts[how] = View(self.allocation, self.dtype, self.layout, made(), at)
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
        """Note an access by the agent that calls, or by a unit that works for it. Return its number."""
        return me().access(self.allocation.shadow, self.cells, self, kind, does, engine)

    def read(self):
        """Return what the bytes hold now."""
        return widened(self.allocation.bytes.view(in_memory(self.dtype))[self.places], self.dtype)

    def write(self, array):
        """Replace what the bytes hold."""
        self.allocation.bytes.view(in_memory(self.dtype))[self.places] = narrowed(array, self.dtype)


def allocate_shared_memory(dtype, shape, layout, value=None):
    """Allocate a tile, or as many as the first dimension says. What a line like ``ring = ...`` makes is named ring."""
    itemsize = dtype.primitive_bitwidth // 8
    caller = sys._getframe(1)
    variable = re.match(r"\s*(\w+) = ", linecache.getline(caller.f_code.co_filename, caller.f_lineno))
    name = variable[1] if variable else "shared memory"
    made = Allocation(math.prod(shape) * itemsize, math.gcd(CELL, shape[-1] * itemsize), name)
    return View.of(made, dtype, shape, layout)


@functools.cache
def places(shape, itemsize, layout):
    """Return where each number of a tile is, counted in numbers from the first, for tiles of this layout.

    A layout for products and copies has panels as wide as its swizzle, one after the other. Within a panel it swizzles,
    alike for all that use these bytes; so it is left out here.
    """
    size = math.prod(shape)
    wide = layout.swizzle_byte_width // itemsize if isinstance(layout, gl.NVMMASharedLayout) else 0
    if not wide or shape[-1] <= wide:
        return np.arange(size).reshape(shape)
    rows = math.prod(shape[-layout.rank : -1])
    by_panel = np.arange(size).reshape(-1, shape[-1] // wide, rows, wide)  # [tiles, panels, rows, columns]
    return by_panel.swapaxes(1, 2).reshape(shape)
