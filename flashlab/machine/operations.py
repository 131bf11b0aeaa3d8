"""The operations that a program of a simulated SM yields, and the tiles, buffers and barriers that they name.

On Hopper the result of a product is in the registers of the program that issued it. On Blackwell it is in tensor
memory, in a buffer that every program can access (``into``, ``Take``, ``Put``), and ``Commit`` makes finished products
arrive at a barrier.

Source: NVIDIA, PTX ISA, sections "mbarrier" (count, pending bytes, phase), "wgmma", "cp.async.bulk.tensor", "tcgen05".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments


class Tile(NamedTuple):
    """The content of a buffer: block j of a tensor. g: the step that uses it, if only one does."""

    name: str  # Q, K, V; in tensor memory S, P, O
    j: int
    g: int | None = None

    def __str__(self) -> str:
        return f"{self.name}_{self.j}" + ("" if self.g is None else f" of step {self.g}")


class Buffer:
    """Room for one tile in shared memory or tensor memory. It holds NaN until something arrives."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.name, self.array = name, np.full(shape, np.nan, dtype)
        self.holds: Tile | None = None  # the tile that is here
        self.coming: Tile | None = None  # the tile that is on its way here
        self.readers = []  # the programs whose products are reading it

    @property
    def nbytes(self) -> int:
        """Return the size of the buffer."""
        return self.array.nbytes


class Barrier:
    """Hopper's mbarrier: a phase is complete after ``count`` arrivals, when all expected bytes are there.

    Programs see only ``phase``, the parity of the open phase: 0 while the first phase is open, 1 during the second,
    then 0 again. To wait for a phase of parity p is to wait until the open phase has the other parity.
    """

    @check_arguments()
    def __init__(self, name: str, count: int) -> None:
        self.name, self.count, self.phase = name, count, 0
        self.pending, self.pending_bytes = count, 0

    def completed(self, phase: int) -> bool:
        """Return whether the last completed phase has this parity. Before the first, that parity is 1."""
        return self.phase != phase

    def arrive(self, nbytes: int = 0) -> bool:
        """Arrive, and expect ``nbytes`` more bytes. Return whether this completes the phase."""
        self.pending, self.pending_bytes = self.pending - 1, self.pending_bytes + nbytes
        return self._advance()

    def deliver(self, nbytes: int) -> bool:
        """Deliver ``nbytes`` of the expected bytes. Return whether this completes the phase."""
        self.pending_bytes -= nbytes
        return self._advance()

    def _advance(self) -> bool:
        complete = self.pending == 0 and self.pending_bytes == 0
        if complete:
            self.phase, self.pending = self.phase ^ 1, self.count
        return complete


class Wait(NamedTuple):
    """Go on when the phase of this parity is complete."""

    barrier: Barrier
    phase: int


class Arrive(NamedTuple):
    """Arrive at a barrier, and announce bytes that must come before its phase is complete."""

    barrier: Barrier
    nbytes: int = 0


class Copy(NamedTuple):
    """Have the copy engine copy a tile into a buffer asynchronously, and deliver its bytes at a barrier."""

    tile: Tile
    array: np.ndarray
    buffer: Buffer
    barrier: Barrier
    cycles: int


class Product(NamedTuple):
    """Have the tensor core compute function(*arrays of the buffers) asynchronously, in ``instructions`` instructions.

    The yield returns a ``Job``, which has a ``result`` once it is done.
    """

    kind: str
    j: int
    reads: dict[Buffer, Tile]  # the tile that each buffer should hold
    function: Callable
    instructions: int
    cycles: int  # of one instruction
    into: tuple[Buffer, Tile] | None = None  # the buffer in tensor memory that gets the result, and its tile


class Commit(NamedTuple):
    """Have the tensor core arrive at a barrier after all products that the program has issued so far."""

    barrier: Barrier


class Take(NamedTuple):
    """Read a tile from tensor memory. The yield returns a copy of its array."""

    tile: Tile
    buffer: Buffer


class Put(NamedTuple):
    """Write a tile to tensor memory."""

    tile: Tile
    array: np.ndarray
    buffer: Buffer


class Finish(NamedTuple):
    """Go on when at most ``left`` products of this program are not done."""

    left: int


class Work(NamedTuple):
    """Compute on the vector units and, in parallel, on the exponential unit; go on when both are done."""

    kind: str
    j: int
    cycles: int
    exponentials: int = 0  # cycles of the exponential unit, where it is counted apart from the vector units


class Store(NamedTuple):
    """Have the copy engine store a tile of results asynchronously."""

    kind: str
    j: int
    cycles: int
