"""The units of a multiprocessor that work beside the agents: barriers, the copy engine and the tensor cores.

A barrier is Hopper's mbarrier, in shared memory. A copy by the copy engine (TMA) lands some time after an agent issued
it. A product reads shared memory until a wait covers it, and an agent may read its sums only after that wait.
"""

import numpy as np
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashlab.kernels.gluon_interpreter.memory import View
from flashlab.kernels.gluon_interpreter.scheduler import ADD, READ, WRITE, History, me, place
from flashlab.kernels.gluon_interpreter.values import Value
from flashlab.machine import operations
from flashlab.machine.sm import Race

MBarrierLayout = mbarrier.MBarrierLayout


class Barrier(operations.Barrier):
    """A barrier that also passes on the histories of the agents that arrive."""

    def __init__(self, view, count):
        super().__init__(str(view), count)
        self.view = view  # its place; the name may come later
        self.open, self.complete = History(), History()  # of the open phase, and of the last complete one

    def arrive(self, nbytes=0):
        """Arrive, announce this many bytes, and leave the agent's history."""
        if self.pending == 0:
            raise Race(f"{me().name} arrives at {self.view}, where all arrivals of the open phase are in")
        self.open.include(me().history)
        return super().arrive(nbytes)

    def deliver(self, nbytes, history):
        """Count the bytes of a copy, and include its history."""
        self.open.include(history)
        return super().deliver(nbytes)

    def _advance(self):
        complete = super()._advance()
        if complete:
            self.complete, self.open = self.open, History()
        elif self.pending == 0 and self.pending_bytes < 0:
            raise Race(f"{self.view} gets {-self.pending_bytes:,} bytes more than it expects")
        return complete

    def __str__(self):
        missing = [f"{self.pending} of {self.count} arrivals"] if self.pending else []
        missing += [f"{self.pending_bytes:,} bytes"] if self.pending_bytes else []
        return f"{self.view}, which lacks {' and '.join(missing)}"


def init(view, count):
    """Make a barrier in its first phase."""
    view.access(WRITE, "makes")
    view.allocation.barriers[view.at] = Barrier(view, count)


def barrier_of(view, does, engine=""):
    """Return the barrier at a place in shared memory, for an access to it."""
    view.access(ADD, does, engine)
    return view.allocation.barriers[view.at]


def expect(view, nbytes, pred=True):
    """Arrive, and announce bytes that a copy will bring."""
    if pred:
        barrier_of(view, "arrives at").arrive(int(nbytes))
        me().pause()


def arrive(view, *, count=1, pred=True):
    """Arrive this many times."""
    if pred:
        barrier = barrier_of(view, "arrives at")
        for _ in range(count):
            barrier.arrive()
        me().pause()


def wait(view, phase, pred=True, deps=()):
    """Wait until the phase of this parity is complete, and include its history."""
    if pred:
        barrier, phase = barrier_of(view, "waits at"), int(phase)
        me().pause(lambda: barrier.completed(phase), Waited(barrier, phase))
        me().history.include(barrier.complete)


class Waited:
    """A phase of a barrier, as text: the reason of an agent's wait."""

    def __init__(self, barrier, phase):
        self.barrier, self.phase = barrier, phase

    def __str__(self):
        return f"phase {self.phase} of {self.barrier}"


class Load:
    """A tile on its way from global to shared memory."""

    before = None  # it waits for no other copy

    def __init__(self, tile, to, barrier):
        self.tile, self.to, self.barrier = tile, to, barrier
        self.history = me().history.copy()  # of the copy, for those who wait for it
        for number in (
            tile.access(READ, "has the copy engine read"),
            to.access(WRITE, "has the copy engine write", "copies"),
        ):
            self.history.before |= 1 << number

    def land(self):
        """Write the tile, and deliver its bytes."""
        self.to.write(self.tile.read())
        self.barrier.deliver(self.to.nbytes, self.history)


class Store:
    """A tile on its way from shared to global memory. The stores of one agent land in order."""

    def __init__(self, tile, source):
        self.tile, self.source, self.agent = tile, source, me()
        self.before = self.agent.stores[-1] if self.agent.stores else None
        self.landed = False
        self.read = source.access(READ, "has the copy engine read", "stores")
        tile.access(WRITE, "has the copy engine write")

    def land(self):
        """Write the tile where it belongs."""
        self.tile.write(self.source.read())
        self.landed = True


