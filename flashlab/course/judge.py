"""Holds a learner's try against the reference, whatever the try does: loop, raise, print, or return a list.

A try is as right as the reference is exact: its error against the reference in float64 may be twice the reference's own
in the dtype of the inputs, and a few roundings. NaN is never right where a number is due.
"""

import contextlib
import copy
import ctypes
import inspect
import io
import threading
from collections.abc import Callable
from functools import cache
from itertools import islice

import numpy as np

from flashlab.course.exercise import Exercise

PATIENCE = 8.0  # seconds for all cases of one try


class Problem(Exception):
    """What is wrong with a try, in words."""


def verdict(exercise: Exercise, attempt: Callable) -> tuple[str | None, str | None]:
    """The first failure of a try with the smallest input that shows it, and what the known mistake says it looks like.

    Both are None for a right try. Raises NotImplementedError for one that was not attempted, TimeoutError for one that
    is not done in time; nothing else, whatever the try does.
    """
    failure = _in_time(first_failure, exercise, attempt)
    if failure is None:
        return None, None
    try:
        return failure, _in_time(_recognise, exercise, attempt)
    except (NotImplementedError, TimeoutError):
        return failure, None


def first_failure(exercise: Exercise, attempt: Callable) -> str | None:
    """What is wrong with a try on the first case that it gets wrong; None if it is right on all of them."""
    for at, case in enumerate(_cases(exercise)):
        try:
            _hold(exercise, attempt, at)
        except Problem as problem:
            return f"{case.property}\n{problem}"
    return None


def _hold(exercise, attempt, at):
    """Run a try on private copies of a case's arguments and hold it against the reference."""
    args = _cases(exercise)[at].args
    inputs, given = _inputs(exercise.truth(), args), copy.deepcopy(args)
    try:
        result = exercise.run(attempt)(*given)
    except NotImplementedError:
        raise
    except BaseException as error:
        raise Problem(f"{inputs}\n  it raised {type(error).__name__}: {error}") from error
    for before, after in zip(_leaves(args), _leaves(given), strict=True):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after, equal_nan=True):
            raise Problem(f"{inputs}\n  it changed its inputs; make new arrays instead.")
    plain, exact = _right(exercise, at)
    number = len(_leaves(plain))
    names = getattr(plain, "_fields", None) or ([""] if number == 1 else [f"result[{at}]" for at in range(number)])
    yours = _leaves(result)
    if len(yours) != number or result is None:
        raise Problem(f"  expected {number} result{'s' if number > 1 else ''}, got {_describe(result)}")
    for field, mine, rounded, true in zip(names, yours, _leaves(plain), _leaves(exact), strict=True):
        _compare(inputs, field, _array(mine), np.asarray(rounded), np.asarray(true))


def _compare(inputs, field, yours, rounded, true):
    what = f"your {field}" if field else "your result"
    if yours.shape != true.shape:
        raise Problem(f"{inputs}\n  expected shape {true.shape}, {what} has {yours.shape}.")
    if not np.issubdtype(yours.dtype, np.number) and yours.dtype != bool:
        raise Problem(f"{inputs}\n  expected numbers, {what} is {yours.tolist()!r}.")
    finite = np.isfinite(true)
    eps = np.finfo(rounded.dtype).eps if np.issubdtype(rounded.dtype, np.floating) else 0
    limit = 2 * _largest(rounded[finite] - true[finite]) + 8 * eps * _largest(true[finite])
    right = np.abs(yours[finite] - true[finite]) <= limit  # NaN compares as wrong
    if not (right.all() and np.array_equal(yours[~finite], true[~finite])):
        raise Problem(f"{inputs}\n  expected {field or 'result'} = {_short(true)}\n  {what} = {_short(yours)}")


# What does not depend on the try is run once.


@cache
def _cases(exercise):
    return tuple(exercise.cases())


@cache
def _right(exercise, at):
    """The reference's answers to a case, in the dtype of the inputs and in float64."""
    args = _cases(exercise)[at].args
    return exercise.run(exercise.reference)(*copy.deepcopy(args)), exercise.truth()(*_map(_widen, args))


@cache
def _mistaken(exercise, mistake, at):
    """What a known mistake answers to a case, and whether that is right."""
    wrong = mistake.function(exercise.reference)
    return _outcome(exercise, wrong, at), _agrees(exercise, wrong, at)


def _recognise(exercise, attempt):
    """What the known mistake says that goes wrong first where the try does, alike, and most often alike elsewhere."""
    places = range(len(_cases(exercise)))
    first = next(at for at in places if not _agrees(exercise, attempt, at))
    tried = [_outcome(exercise, attempt, at) for at in places]
    alike = {}
    for mistake in exercise.mistakes:
        same = (_equal(_mistaken(exercise, mistake, at)[0], tried[at]) for at in places)
        if all(islice(same, first + 1)) and not _mistaken(exercise, mistake, first)[1]:
            alike.setdefault(sum(same), mistake.says)
    return alike[max(alike)] if alike else None


def _agrees(exercise, attempt, at):
    try:
        _hold(exercise, attempt, at)
    except Problem:
        return False
    return True


def _equal(a, b):
    """Are two outcomes the same numbers, NaN included, up to rounding, or the same failure?"""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and a == b
    return len(a) == len(b) and all(
        x.shape == y.shape and np.allclose(x, y, 1e-4, 1e-6 * min(1, _largest(y[np.isfinite(y)])), equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )


def _outcome(exercise, function, at):
    """The arrays that a function answers to a case, or what it raises, in words without its own name."""
    try:
        result = exercise.run(function)(*copy.deepcopy(_cases(exercise)[at].args))
        return [np.asarray(leaf, dtype=float) for leaf in _leaves(result)]
    except BaseException as error:
        return f"{type(error).__name__}: {str(error).split(': ', 1)[-1]}"


def _in_time(function, *args):
    """``function(*args)``, silently, in a thread that is stopped when patience ends."""
    outcome: dict = {}

    def run():
        try:
            with np.errstate(all="ignore"):
                outcome["value"] = function(*args)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        thread.start()
        thread.join(PATIENCE)
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
        raise Problem(f"  expected an array, got {_describe(value)}") from None


def _largest(difference):
    return np.abs(difference).max(initial=0)


def _describe(value):
    if value is None:
        return "None: does it return its result?"
    name = type(value).__name__
    many = f" of {len(_leaves(value))}" if isinstance(value, tuple) else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{many}."


def _inputs(reference, args):
    names = inspect.signature(reference).parameters
    return "\n".join(f"  {name} = {_short(value)}" for name, value in zip(names, args, strict=False))


def _short(value):
    if hasattr(value, "_fields"):
        return ", ".join(f"{name} = {_short(leaf)}" for name, leaf in zip(value._fields, value, strict=True))
    if isinstance(value, np.ndarray) or np.isscalar(value):
        return np.array2string(np.asarray(value), precision=4, threshold=32, separator=", ").replace("\n", " ")
    return f"{value}"
