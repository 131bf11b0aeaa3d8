"""Which program of the backward kernel computes which tile of keys: whichever is free takes the next one, in turn.

There are as many programs as the GPU has multiprocessors. Turn n is tile n % tiles of head n // tiles, and a counter
in global memory says which turn is next. The producer of a program takes a turn as soon as it has asked for all tiles
of the one before, so that nothing waits for the counter, and asks for the first tiles while the consumers end theirs.
The other roles read from shared memory whose turn it is, when K has arrived.

Because turns are taken in order, a program may wait until earlier ones have ended (``sums``). All of those are taken;
each program has its turns in order, so the earliest turn that has not ended is under way, and waits for nothing. The
ids of programs would not do: CUDA promises no order in which programs start.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels.hopper.stages import stage_of, wait_full


class Turns(NamedTuple):
    """The tiles of keys of all heads."""

    tiles: gl.tensor  # of a head
    heads: gl.tensor  # of keys and values, in a batch
    all: gl.tensor  # turns; a turn of this number or a larger one is none


@gluon.jit
def take(counter):
    """Return the next turn."""
    return gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def finish(counter, turn, turns):
    """Make the counter ready for the next kernel, in the program that was the last to find no turn left."""
    if turn == turns.all + gl.num_programs(0) - 1:
        gl.store(counter, 0)


@gluon.jit
def announce(ring, n, turn):
    """Write the n-th turn of this program to shared memory; one warp does."""
    stage_of(ring, n).store(gl.full([1], turn, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def taken(shared, n, warps: gl.constexpr = 4):
    """Wait for the K of the n-th turn of this program, and return the turn; this many warps do."""
    wait_full(shared.k_full, n)
    return turn_of(shared, n, warps)


@gluon.jit
def turn_of(shared, n, warps: gl.constexpr = 4):
    """Return the n-th turn again, before it is over. Not to be waited for: the next K may have arrived."""
    turn = stage_of(shared.turns, n).load(gl.BlockedLayout([1], [32], [warps], [0]))  # [1]
    return gl.max(turn, 0)
