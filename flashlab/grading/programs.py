"""Count the loads and stores of each program of a launch in Triton while a case runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from flashlab.kernels import INTERPRETED
from flashlab.kernels.interpreter import count
from flashlab.machine.memory import Event


@contextmanager
def noted() -> Iterator[list[list[Event]]]:
    """Yield a list that holds, after the context, the loads and stores of each program that was launched inside.

    Programs are in the order in which they ran. The list stays empty on a GPU, where nothing is counted.
    """
    programs = []
    if not INTERPRETED:
        yield programs
        return
    with count() as memory:
        yield programs
    for event in memory.events:
        if event.kind == "kernel":
            programs.append([])
        else:
            programs[-1].append(event)
