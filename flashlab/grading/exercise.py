"""The parts of an exercise: a reference, cases, laws, hints, and common mistakes.

An exercise is NAME in ``flashlab.course.exercises.LESSON``, and its address is "LESSON.NAME". An attempt is right if

- its results are the reference's on every ``Case``, to the precision of the reference itself, and its inputs unchanged;
- it breaks no law. A law is a function ``law(attempt, *args)`` that runs the attempt once more on a case and returns
  a sentence for a fault that its results do not show, otherwise None: more than a tile held at once, a row read
  twice, a visit of a tile that no query sees. A law in ``moves`` runs nothing: it is passed what each program of a
  kernel loaded and stored in the case (``programs``). A law in ``once`` has inputs of its own. It runs beside the
  first case only, and returns ``Broken``: these inputs in words, and the sentence. Laws count if all results are right;
  where some are wrong, a law with inputs of its own may still give the reason. ``watch.Reads`` counts the elements of
  an array that an attempt in numpy uses.

``edges`` are a few cases, small enough to compute by hand, each with a sentence; the first one that fails is shown.
``draw`` returns inputs from the whole domain of the statement and from nowhere else. ``draws.cases`` calls it with the
same seeds for all learners. Without ``draw`` the edges are the only cases.

An attempt runs in a process of its own, which can be ended (``forked``), and on copies of the inputs of each case. In
this process memory before the first write, and masked elements of a load without ``other``, are NaN.
"""

import inspect
import linecache
import sys
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Case:
    """Inputs on which an attempt is run, and the property that it breaks if its answer differs."""

    property: str
    args: tuple


class Broken(NamedTuple):
    """A law that an attempt breaks."""

    on: str  # the law's own inputs in words; "" if it is broken on a case
    message: str  # the sentence
    if_right: bool = False  # whether the sentence holds only if all results are right, as every sentence without ``on``


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that is one edit away from a right one: ``old`` becomes ``new`` in the reference's source."""

    did: str  # after "You": "added the sums as they were."
    do: str  # "Bring each to the common maximum."
    old: str
    new: str
    of: Callable | None = None  # the function to edit where it is not the reference itself

    @property
    def message(self) -> str:
        """Return the mistake and its remedy, as a text for the learner."""
        return f"You {self.did} {self.do}"

    def function(self, reference: Callable) -> Callable:
        """Return the wrong function."""
        return edited(self.of or reference, self.old, self.new)


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function or a Triton kernel for the learner to write."""

    reference: Callable
    hints: tuple[str, str, str]
    edges: tuple[Case, ...] = ()
    draw: Callable[[np.random.Generator, int], tuple] | None = None  # draw(rng, size): inputs whose lengths reach size
    draws: int = 200  # how many; fewer for kernels, which are interpreted
    mistakes: tuple[Mistake, ...] = ()
    level: int = 1  # 1 (a line) to 3 (a kernel)
    minutes: int = 5
    launch: Callable | None = None  # launch(kernel, *args): runs a kernel on a case's arguments
    rung: tuple[str, str] | None = None  # a module and its function in whose place a GPU's compiler gets the attempt
    exact: Callable | None = None  # where the reference is a kernel: the same in numpy, for any dtype
    laws: tuple[Callable[..., str | Broken | None], ...] = ()  # law(attempt, *args): a sentence if it is broken
    moves: tuple[Callable[..., str | None], ...] = ()  # law(programs, *args): of the loads and stores of the run itself
    once: tuple[Callable[[Callable], Broken | None], ...] = ()  # laws whose inputs are their own: law(attempt)
    sways: bool = False  # a rounding of the inputs may show in the results: in scores of Q and K, or in base 2
    rounded: tuple[Callable, ...] = ()  # the reference, but for a rounding on the way that a right answer may have

    def run(self, function: Callable) -> Callable:
        """Return the function, or its launch, as a function of a case's arguments."""
        return function if self.launch is None else partial(self.launch, function)

    def truth(self) -> Callable:
        """Return the function that gives the exact result for arguments in float64."""
        return self.exact or self.reference


@dataclass(frozen=True)
class Question:
    """A number or a choice for the learner to predict before the cell that shows it."""

    answer: Any
    because: str
    hints: tuple[str, str, str]
    wrong: tuple[tuple[Any, str], ...] = ()  # (answer, why one could think so)
    rel: float | None = None  # tolerance; None: an integer must be exact, another number within 1 %
    unit: str = ""  # of a number: bytes, KiB, GB, … or the word for what is counted
    level: int = 1
    minutes: int = 2


def edited(function: Callable, old: str, new: str) -> Callable:
    """Return a copy of a function, class or kernel whose source has ``new`` in place of ``old``, which occurs once."""
    plain = inspect.unwrap(getattr(function, "fn", function))  # of a Triton kernel, or below a decorator
    source = _source(plain)
    if source.count(old) != 1:
        raise ValueError(f"expected {old!r} once in {plain.__name__}, found it {source.count(old)} times")
    source = source.replace(old, new)
    filename = f"<{plain.__name__}, edited {zlib.crc32(source.encode()):08x}>"  # ptxas reads it: no quotes
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(vars(sys.modules[plain.__module__]) if isinstance(plain, type) else plain.__globals__)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[plain.__name__]


@cache
def _source(function):
    """Return the source of a function or method. Cached: finding its end takes longer than compiling it."""
    return textwrap.dedent(inspect.getsource(function))
