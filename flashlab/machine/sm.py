"""One streaming multiprocessor (SM) as its programs see it: barriers, and units that work by themselves.

A program is a generator that yields operations. The copy engine, the tensor core and the vector units carry them out on
real arrays, and each takes its cycles of a simulated clock; a program learns at a barrier what is done. Programs that
agree on a wrong phase meet what they would meet on the chip: a ``Deadlock``, or a ``Race``.

On Hopper a product's result is in the registers of the program that asked for it. On Blackwell it is in tensor memory,
a buffer to which every program has access: ``into``, ``Take`` and ``Put``; and ``Commit`` has a barrier tell that
products are done.

Source: NVIDIA, PTX ISA, sections "mbarrier" (count, pending bytes, phase), "wgmma", "cp.async.bulk.tensor", "tcgen05".
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Deadlock(RuntimeError):
    """All programs wait, and nothing is under way that could wake one."""


class Race(RuntimeError):
    """A tile is read too early or overwritten while it is read, or a phase gets more arrivals than it expects."""


class Tile(NamedTuple):
    """The content of a buffer: block j of a tensor, for step g or, of Q, for several steps."""

    name: str  # Q, K, V; in tensor memory S, P, O
    j: int
    g: int | None = None

    def __str__(self):
        return f"{self.name}_{self.j}" + ("" if self.g is None else f" of step {self.g}")


class Buffer:
    """Room for one tile in shared memory or tensor memory. It holds NaN until something arrives."""

    def __init__(self, name, shape, dtype):
        self.name, self.array = name, np.full(shape, np.nan, dtype)
        self.holds = self.coming = None  # the tile that is here, and the one that is being copied here
        self.readers = []  # who asked for the products that read it now

    @property
    def nbytes(self):
        return self.array.nbytes


class Barrier:
    """Hopper's mbarrier: a phase is complete when ``count`` have arrived and all expected bytes are there.

    Only the parity of the phase can be seen, ``phase``: it is 0 while the first phase is open, 1 during the second,
    then 0 again. To wait for a phase of parity p is to wait until the open phase has the other parity.
    """

    def __init__(self, name, count):
        self.name, self.count, self.phase = name, count, 0
        self.pending, self.pending_bytes = count, 0

    def completed(self, phase) -> bool:
        """Return whether the last completed phase has this parity. Before any is complete, that parity is 1."""
        return self.phase != phase

    def arrive(self, nbytes=0) -> bool:
        """Arrive, and announce so many bytes. Return whether this completes the phase."""
        self.pending, self.pending_bytes = self.pending - 1, self.pending_bytes + nbytes
        return self._advance()

    def deliver(self, nbytes) -> bool:
        """Take in so many bytes. Return whether this completes the phase."""
        self.pending_bytes -= nbytes
        return self._advance()

    def _advance(self):
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
    """Have the copy engine bring a tile into a buffer and deliver its bytes at a barrier, without waiting."""

    tile: Tile
    array: np.ndarray
    buffer: Buffer
    barrier: Barrier
    cycles: int


class Product(NamedTuple):
    """Have the tensor core compute function(*arrays of the buffers), in so many instructions, without waiting.

    The yield returns a ``Job``, which has a ``result`` once it is done.
    """

    kind: str
    j: int
    reads: dict[Buffer, Tile]  # the tile that each buffer should hold
    function: Callable
    instructions: int
    cycles: int  # of one instruction
    into: tuple[Buffer, Tile] | None = None  # where the result goes in tensor memory, and the tile that it is


class Commit(NamedTuple):
    """Have the tensor core arrive at a barrier once all products are done that the program has asked for so far."""

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
    """Go on when at most ``left`` of one's own products are not done."""

    left: int


class Work(NamedTuple):
    """Compute on the vector units and, if asked for, on the exponential unit beside them; go on when both are done."""

    kind: str
    j: int
    cycles: int
    exponentials: int = 0  # cycles of the exponential unit, where it is counted apart from the vector units


class Store(NamedTuple):
    """Have the copy engine carry a tile of results away, without waiting."""

    kind: str
    j: int
    cycles: int


class Event(NamedTuple):
    """Something that took place from cycle ``start`` to cycle ``end``."""

    start: int
    end: int
    unit: str  # copy engine, tensor core, vector units, exponential unit, barrier, or the name of a program that waits
    by: str  # the program that asked for it
    kind: str  # Q K V O, S PV, softmax rescale; full[0] and such, where a phase is waited for or complete
    j: int  # the block; for a barrier the phase
    g: int | None = None  # the step that a copy is for
    where: str = ""  # the buffer that is filled, those that are read


