"""One streaming multiprocessor (SM): it runs programs, and its units work asynchronously on a simulated clock.

A program is a generator that yields ``operations``. The copy engine, the tensor core and the vector units carry them
out on real arrays, and each takes its cycles; barriers tell the programs which work is done. Where programs disagree
about a phase, the chip would hang or compute wrong numbers; here they raise ``Deadlock`` or ``Race``.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.machine.operations import (
    Arrive,
    Barrier,
    Buffer,
    Commit,
    Copy,
    Finish,
    Product,
    Put,
    Store,
    Take,
    Tile,
    Wait,
    Work,
)


class Deadlock(RuntimeError):
    """All programs wait, and nothing is under way that could wake one."""


class Race(RuntimeError):
    """A tile is read too early or overwritten while it is read, or a phase gets more arrivals than it expects."""


class Event(NamedTuple):
    """Something that took place from cycle ``start`` to cycle ``end``."""

    start: int
    end: int
    unit: str  # copy engine, tensor core, vector units, exponential unit, barrier, or the name of a program that waits
    by: str  # the program that issued it
    kind: str  # Q K V O, S PV, softmax rescale; of a wait or a completion the barrier, such as full[0], or "products"
    j: int  # the block; the phase that is awaited, or that a completion opens; of "products", how many may be left
    g: int | None = None  # the step that a copy is for
    where: str = ""  # the buffer that a copy fills, or those that a product reads


class Job:
    """Work of a unit: ``left`` cycles remain, and ``done`` is called at the end."""

    def __init__(self, cycles: int, done: "Callable[[Job], object]", *about: Any) -> None:
        self.left, self.done, self.about = cycles, done, about  # about: the fields of its event
        self.start: Any = None  # an int once it has begun
        self._result: Any = None

    @property
    def result(self) -> Any:
        """Return what the job computed. Raises Race while it is under way."""
        if self.left:
            raise Race(
                f"the result of {self.about[2]} of block {self.about[3]} is read before a Finish has waited for it"
            )
        return self._result


class Unit:
    """A part of the SM that processes jobs one after the other, in the order of their arrival.

    A unit with a ``slice`` processes at most so many cycles of a job, then the next job: programs share the unit.
    """

    def __init__(self, sm: "SM", slice: int | None = None) -> None:
        self.sm, self.slice = sm, slice
        self.queue, self.working, self.busy = deque(), False, 0

    def add(self, job: Job, cycles: int | None = None) -> None:
        """Queue this many cycles of the job, or all that are left; at most a slice."""
        self.queue.append((job, min(job.left if limit is None else limit for limit in (cycles, self.slice))))
        if not self.working:
            self._next()

    def _next(self) -> None:
        self.working = bool(self.queue)
        if self.working:
            job, cycles = self.queue.popleft()
            job.start = self.sm.now if job.start is None else job.start
            self.busy += cycles
            self.sm.after(cycles, self._done, job, cycles)

    def _done(self, job: Job, cycles: int) -> None:
        job.left -= cycles
        if job.left == 0:
            self.sm.events.append(Event(job.start, self.sm.now, *job.about))
            job.done(job)
        elif self.slice is not None:
            self.add(job)
        self._next()


class SM:
    """Run programs until all have ended.

    Args:
        latency: cycles between the copy engine's last byte and its arrival at the barrier.
        issue: cycles between two instructions that a program sends to the tensor core.
        strict: raise ``Race``; if False, go on with what the buffer holds, and append the message to ``races``.

    Attributes:
        now: the clock, in cycles; events: list of ``Event`` in the order in which they ended.
    """

    @check_arguments(latency=0, issue=0)
    def __init__(self, latency: int = 0, issue: int = 1, strict: bool = True) -> None:
        self.now, self.latency, self.issue, self.strict = 0, latency, issue, strict
        self.events, self.races = [], []
        self.copy_engine, self.tensor_core, self.vector_units = Unit(self), Unit(self), Unit(self, slice=16)
        self.exponential_unit = Unit(self, slice=16)
        self._agenda, self._count = [], 0  # heap of (cycle, number, action, arguments)
        self._waiting = {}  # by program: (may it go on?, barrier or "products", phase or number, since which cycle)
        self._products = {}  # by program: its products that are not done
        self._commits = []  # (products that are not done, barrier)

    @check_arguments()
    def run(self, programs: dict[str, Iterator[object]]) -> None:
        """Run generators, in a dict by name, to their ends."""
        for name, program in programs.items():
            if not hasattr(program, "send"):
                raise TypeError(f"{name} is no generator: its function must yield its operations")
        self._programs: dict[str, Any] = programs
        self._products = {name: [] for name in programs}
        for name in programs:
            self.after(0, self._go, name)
        while self._agenda:
            self.now, _, action, arguments = heapq.heappop(self._agenda)
            action(*arguments)
        if self._programs:
            waits = [f"{name} for phase {number} of {what}" for name, (_, what, number, _) in self._waiting.items()]
            raise Deadlock(f"at cycle {self.now:,} nothing is under way and all wait: {', '.join(sorted(waits))}")

    def after(self, cycles: int, action: Callable, *arguments: object) -> None:
        """Run an action so many cycles from now."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now + cycles, self._count, action, arguments))

    def _go(self, name: str, value: object = None) -> None:
        """Let a program yield its next operation, and begin it."""
        try:
            operation = self._programs[name].send(value)
        except StopIteration:
            del self._programs[name]
            return
        if not isinstance(operation, Wait | Arrive | Copy | Product | Commit | Take | Put | Finish | Work | Store):
            raise TypeError(f"{name} yields {operation!r:.60}, which is no operation such as Wait or Arrive")
        getattr(self, f"_{type(operation).__name__.lower()}")(name, operation)

    def _wait(self, name: str, wait: Wait) -> None:
        self._block(name, lambda: wait.barrier.completed(wait.phase), wait.barrier.name, wait.phase)

    def _finish(self, name: str, finish: Finish) -> None:
        self._block(name, lambda: len(self._products[name]) <= finish.left, "products", finish.left)

    def _block(self, name: str, ready: Callable[[], bool], what: str, number: int) -> None:
        self._waiting[name] = ready, what, number, self.now
        self._wake()

    def _wake(self) -> None:
        for name, (ready, what, number, since) in list(self._waiting.items()):
            if ready():
                del self._waiting[name]
                if self.now > since:
                    self.events.append(Event(since, self.now, name, name, what, number))
                self.after(0, self._go, name)

    def _arrive(self, name: str, arrive: Arrive) -> None:
        if arrive.barrier.pending == 0:
            self._race(f"{name} arrives at {arrive.barrier.name}, but all arrivals of the open phase are in")
        self._complete(arrive.barrier, arrive.barrier.arrive(arrive.nbytes))
        self.after(0, self._go, name)

    def _complete(self, barrier: Barrier, completed: bool) -> None:
        if completed:
            self.events.append(Event(self.now, self.now, "barrier", "", barrier.name, barrier.phase))
            self._wake()

    def _copy(self, name: str, copy: Copy) -> None:
        tile, buffer = copy.tile, copy.buffer
        for reader in buffer.readers:
            self._race(f"{name} has {tile} copied into {buffer.name} while {reader} reads {buffer.holds} there")
        buffer.coming = tile
        about = "copy engine", name, tile.name, tile.j, tile.g, buffer.name
        self.copy_engine.add(Job(copy.cycles, lambda _: self.after(self.latency, self._deliver, copy), *about))
        self.after(0, self._go, name)

    def _deliver(self, copy: Copy) -> None:
        buffer, rows = copy.buffer, len(copy.array)
        buffer.array[:rows] = copy.array
        buffer.array[rows:] = 0
        buffer.holds = copy.tile
        if buffer.coming == copy.tile:
            buffer.coming = None
        self._complete(copy.barrier, copy.barrier.deliver(buffer.nbytes))

    def _product(self, name: str, product: Product) -> None:
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

    def _check(self, name: str, tile: Tile, buffer: Buffer) -> None:
        if buffer.coming or buffer.holds != tile:
            there = f"{buffer.coming} is on its way" if buffer.coming else f"it holds {buffer.holds or 'nothing'}"
            self._race(f"{name} wants {tile} from {buffer.name}, but {there}")

    def _claim(self, name: str, buffer: Buffer, tile: Tile) -> None:
        """Announce a result. Earlier products of the same program need no check: the tensor core works in order."""
        for reader in set(buffer.readers) - {name}:
            self._race(f"{name} has {tile} written to {buffer.name} while {reader} reads {buffer.holds} there")
        buffer.coming = tile

    def _produced(self, name: str, job: Job, product: Product) -> None:
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

    def _hold(self, buffer: Buffer, tile: Tile, array: np.ndarray) -> None:
        buffer.array, buffer.holds = array, tile
        if buffer.coming == tile:
            buffer.coming = None

    def _commit(self, name: str, commit: Commit) -> None:
        jobs = list(self._products[name])
        if jobs:
            self._commits.append((jobs, commit.barrier))
        else:
            self._complete(commit.barrier, commit.barrier.arrive())
        self.after(0, self._go, name)

    def _take(self, name: str, take: Take) -> None:
        self._check(name, take.tile, take.buffer)
        self.after(0, self._go, name, take.buffer.array.copy())

    def _put(self, name: str, put: Put) -> None:
        buffer = put.buffer
        for reader in buffer.readers:
            self._race(f"{name} writes {put.tile} to {buffer.name} while {reader} reads {buffer.holds} there")
        if buffer.coming:
            self._race(f"{name} writes {put.tile} to {buffer.name} while {buffer.coming} is on its way")
        self._hold(buffer, put.tile, put.array)
        self.after(0, self._go, name)

    def _race(self, message: str) -> None:
        message = f"at cycle {self.now:,} {message}"
        if self.strict:
            raise Race(message)
        self.races.append(message)

    def _work(self, name: str, work: Work) -> None:
        units = {"vector units": (self.vector_units, work.cycles)}
        if work.exponentials:
            units["exponential unit"] = self.exponential_unit, work.exponentials
        under_way = list(units)

        def done(job: Job) -> None:
            under_way.remove(job.about[0])
            if not under_way:
                self._go(name)

        for unit, (works, cycles) in units.items():
            works.add(Job(cycles, done, unit, name, work.kind, work.j))

    def _store(self, name: str, store: Store) -> None:
        job = Job(store.cycles, lambda _: None, "copy engine", name, store.kind, store.j)
        self.copy_engine.add(job)
        self.after(0, self._go, name)
