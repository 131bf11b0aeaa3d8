"""Checks for exercises: ``check`` a try, ask for a ``hint``, see the ``solution``, ``show`` a function's source.

An exercise lives in ``flashlab/exercises/LESSON.py`` under its own name and is asked for as "LESSON.NAME". A check
never raises, whatever it is given: it prints what it found. A try is run on each case, small ones first, and held
against the reference; the case's name is the property that a wrong answer breaks. If the try answers as one of the
known mistakes would, the check says which.
"""

import contextlib
import copy
import ctypes
import importlib
import inspect
import io
import linecache
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIME_LIMIT = 10.0  # seconds for all cases of one try


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
    """A function for the learner to write."""

    reference: Callable
    cases: Callable[[], Sequence[Case]]
    hints: tuple[str, str, str]
    mistakes: tuple[Mistake, ...] = ()
    level: int = 1  # 1 (a line) to 3 (a kernel)
    minutes: int = 5


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


class Problem(Exception):
    """What is wrong with a try, in words."""


def check(name: str, attempt) -> None:
    """Print whether ``attempt`` (a function, or the answer to a question) solves the exercise ``name``."""
    print(_report(name, attempt))


def hint(name: str, layer: int = 1) -> None:
    """Print one of three hints for the exercise ``name``: 1 says where to look, 3 nearly says it all."""
    hints = find(name).hints
    if layer not in (1, 2, 3):
        raise ValueError(f"hints have three layers, 1 to 3, got {layer!r}")
    more = f'   (more: hint("{name}", {layer + 1}))' if layer < 3 else ""
    print(f"Hint {layer} of 3: {hints[layer - 1]}{more}")


def solution(name: str) -> None:
    """Print the reference for the exercise ``name``."""
    exercise = find(name)
    if isinstance(exercise, Question):
        print(f"{exercise.answer}: {exercise.because}")
    else:
        show(exercise.reference)


class Source(str):
    """Source code that a notebook displays with colours and a terminal as it is."""

    def __repr__(self):
        return str(self)

    def _repr_markdown_(self):
        return f"```python\n{self}\n```"


def show(function) -> None:
    """Display the source of a function, class or Triton kernel of flashlab: prose and code cannot drift apart."""
    source = Source(inspect.getsource(getattr(function, "fn", function)).rstrip())
    try:
        from IPython.display import display
    except ImportError:
        print(source)
    else:
        display(source)


def find(name: str) -> Exercise | Question:
    """The exercise called "LESSON.NAME"."""
    lesson, _, exercise = name.partition(".")
    try:
        return vars(importlib.import_module(f"flashlab.exercises.{lesson}"))[exercise]
    except (ModuleNotFoundError, KeyError):
        raise ValueError(f'there is no exercise "{name}"; names look like "online.merge"') from None


def edited(function: Callable, old: str, new: str) -> Callable:
    """A copy of ``function`` in whose source ``old``, which must occur once, is replaced by ``new``."""
    source = inspect.getsource(function)
    if source.count(old) != 1:
        raise ValueError(f"expected {old!r} once in {function.__name__}, found it {source.count(old)} times")
    source = source.replace(old, new)
    filename = f"<{function.__name__} with {new!r}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(function.__globals__)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[function.__name__]


def first_failure(exercise: Exercise, attempt: Callable) -> str | None:
    """What is wrong with ``attempt`` on the first case that it gets wrong; None if it is right on all of them."""
    for case in exercise.cases():
        try:
            _hold(exercise.reference, attempt, case.args)
        except Problem as problem:
            return f"{case.property}\n{problem}"
    return None


def _report(name, attempt):
    exercise = find(name)
    if isinstance(exercise, Question):
        return _judge(name, exercise, attempt)
    if not callable(attempt):
        return f"✗ {name}: expected a function, got {_describe(attempt)}."
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            failure = _limited(first_failure, exercise, attempt)
            looks_like = failure and _limited(_recognise, exercise, attempt)
    except NotImplementedError:
        return f'○ {name}: not attempted yet.   (hint("{name}") helps)'
    except TimeoutError:
        return f"✗ {name}: still running after {TIME_LIMIT:.0f} s, stopped. Does a loop never end?"
    if not failure:
        return f"✓ {name}: right in all {len(exercise.cases())} cases."
    advice = f"It looks like this: {looks_like}" if looks_like else f'hint("{name}") helps.'
    return f"✗ {name} fails for {failure}\n{advice}"


def _judge(name, question, answer):
    if answer is ...:
        return f'○ {name}: not answered yet.   (hint("{name}") helps)'
    if _same(answer, question.answer, question.rel):
        return f"✓ {name}: {question.answer}. {question.because}"
    for wrong, why in question.wrong:
        if _same(answer, wrong, question.rel):
            return f"✗ {name}: not {answer}. {why}"
    return f'✗ {name}: not {answer!r}.   (hint("{name}") helps)'