class Job:
    """Work that a unit does: so many cycles of it are left, and ``done`` is called at the end."""

    def __init__(self, cycles, done, *about):
        self.left, self.done, self.about = cycles, done, about  # about: what its event will say
        self.start = self._result = None

    @property
    def result(self):
        """Return what the job computed. Raises Race while it is under way."""
        if self.left:
            raise Race(
                f"the result of {self.about[2]} of block {self.about[3]} is read before a Finish has waited for it"
            )
        return self._result


class Unit:
    """A part of the SM that works on jobs, one after the other, in the order in which they are asked for.

    Vector units give each program a ``slice`` of so many cycles at a time: two programs that compute share them.
    """

    def __init__(self, sm, slice=None):
        self.sm, self.slice = sm, slice
        self.queue, self.working, self.busy = deque(), False, 0

    def add(self, job, cycles=None):
        """Ask for this many cycles of the job, or for all that are left."""
        self.queue.append((job, min(cycles or job.left, self.slice or job.left)))
        if not self.working:
            self._next()

    def _next(self):
        self.working = bool(self.queue)
        if self.working:
            job, cycles = self.queue.popleft()
            job.start = self.sm.now if job.start is None else job.start
            self.busy += cycles
            self.sm.after(cycles, self._done, job, cycles)

    def _done(self, job, cycles):
        job.left -= cycles
        if job.left == 0:
            self.sm.events.append(Event(job.start, self.sm.now, *job.about))
            job.done(job)
        elif self.slice:
            self.add(job)
        self._next()


