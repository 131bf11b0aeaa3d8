"""Stages of shared memory and turns of programs: which role may go on, and when.

A ring of buffers, its stages, is filled and emptied in turn. Step g uses stage g % stages, and is the
(g // stages)-th to use it, counted from 0. Two barriers guard each stage: ``full`` completes a phase when the bytes of
a step have arrived, ``empty`` when all readers have released them. A barrier knows only the parity of its phase.

In the backward kernel, the next free program takes the next tile of keys, a turn. There are as many programs as the GPU
has multiprocessors. ``place_of`` gives the tile of a turn, and a counter in global memory holds the next turn.
The producer takes a turn as soon as it has issued all copies of the previous one, so that no role waits for the
counter, and issues the first copies while the consumers finish the previous turn. The other roles read the turn from
shared memory when K has arrived.

A program may wait until earlier turns have ended (``sums``). There is no deadlock, because turns are taken in order and
each program processes its turns in order: the earliest turn that has not ended is under way and waits for no other.
Program ids in place of turns would not work: CUDA promises no order in which programs start.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def stage_of(ring, g):
    """Return the buffer, or the barrier, of step g."""
    return ring.index(g % ring.shape[0])


@gluon.jit
def matrix(buffer):
    """Return a buffer [1, 1, rows, columns] as [rows, columns]."""
    return buffer.reshape([buffer.shape[2], buffer.shape[3]])


@gluon.jit
def new_barriers(count: gl.constexpr, arrivals: gl.constexpr):
    """Return a ring of ``count`` new barriers. A phase of each completes after ``arrivals`` arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(count):
        mbarrier.init(barriers.index(stage), count=arrivals)
    return barriers


@gluon.jit
def wait_full(full, g, pred=True):
    """Wait until the tiles of step g have arrived."""
    phase = (g // full.shape[0]) & 1
    mbarrier.wait(stage_of(full, g), phase, pred=pred)


@gluon.jit
def pin(full, g, pred=True):
    """Wait for the tiles of step g although they have arrived, so that instructions stay in their order.

    No number needs this wait. The assembler moves no instruction across it. Without it, exponentials move behind the
    product that they should run beside, and then tensor cores and exponentials take turns.
    """
    wait_full(full, g, pred)


@gluon.jit
def wait_empty(empty, g):
    """Wait until the stage of step g may be filled: until the step that used it before has been released.

    That is the phase before the one of step g. In a new barrier it counts as completed, so the first steps do not wait.
    """
    phase = ((g // empty.shape[0]) & 1) ^ 1
    mbarrier.wait(stage_of(empty, g), phase)


@gluon.jit
def release(empty, g, pred=True):
    """Arrive at the barrier of step g: this reader no longer needs its stage."""
    mbarrier.arrive(stage_of(empty, g), count=1, pred=pred)


@gluon.constexpr_function
def gives_back_early(stages):
    """Return whether the product of the previous step comes first, not last, so that its stage is free sooner.

    For ``two_passes``. With two stages, copies are late otherwise: on an H200, d = 256, causal, N = 4,096, the
    kernel of dK and dV takes 0.88 of the time, and that of dQ 0.90. With three stages, d = 192, this order would take
    1.06 and 1.05 times as long.
    """
    return stages == 2


class Turns(NamedTuple):
    """The tiles of keys of all heads."""

    tiles: gl.tensor  # of a head
    heads: gl.tensor  # of keys and values, in a batch
    all: gl.tensor  # turns: their numbers are below this one
    Nq_padded: gl.tensor  # rows of a query head in ``Constants``
    last: gl.tensor  # how many of the last heads are processed together, as in ``place_of``, or None


@gluon.jit
def place_of(turn, tiles, count, last):
    """Return the head of a turn, of ``count`` turns, and which of the ``tiles`` of that head it is.

    Heads are processed one after another, and the tiles of a head in order. last: this many of the last heads, if not
    None, are processed together: the first tiles of all of them, then their second tiles, and so on.
    """
    head, tile = turn // tiles, turn % tiles
    if last is not None:
        n = turn - (count - last * tiles)  # counted from the first of the last heads
        head = gl.where(n < 0, head, count // tiles - last + n % last)
        tile = gl.where(n < 0, tile, n // last)
    return head, tile


@gluon.jit
def take(counter):
    """Return the next turn."""
    return gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def finish(counter, turn, turns):
    """Reset the counter for the next kernel, in the last program that finds no turn left."""
    if turn == turns.all + gl.num_programs(0) - 1:
        gl.store(counter, 0)


@gluon.jit
def announce(ring, n, turn):
    """Write the n-th turn of this program to shared memory. One warp calls this."""
    stage_of(ring, n).store(gl.full([1], turn, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def next_turn(shared, n, warps: gl.constexpr = 4):
    """Wait for the K of the n-th turn of this program, and return the turn. This many warps call this."""
    wait_full(shared.k_full, n)
    return turn_of(shared, n, warps)


@gluon.jit
def turn_of(shared, n, warps: gl.constexpr = 4):
    """Return the n-th turn again, before it ends. This must not wait: the K of the next turn may have arrived."""
    turn = stage_of(shared.turns, n).load(gl.BlockedLayout([1], [32], [warps], [0]))  # [1]
    return gl.max(turn, 0)
