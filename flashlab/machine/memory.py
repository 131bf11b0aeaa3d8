"""A slow memory and a fast one, and a bill for every byte between them.

The slow memory (a GPU's HBM) holds named tensors. The fast memory (the SRAM of one streaming multiprocessor) holds
named tiles. An algorithm loads tiles, computes on them, and stores tiles; each transfer is booked under the tensor's
name, ``resident`` lists the tiles in fast memory, and a tile that does not fit raises ``FastMemoryFull``.

The count is of the traffic that the program requests, before any cache. ``replay`` repeats a recorded run, one moment
at a time.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments

Region = slice | int | np.ndarray  # along one dimension


class FastMemoryFull(MemoryError):
    """A tile does not fit beside the tiles that are resident."""


class Event(NamedTuple):
    """One line of the bill, in the order in which things happened."""

    kind: str  # "kernel", "load", "hold", "drop" or "store"
    name: str  # of the kernel, the tensor or the tile
    # The slices of the tensor that were moved, () for the whole; of a kernel, its program's place in the grid.
    region: tuple
    nbytes: int


class Account:
    """The sums of events.

    Attributes:
        bytes: Counter of the bytes moved, by ("load" or "store", name of the tensor).
        resident: dict of the bytes of each tile that is in fast memory now.
    """

    def __init__(self) -> None:
        self.bytes: Counter = Counter()
        self.resident: dict[str, int] = {}

    def book(self, event: Event) -> None:
        """Apply the next event to the sums."""
        if event.kind == "kernel":
            self.resident.clear()
        elif event.kind == "drop":
            del self.resident[event.name]
        elif event.kind in ("load", "hold"):
            self.resident[event.name] = event.nbytes
        if event.kind in ("load", "store"):
            self.bytes[event.kind, event.name] += event.nbytes

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

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tiles that are in fast memory now."""
        return sum(self.resident.values())


class Moment(NamedTuple):
    """The state after one event of a run. Places are spans (start, stop), one per axis; () is the whole."""

    kind: str  # of the event: "kernel", "load", "hold", "drop" or "store"
    name: str  # of the kernel, the tensor or the tile
    place: tuple  # of what the event moved
    nbytes: int  # that it moved, held or dropped
    kernel: str  # the name of the kernel that runs; "" before the first
    program: tuple[int, ...]  # its program's place in the grid, where that was recorded
    kernels: int  # how many kernels have begun; each program of a kernel counts
    resident: dict[str, int]  # bytes of each tile in fast memory, by name
    places: dict[str, tuple]  # place of each tile in fast memory that was loaded, by name
    written: frozenset[tuple[str, tuple]]  # (name, place) of all that was stored so far
    bytes: dict[tuple[str, str], int]  # moved so far, by ("load" or "store", name)
    moved: int  # the sum of ``bytes``


def replay(events: Iterable[Event]) -> Iterator[Moment]:
    """Replay a run: yield the ``Moment`` after each of the events that a ``Memory`` recorded.

    A kernel's tiles are resident until the next kernel begins. A moment never changes after it was yielded.
    """
    account, kernel, program, kernels, places, written = Account(), "", (), 0, {}, frozenset()
    for event in events:
        account.book(event)
        place = ()
        if event.kind == "kernel":
            kernel, program, kernels = event.name, event.region, kernels + 1
        else:
            place = tuple(_span(index) for index in event.region)
        if event.kind == "load":
            places = {**places, event.name: place}
        elif event.kind == "store":
            written = written | {(event.name, place)}
        places = {name: where for name, where in places.items() if name in account.resident}
        resident, bytes_moved = dict(account.resident), dict(account.bytes)
        at = event.kind, event.name, place, event.nbytes, kernel, program, kernels
        yield Moment(*at, resident, places, written, bytes_moved, account.moved)


def _span(index: Region) -> tuple[int, int]:
    """Return (start, stop) of a slice, of one index, or of an array of indices from its first to its last."""
    if isinstance(index, slice):
        return index.start, index.stop
    return int(np.min(index)), int(np.max(index)) + 1


