"""Stages of shared memory and the barriers that guard them: the one place where phases are computed.

A ring of buffers, its stages, is filled and emptied in turn. Step g uses stage g % stages, and is the
(g // stages)-th to use it, counted from 0. Two barriers guard each stage: ``full`` completes a phase when the bytes of
a step have arrived, ``empty`` when all readers have released them. A barrier knows only the parity of its phase.
"""

from triton.experimental import gluon
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
def wait_full(full, g, pred=True):
    """Wait until the tiles of step g have arrived."""
    phase = (g // full.shape[0]) & 1
    mbarrier.wait(stage_of(full, g), phase, pred=pred)


@gluon.jit
def wait_empty(empty, g):
    """Wait until the stage of step g may be filled: until the step that used it before has been released.

    That is the phase before the one of step g. In a new barrier it counts as completed, so the first steps do not wait.
    """
    phase = ((g // empty.shape[0]) & 1) ^ 1
    mbarrier.wait(stage_of(empty, g), phase)


@gluon.jit
def release(empty, g, pred=True):
    """Arrive at the barrier of step g: this reader is done with its stage."""
    mbarrier.arrive(stage_of(empty, g), count=1, pred=pred)
