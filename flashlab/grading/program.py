"""An answer as a text that is not trusted: it is run where it is judged, in a process of its own, and nowhere else."""

import linecache
from collections.abc import Callable
from typing import NamedTuple


class Program(NamedTuple):
    """The source that defines an answer, and the expression that gives it."""

    source: str
    value: str
    filename: str  # what tracebacks call it

    def run(self) -> object:
        """Return the answer. Raises what the source raises."""
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(keepends=True), self.filename)
        namespace = {"__name__": "__main__"}
        exec(compile(self.source, self.filename, "exec"), namespace)
        return eval(compile(self.value, self.filename, "eval"), namespace)

    def __call__(self, *args: object) -> object:
        """Refuse: whoever runs an attempt runs what ``run`` returns."""
        raise TypeError("a program is no function: run it")


def defined(attempt: Callable | Program) -> object:
    """Return a function or kernel, or the answer of a ``Program``, which is run now."""
    return attempt.run() if isinstance(attempt, Program) else attempt
