"""Copies by the copy engine (TMA): an agent asks for one, and it lands some time later."""

from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.barriers import barrier_of
from flashlab.kernels.gluon_interpreter.knowledge import READ, WRITE


class Load:
    """A tile on its way from global to shared memory."""

    before = None  # it waits for no other copy

    def __init__(self, tile, to, barrier):
        self.tile, self.to, self.barrier = tile, to, barrier
        self.knowledge = me().knowledge.copy()  # what is known of the copy where it has arrived
        for number in (
            tile.access(READ, "has the copy engine read"),
            to.access(WRITE, "has the copy engine write", "copies"),
        ):
            self.knowledge.known |= 1 << number

    def land(self):
        """Write the tile, and deliver its bytes."""
        self.to.write(self.tile.read())
        self.barrier.deliver(self.to.nbytes, self.knowledge)


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
    """Ask for the tile at these coordinates, zeros past the tensor's end; its bytes arrive at the barrier."""
    if not pred:
        return
    tile = tensor_desc.tile(coord)
    if result.shape != tensor_desc.block_shape:
        raise ValueError(f"{result} {result.shape} cannot hold a tile {tensor_desc.block_shape}")
    at = barrier_of(barrier, "has the copy engine arrive at", "copies")
    me().run.flights.append(Load(tile, result, at))


def async_copy_shared_to_global(tensor_desc, coord, src):
    """Have a tile carried to these coordinates; what is past the tensor's end is not written."""
    if src.shape != tensor_desc.block_shape:
        raise ValueError(f"{src} {src.shape} is no tile {tensor_desc.block_shape}")
    store = Store(tensor_desc.tile(coord), src)
    me().stores.append(store)
    me().run.flights.append(store)


def store_wait(pendings):
    """Wait until at most so many of the agent's tiles are still being read from shared memory."""
    agent = me()
    awaited = agent.stores[: max(len(agent.stores) - pendings, 0)]
    agent.pause(lambda: all(store.landed for store in awaited), "its copies to global memory")
    for store in awaited:
        agent.know(store.read)
        agent.stores.remove(store)