class SM:
    """Run programs until all have ended.

    Args:
        latency: cycles from the copy engine's last byte until a barrier knows of it.
        issue: cycles between two instructions that a program sends to the tensor core.
        strict: raise ``Race``; if False, go on with what the buffer holds, and note the sentence in ``races``.

    Attributes:
        now: the clock, in cycles; events: list of ``Event`` in the order in which they ended.
    """

    def __init__(self, latency=0, issue=1, strict=True):
        self.now, self.latency, self.issue, self.strict = 0, latency, issue, strict
        self.events, self.races = [], []
        self.copy_engine, self.tensor_core, self.vector_units = Unit(self), Unit(self), Unit(self, slice=16)
        self.exponential_unit = Unit(self, slice=16)
        self._agenda, self._count = [], 0  # heap of (cycle, number, action, arguments)
        self._waiting = {}  # by program: the barrier and phase, or the number of products, and since when
        self._products = {}  # by program: those that are not done
        self._commits = []  # (products that are not done, barrier)

    def run(self, programs):
        """Run generators, in a dict by name, to their ends."""
        for name, program in programs.items():
            if not hasattr(program, "send"):
                raise TypeError(f"{name} is no generator: its function must yield its operations")
        self._programs = programs
        self._products = {name: [] for name in programs}
        for name in programs:
            self.after(0, self._go, name)
        while self._agenda:
            self.now, _, action, arguments = heapq.heappop(self._agenda)
            action(*arguments)
        if self._programs:
            waits = [f"{name} for phase {number} of {what}" for name, (_, what, number, _) in self._waiting.items()]
            raise Deadlock(f"at cycle {self.now:,} nothing is under way and all wait: {', '.join(sorted(waits))}")

    def after(self, cycles, action, *arguments):
        """Put an action on the agenda."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now + cycles, self._count, action, arguments))

    def _go(self, name, value=None):
        """Let a program yield its next operation, and begin it."""
        try:
            operation = self._programs[name].send(value)
        except StopIteration:
            del self._programs[name]
            return
        if not isinstance(operation, Wait | Arrive | Copy | Product | Commit | Take | Put | Finish | Work | Store):
            raise TypeError(f"{name} yields {operation!r:.60}, which is no operation such as Wait or Arrive")
        getattr(self, f"_{type(operation).__name__.lower()}")(name, operation)

    def _wait(self, name, wait):
        self._block(name, lambda: wait.barrier.completed(wait.phase), wait.barrier.name, wait.phase)

    def _finish(self, name, finish):
        self._block(name, lambda: len(self._products[name]) <= finish.left, "products", finish.left)

    def _block(self, name, ready, what, number):
        self._waiting[name] = ready, what, number, self.now
        self._wake()

    def _wake(self):
        for name, (ready, what, number, since) in list(self._waiting.items()):
            if ready():
                del self._waiting[name]
                if self.now > since:
                    self.events.append(Event(since, self.now, name, name, what, number))
                self.after(0, self._go, name)

    def _arrive(self, name, arrive):
        if arrive.barrier.pending == 0:
            self._race(f"{name} arrives at {arrive.barrier.name}, but all arrivals of the open phase are in")
        self._complete(arrive.barrier, arrive.barrier.arrive(arrive.nbytes))
        self.after(0, self._go, name)

    def _complete(self, barrier, completed):
        if completed:
            self.events.append(Event(self.now, self.now, "barrier", "", barrier.name, barrier.phase))
            self._wake()

    def _copy(self, name, copy):
        tile, buffer = copy.tile, copy.buffer
        for reader in buffer.readers:
            self._race(f"{name} has {tile} copied into {buffer.name} while {reader} reads {buffer.holds} there")
        buffer.coming = tile
        about = "copy engine", name, tile.name, tile.j, tile.g, buffer.name
        self.copy_engine.add(Job(copy.cycles, lambda _: self.after(self.latency, self._deliver, copy), *about))
        self.after(0, self._go, name)

    def _deliver(self, copy):
        buffer, rows = copy.buffer, len(copy.array)
        buffer.array[:rows] = copy.array
        buffer.array[rows:] = 0
        buffer.holds = copy.tile
        if buffer.coming == copy.tile:
            buffer.coming = None
        self._complete(copy.barrier, copy.barrier.deliver(buffer.nbytes))

    def _product(self, name, product):
        for buffer, tile in product.reads.items():
            self._check(name, tile, buffer)
            buffer.readers.append(name)
        if product.into:
            self._claim(name, *product.into)
        about = "tensor core", name, product.kind, product.j, None, " ".join(buffer.name for buffer in product.reads)
        job = Job(product.instructions * product.cycles, lambda job: self._produced(name, job, product), *about)
        self._products[name].append(job)
        for k in range(product.instructions):
            self.after(k * self.issue, self.tensor_core.add, job, product.cycles)
        self.after(product.instructions * self.issue, self._go, name, job)

    def _check(self, name, tile, buffer):
        if buffer.coming or buffer.holds != tile:
            there = f"{buffer.coming} is on its way" if buffer.coming else f"it holds {buffer.holds or 'nothing'}"
            self._race(f"{name} wants {tile} from {buffer.name}, but {there}")

    def _claim(self, name, buffer, tile):
        """Announce a result; the tensor core works in order, so the program's own products have read by then."""
        for reader in set(buffer.readers) - {name}:
            self._race(f"{name} has {tile} written to {buffer.name} while {reader} reads {buffer.holds} there")
        buffer.coming = tile

    def _produced(self, name, job, product):
        job._result = product.function(*(buffer.array for buffer in product.reads))
        for buffer in product.reads:
            buffer.readers.remove(name)
        if product.into:
            self._hold(*product.into, job._result)
        self._products[name].remove(job)
        for jobs, barrier in self._commits:
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    self._complete(barrier, barrier.arrive())
        self._commits = [(jobs, barrier) for jobs, barrier in self._commits if jobs]
        self._wake()

    def _hold(self, buffer, tile, array):
        buffer.array, buffer.holds = array, tile
        if buffer.coming == tile:
            buffer.coming = None

    def _commit(self, name, commit):
        jobs = list(self._products[name])
        if jobs:
            self._commits.append((jobs, commit.barrier))
        else:
            self._complete(commit.barrier, commit.barrier.arrive())
        self.after(0, self._go, name)

    def _take(self, name, take):
        self._check(name, take.tile, take.buffer)
        self.after(0, self._go, name, take.buffer.array.copy())

    def _put(self, name, put):
        buffer = put.buffer
        for reader in buffer.readers:
            self._race(f"{name} writes {put.tile} to {buffer.name} while {reader} reads {buffer.holds} there")
        if buffer.coming:
            self._race(f"{name} writes {put.tile} to {buffer.name} while {buffer.coming} is on its way")
        self._hold(buffer, put.tile, put.array)
        self.after(0, self._go, name)

    def _race(self, sentence):
        sentence = f"at cycle {self.now:,} {sentence}"
        if self.strict:
            raise Race(sentence)
        self.races.append(sentence)

    def _work(self, name, work):
        units = {"vector units": (self.vector_units, work.cycles)}
        if work.exponentials:
            units["exponential unit"] = self.exponential_unit, work.exponentials
        under_way = list(units)

        def done(job):
            under_way.remove(job.about[0])
            if not under_way:
                self._go(name)

        for unit, (works, cycles) in units.items():
            works.add(Job(cycles, done, unit, name, work.kind, work.j))

    def _store(self, name, store):
        job = Job(store.cycles, lambda _: None, "copy engine", name, store.kind, store.j)
        self.copy_engine.add(job)
        self.after(0, self._go, name)
