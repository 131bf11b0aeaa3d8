"""What an exercise is: a reference, cases small ones first, hints, and the mistakes that people make.

An exercise lives in ``flashlab/course/exercises/LESSON.py`` under its own name and is asked for as "LESSON.NAME".
"""

import inspect
import linecache
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Case:
    """Inputs on which a try is run, and the property that it breaks if its answer differs."""

    property: str
    args: tuple


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that is one edit away from a right one: ``old`` becomes ``new`` in the reference's source."""

    says: str  # what went wrong and what to do about it, to the learner
    old: str
    new: str
    of: Callable | None = None  # the function to edit where it is not the reference itself

    def function(self, reference: Callable) -> Callable:
        """The wrong function."""
        return edited(self.of or reference, self.old, self.new)


@dataclass(frozen=True)
class Exercise:
    """A function or a Triton kernel for the learner to write."""

    reference: Callable
    cases: Callable[[], Sequence[Case]]
    hints: tuple[str, str, str]
    mistakes: tuple[Mistake, ...] = ()
    level: int = 1  # 1 (a line) to 3 (a kernel)
    minutes: int = 5
    launch: Callable | None = None  # launch(kernel, *args): runs a kernel on a case's arguments
    exact: Callable | None = None  # the same in numpy, of any dtype, where the reference is a kernel

    def run(self, function: Callable) -> Callable:
        """The function, or what launches it, as a function of a case's arguments."""
        return function if self.launch is None else partial(self.launch, function)

    def truth(self) -> Callable:
        """What gives the exact result for arguments in float64."""
        return self.exact or self.reference


@dataclass(frozen=True)
class Question:
    """A number or a choice for the learner to predict before the cell that shows it."""

    answer: Any
    because: str
    hints: tuple[str, str, str]
    wrong: tuple[tuple[Any, str], ...] = ()  # (answer, why one could think so)
    rel: float = 0.01
    level: int = 1
    minutes: int = 2


def edited(function: Callable, old: str, new: str) -> Callable:
    """A copy of a function or kernel in whose source ``old``, which must occur once, is replaced by ``new``."""
    plain = getattr(function, "fn", function)  # of a Triton kernel
    source = textwrap.dedent(inspect.getsource(plain))  # of a method
    if source.count(old) != 1:
        raise ValueError(f"expected {old!r} once in {plain.__name__}, found it {source.count(old)} times")
    source = source.replace(old, new)
    filename = f"<{plain.__name__} with {new!r}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(plain.__globals__)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[plain.__name__]
