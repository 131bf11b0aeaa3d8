"""The exercises on Gluon: who holds which number, registers that change hands, and the steps of the first two rungs."""

from flashlab.course.exercises.gluon.edits import early_release, no_turns, run_edits, same_parity, swapped
from flashlab.course.exercises.gluon.on_the_chip import instructions, per_thread, registers, thread
from flashlab.course.exercises.gluon.one_step import step
from flashlab.course.exercises.gluon.one_tile import fetch
from flashlab.course.exercises.gluon.overlapped import overlapped

__all__ = [
    "thread",
    "per_thread",
    "instructions",
    "registers",
    "fetch",
    "step",
    "overlapped",
    "early_release",
    "swapped",
    "same_parity",
    "no_turns",
    "run_edits",
]