def _same(answer, expected, rel):
    if isinstance(expected, (bool, str)) or isinstance(answer, (bool, str)):
        return type(answer) is type(expected) and answer == expected
    try:
        return bool(abs(float(answer) - expected) <= rel * abs(expected))
    except (TypeError, ValueError):
        return False


def _hold(reference, attempt, args):
    """Run a try on private copies of ``args`` and hold it against the reference, which also runs in float64."""
    given = copy.deepcopy(args)
    try:
        result = attempt(*given)
    except NotImplementedError:
        raise
    except Exception as error:
        raise Problem(f"{_inputs(reference, args)}\n  it raised {type(error).__name__}: {error}") from error
    for before, after in zip(_leaves(args), _leaves(given), strict=True):
        if not np.array_equal(before, after, equal_nan=True):
            raise Problem(f"{_inputs(reference, args)}\n  it changed its inputs; make new arrays instead.")
    plain, exact = reference(*copy.deepcopy(args)), reference(*_map(_widen, args))
    names = getattr(plain, "_fields", None) or [""] * len(_leaves(plain))
    yours = _leaves(result)
    if len(yours) != len(names):
        raise Problem(f"  expected {len(names)} result(s), got {_describe(result)}.")
    for field, mine, rounded, true in zip(names, yours, _leaves(plain), _leaves(exact), strict=True):
        _compare(reference, args, field, _array(mine), np.asarray(rounded), np.asarray(true))


def _compare(reference, args, field, yours, rounded, true):
    what = f"your {field}" if field else "your result"
    if yours.shape != true.shape:
        raise Problem(f"{_inputs(reference, args)}\n  expected shape {true.shape}, {what} has {yours.shape}.")
    if not np.issubdtype(yours.dtype, np.number):
        raise Problem(f"{_inputs(reference, args)}\n  expected numbers, {what} holds {yours.dtype}.")
    finite = np.isfinite(true)
    scale = np.abs(true[finite]).max(initial=0)
    eps = np.finfo(rounded.dtype).eps if np.issubdtype(rounded.dtype, np.floating) else 0
    limit = 2 * np.abs(rounded[finite] - true[finite]).max(initial=0) + 8 * eps * scale
    right = np.abs(yours[finite] - true[finite]) <= limit  # NaN compares as wrong
    if not (right.all() and np.array_equal(yours[~finite], true[~finite])):
        said = f"  expected {field or 'result'} = {_short(true)}\n  {what} = {_short(yours)}"
        raise Problem(f"{_inputs(reference, args)}\n{said}")


def _recognise(exercise, attempt):
    """What the known mistake says that answers as the try does: where it is wrong first, and most often elsewhere."""
    cases = exercise.cases()
    first = next(at for at, case in enumerate(cases) if not _agrees(exercise.reference, attempt, case.args))
    alike = {}
    for mistake in exercise.mistakes:
        function = mistake.function(exercise.reference)
        same = [_equal(function, attempt, case.args) for case in cases]
        if same[first]:
            alike.setdefault(sum(same), mistake.says)
    return alike[max(alike)] if alike else None


def _agrees(reference, attempt, args):
    try:
        _hold(reference, attempt, args)
    except Problem:
        return False
    return True


def _equal(function, attempt, args):
    """Do both give the same numbers, NaN included, up to rounding?"""
    try:
        with np.errstate(all="ignore"):
            a, b = (_leaves(f(*copy.deepcopy(args))) for f in (function, attempt))
        return len(a) == len(b) and all(
            np.shape(x) == np.shape(y) and np.allclose(_array(x), _array(y), 1e-4, 1e-6, equal_nan=True)
            for x, y in zip(a, b, strict=True)
        )
    except Exception:
        return False


def _limited(function, *args):
    """``function(*args)`` in a thread that is stopped after TIME_LIMIT seconds."""
    outcome: dict = {}

    def run():
        try:
            with np.errstate(all="ignore"):
                outcome["value"] = function(*args)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        raise TimeoutError
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _map(function, tree):
    if isinstance(tree, tuple):
        mapped = [_map(function, leaf) for leaf in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return function(tree)


def _leaves(tree):
    return [leaf for branch in tree for leaf in _leaves(branch)] if isinstance(tree, tuple) else [tree]


def _widen(leaf):
    return leaf.astype(np.float64) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else copy.deepcopy(leaf)


def _array(value):
    try:
        return np.asarray(value)
    except Exception:
        raise Problem(f"  expected an array, got {_describe(value)}.") from None


def _describe(value):
    return "None: does it return its result?" if value is None else f"a {type(value).__name__}"


def _inputs(reference, args):
    names = inspect.signature(reference).parameters
    return "\n".join(f"  {name} = {_short(value)}" for name, value in zip(names, args, strict=False))


def _short(value):
    if hasattr(value, "_fields"):
        return ", ".join(f"{name} = {_short(leaf)}" for name, leaf in zip(value._fields, value, strict=True))
    if isinstance(value, np.ndarray) or np.isscalar(value):
        text = np.array2string(np.asarray(value), precision=4, threshold=32, separator=", ")
        return text.replace("\n", " ")
    return f"{value}"
