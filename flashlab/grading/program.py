"""An answer as untrusted source code, which runs only in the process of the check."""

import linecache
from collections.abc import Callable
from typing import NamedTuple


class Program(NamedTuple):
    """The source that defines an answer, and the expression for it."""

    source: str
    value: str
    filename: str  # what tracebacks call it

    def run(self) -> object:
        """Return the answer. Raises the errors of the source."""
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(keepends=True), self.filename)
        namespace = {"__name__": "__main__"}
        exec(compile(self.source, self.filename, "exec"), namespace)
        return eval(compile(self.value, self.filename, "eval"), namespace)

    def __call__(self, *args: object) -> object:
        """Raise: only the result of ``run`` may be called."""
        raise TypeError("a program is no function: run it")


def defined(attempt: Callable | Program) -> object:
    """Return the attempt itself, or the answer of a ``Program``, which is run now."""
    return attempt.run() if isinstance(attempt, Program) else attempt
