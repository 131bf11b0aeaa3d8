"""A slow memory and a fast one, and a bill for every byte between them.

The slow memory (a GPU's HBM) holds named tensors. The fast memory (the SRAM of one streaming multiprocessor) holds
named tiles. An algorithm loads tiles, computes on them, and stores tiles; each transfer is booked under the tensor's
name, what is resident is known at any moment, and a tile that does not fit raises ``FastMemoryFull``.

Counted is the traffic that the program asks for, before any cache.
"""

from collections import Counter, deque
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np


class FastMemoryFull(MemoryError):
    """A tile does not fit beside the tiles that are resident."""


class Event(NamedTuple):
    """One line of the bill, in the order in which things happened."""

    kind: str  # "kernel", "load", "hold", "drop" or "store"
    name: str  # of the kernel, the tensor or the tile
    region: tuple  # the slices of the tensor that were moved; () for the whole and for what is not moved
    nbytes: int


class Memory:
    """Two levels of memory that count.

    Args:
        sram_bytes: size of the fast memory in bytes; None for as much as is asked for.
        record: keep the list of events; without it the bill is still complete, and a long run stays small.

    Attributes:
        bytes: Counter of the bytes moved, by ("load" or "store", name of the tensor).
        events: list of ``Event``, everything that happened, in order.
        resident: dict of the bytes of each tile that is in fast memory now.
        peak_bytes: the most that was resident at once; ``peak`` holds its tiles.
    """

    def __init__(self, sram_bytes: int | None = None, *, record: bool = True):
        self.sram_bytes = sram_bytes
        self.bytes: Counter = Counter()
        self.events: list[Event] | deque[Event] = [] if record else deque(maxlen=0)  # which forgets at once
        self.resident: dict[str, int] = {}
        self.resident_bytes = 0
        self.peak: dict[str, int] = {}
        self.peak_bytes = 0
        self.tensors: dict[str, np.ndarray] = {}

    def place(self, **tensors: np.ndarray) -> None:
        """Put inputs into slow memory. They were there before the algorithm began: nothing is booked."""
        for name, tensor in tensors.items():
            if not np.issubdtype(tensor.dtype, np.floating):
                raise TypeError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
            self.tensors[name] = tensor

    def reserve(self, name: str, shape: tuple[int, ...], dtype) -> None:
        """Allocate a tensor in slow memory, full of NaN: whatever is never stored shows. Nothing is booked."""
        self.tensors[name] = np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 0, dtype)

    def load(self, name: str, *region: slice) -> np.ndarray:
        """Copy a tile of a tensor into fast memory, where it replaces the tensor's previous tile.

        Returns the tile in the dtype of arithmetic: float32 for float16, otherwise the tensor's own.
        """
        tile = self.tensors[name][region]
        self._occupy(name, tile.nbytes)
        self._book("load", name, region, tile.nbytes)
        return tile.astype(np.float32 if tile.dtype == np.float16 else tile.dtype)

    def hold(self, **tiles: np.ndarray) -> None:
        """Account for tiles that were computed in fast memory. A tile replaces the previous one of its name."""
        for name, tile in tiles.items():
            self._occupy(name, tile.nbytes)
            self.events.append(Event("hold", name, (), tile.nbytes))

    def drop(self, *names: str) -> None:
        """Give the room of these tiles back."""
        for name in names:
            nbytes = self.resident.pop(name)
            self.resident_bytes -= nbytes
            self.events.append(Event("drop", name, (), nbytes))

    def store(self, name: str, tile: np.ndarray, *region: slice) -> None:
        """Write a tile to slow memory, narrowed to the tensor's dtype."""
        target = self.tensors[name][region]
        if target.shape != tile.shape:
            raise ValueError(f"{name}: a tile of shape {tile.shape} does not fit a region of shape {target.shape}")
        target[...] = tile
        self._book("store", name, region, target.nbytes)

    @contextmanager
    def kernel(self, name: str):
        """One kernel, or one program of a kernel: it finds the fast memory empty and leaves nothing in it."""
        self.events.append(Event("kernel", name, (), 0))
        try:
            yield
        finally:
            self.resident.clear()
            self.resident_bytes = 0

    @property
    def loaded(self) -> int:
        """Bytes that went from slow to fast memory."""
        return sum(nbytes for (kind, _), nbytes in self.bytes.items() if kind == "load")

    @property
    def stored(self) -> int:
        """Bytes that went from fast to slow memory."""
        return sum(nbytes for (kind, _), nbytes in self.bytes.items() if kind == "store")

    @property
    def moved(self) -> int:
        """Bytes that crossed between the two memories, either way."""
        return self.loaded + self.stored

    def _book(self, kind: str, name: str, region: tuple, nbytes: int) -> None:
        self.bytes[kind, name] += nbytes
        self.events.append(Event(kind, name, region, nbytes))

    def _occupy(self, name: str, nbytes: int) -> None:
        total = self.resident_bytes + nbytes - self.resident.get(name, 0)
        if self.sram_bytes is not None and total > self.sram_bytes:
            tiles = {**self.resident, name: nbytes}
            bill = " + ".join(f"{tile} {size:,}" for tile, size in tiles.items())
            raise FastMemoryFull(f"{bill} = {total:,} bytes, but the fast memory holds {self.sram_bytes:,}")
        self.resident[name] = nbytes
        self.resident_bytes = total
        if total > self.peak_bytes:
            self.peak_bytes, self.peak = total, dict(self.resident)