def async_copy_global_to_shared(tensor_desc, coord, barrier, result, pred=True, multicast=False):
    """Copy the tile at these coordinates, with zeros past the tensor's end; its bytes arrive at the barrier."""
    if not pred:
        return
    tile = tensor_desc.tile(coord)
    if result.shape != tensor_desc.block_shape:
        raise ValueError(f"{result} {result.shape} cannot hold a tile {tensor_desc.block_shape}")
    at = barrier_of(barrier, "has the copy engine arrive at", "copies")
    me().run.flights.append(Load(tile, result, at))


def async_copy_shared_to_global(tensor_desc, coord, src):
    """Copy a tile to these coordinates, except for its part past the tensor's end."""
    if src.shape != tensor_desc.block_shape:
        raise ValueError(f"{src} {src.shape} is no tile {tensor_desc.block_shape}")
    store = Store(tensor_desc.tile(coord), src)
    me().stores.append(store)
    me().run.flights.append(store)


def store_wait(pendings):
    """Wait until at most this many of the agent's stores still read shared memory."""
    agent = me()
    awaited = agent.stores[: max(len(agent.stores) - pendings, 0)]
    agent.pause(lambda: all(store.landed for store in awaited), "its copies to global memory")
    for store in awaited:
        agent.record(store.read)
        agent.stores.remove(store)


class Sums(Value):
    """The sums of a product that was issued. They can be read from the ``Result`` that a wait returns for them."""

    def __init__(self, a, b, begin, layout):
        self.a, self.b, self.begin, self.dtype, self._layout = a, b, begin, gl.float32, layout
        self.reads = [x.access(READ, "has the tensor cores read", "products") for x in (a, b) if isinstance(x, View)]
        self.size, self.agent, self.sums = [a.shape[0], b.shape[1]], me(), None

    @property
    def shape(self):
        return self.size

    @property
    def data(self):
        self.check_complete()
        raise TypeError(
            f"{me().name} reads the sums of a product{place()} that no warpgroup_mma_wait has returned: name them in "
            "its deps, and read what it returns"
        )

    def check_complete(self):
        """Raise Race unless a wait has covered the product."""
        if self.sums is None:
            raise Race(f"{me().name} reads the sums of a product{place()} before a warpgroup_mma_wait has covered it")

    def finish(self):
        """Compute the sums, and record that the operands are read."""
        A, B = (x.read() if isinstance(x, View) else x.data for x in (self.a, self.b))
        self.sums = A.astype(np.float32) @ B.astype(np.float32)
        if self.begin is not None:
            self.sums += self.begin.sums if isinstance(self.begin, Sums) else self.begin.data
        for number in self.reads:
            self.agent.record(number)
        self.a = self.b = self.begin = None


class Result(Value):
    """What a wait returns for the sums of a product: the tile, if the wait covers the product."""

    def __init__(self, of):
        self.of, self.dtype, self._layout = of, of.dtype, of._layout

    @property
    def shape(self):
        return self.of.shape

    @property
    def data(self):
        self.of.check_complete()
        return self.of.sums


def warpgroup_mma(a, b, acc, *, use_acc=True, precision=None, max_num_imprecise_acc=None, is_async=False):
    """Issue acc + a b, and wait for it unless it is asynchronous."""
    if a.shape[1] != b.shape[0] or list(acc.shape) != [a.shape[0], b.shape[1]]:
        raise ValueError(f"no product of {a.shape} and {b.shape} has the shape {acc.shape}")
    sums = Sums(a, b, acc if use_acc else None, acc._layout)
    me().products.append(sums)
    return sums if is_async else warpgroup_mma_wait(0, (sums,))


def warpgroup_mma_wait(num_outstanding=0, deps=None):
    """Wait until at most this many products are under way, and return ``deps``, a single one without its tuple."""
    products = me().products
    while len(products) > num_outstanding:
        products.pop(0).finish()
    results = tuple(Result(x) if isinstance(x, Sums) else x for x in deps or ())
    return results[0] if len(results) == 1 else results
