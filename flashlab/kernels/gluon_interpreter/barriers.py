"""Barriers: Hopper's mbarrier, which is in shared memory, and what agents do with it."""

from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashlab.kernels.gluon_interpreter.agents import me
from flashlab.kernels.gluon_interpreter.knowledge import ADD, WRITE, Knowledge
from flashlab.machine import operations
from flashlab.machine.sm import Race

MBarrierLayout = mbarrier.MBarrierLayout


class Barrier(operations.Barrier):
    """A barrier that also hands on what the arriving agents know."""

    def __init__(self, view, count):
        super().__init__(str(view), count)
        self.left, self.told = Knowledge(), Knowledge()  # in the open phase, and in the last one that is complete

    def arrive(self, nbytes=0):
        """Arrive, announce so many bytes, and leave what the agent knows."""
        if self.pending == 0:
            raise Race(f"{me().name} arrives at {self.name}, where all arrivals of the open phase are in")
        self.left.learn(me().knowledge)
        return super().arrive(nbytes)

    def deliver(self, nbytes, knowledge):
        """Take in bytes that a copy brought, and what was known of it."""
        self.left.learn(knowledge)
        return super().deliver(nbytes)

    def _advance(self):
        complete = super()._advance()
        if complete:
            self.told, self.left = self.left, Knowledge()
        elif self.pending == 0 and self.pending_bytes < 0:
            raise Race(f"{self.name} gets {-self.pending_bytes:,} bytes more than it expects")
        return complete

    def __str__(self):
        missing = [f"{self.pending} of {self.count} arrivals"] if self.pending else []
        missing += [f"{self.pending_bytes:,} bytes"] if self.pending_bytes else []
        return f"{self.name}, which lacks {' and '.join(missing)}"


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
    """Arrive so many times."""
    if pred:
        barrier = barrier_of(view, "arrives at")
        for _ in range(count):
            barrier.arrive()
        me().pause()


def wait(view, phase, pred=True, deps=()):
    """Wait until the phase of this parity is complete, and learn what was left there."""
    if pred:
        barrier, phase = barrier_of(view, "waits at"), int(phase)
        me().pause(lambda: barrier.completed(phase), Waited(barrier, phase))
        me().knowledge.learn(barrier.told)


class Waited:
    """What an agent waits for, in words."""

    def __init__(self, barrier, phase):
        self.barrier, self.phase = barrier, phase

    def __str__(self):
        return f"phase {self.phase} of {self.barrier}"