class Memory(Account):
    """Two levels of memory that count the bytes moved between them.

    Args:
        sram_bytes: size of the fast memory in bytes; unlimited if None.
        record: store the list of events. Without it the bill is still complete, and a long run takes less memory.

    Attributes:
        bytes: Counter of the bytes moved, by ("load" or "store", name of the tensor).
        events: list of ``Event``, everything that happened, in order.
        resident: dict of the bytes of each tile that is in fast memory now.
        peak_bytes: the most that was resident at once; ``peak`` holds its tiles.
        notes: dict of what a forward pass leaves for its backward pass besides tensors; nothing of it is booked.
    """

    @check_arguments(sram_bytes=0)
    def __init__(self, sram_bytes: float | None = None, *, record: bool = True):
        super().__init__()
        self.sram_bytes = sram_bytes
        self.events: list[Event] | deque[Event] = [] if record else deque(maxlen=0)  # stores nothing
        self.peak: dict[str, int] = {}
        self.peak_bytes = 0
        self.tensors: dict[str, np.ndarray] = {}
        self.notes: dict = {}

    def place(self, **tensors: np.ndarray) -> None:
        """Put inputs into slow memory. They were there before the algorithm began: nothing is booked."""
        for name, tensor in tensors.items():
            if not isinstance(tensor, np.ndarray) or not np.issubdtype(tensor.dtype, np.floating):
                found = getattr(tensor, "dtype", type(tensor).__name__)
                raise TypeError(f"{name} must hold floating-point numbers, got {found}")
            self.tensors[name] = tensor

    @check_arguments()
    def reserve(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Allocate a tensor in slow memory. Its NaN (0 in integers) show regions without a store. Nothing is booked."""
        self.tensors[name] = np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 0, dtype)

    def load(self, name: str, *region: Region) -> np.ndarray:
        """Copy a tile of a tensor into fast memory, where it replaces the tensor's previous tile.

        Returns the tile in the dtype of arithmetic: float32 for float16, otherwise the tensor's own.
        """
        tile = self._tensor(name)[region]
        self.book(Event("load", name, region, tile.nbytes))
        return tile.astype(np.float32 if tile.dtype == np.float16 else tile.dtype)

    def hold(self, **tiles: np.ndarray) -> None:
        """Account for tiles that were computed in fast memory. A tile replaces the previous one of its name."""
        for name, tile in tiles.items():
            self.book(Event("hold", name, (), tile.nbytes))

    def drop(self, *names: str) -> None:
        """Free the room of these tiles."""
        for name in names:
            if name not in self.resident:
                raise KeyError(f"there is no tile {name!r:.40} in fast memory")
            self.book(Event("drop", name, (), self.resident[name]))

    def store(self, name: str, tile: np.ndarray, *region: Region) -> None:
        """Write a tile to slow memory, narrowed to the tensor's dtype."""
        target = self._tensor(name)[region]
        if target.shape != tile.shape:
            raise ValueError(f"{name}: a tile of shape {tile.shape} does not fit a region of shape {target.shape}")
        target[...] = tile
        self.book(Event("store", name, region, target.nbytes))

    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Run one kernel, or one program of a kernel: it finds the fast memory empty and leaves nothing in it."""
        self.book(Event("kernel", name, (), 0))
        try:
            yield
        finally:
            self.resident.clear()

    def book(self, event: Event) -> None:
        """Check that the tile fits, apply the event, and record it."""
        if event.kind in ("load", "hold"):
            self._check_room(event.name, event.nbytes)
        super().book(event)
        self.events.append(event)
        if self.resident_bytes > self.peak_bytes:
            self.peak_bytes, self.peak = self.resident_bytes, dict(self.resident)

    def _tensor(self, name: str) -> np.ndarray:
        if name not in self.tensors:
            raise KeyError(f"there is no tensor {name!r:.40} in slow memory: place or reserve it first")
        return self.tensors[name]

    def _check_room(self, name: str, nbytes: int) -> None:
        tiles = {**self.resident, name: nbytes}
        total = sum(tiles.values())
        if self.sram_bytes is not None and total > self.sram_bytes:
            bill = " + ".join(f"{tile} {size:,}" for tile, size in tiles.items())
            raise FastMemoryFull(f"{bill} = {total:,} bytes, but the fast memory holds {self.sram_bytes:,}")
