"""Run an attempt, or the reference, on the cases of an exercise.

``outcomes`` runs untrusted code and yields plain data, so that it can run in a process of its own.
"""

import copy
import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from functools import cache, partial
from numbers import Number
from unittest import mock

import numpy as np

from flashlab.grading import draws
from flashlab.grading.exercise import Broken, Exercise
from flashlab.grading.program import defined
from flashlab.grading.records import Expected, Leaf, Outcome
from flashlab.grading.results import largest, leaves, mapped, result_leaves
from flashlab.grading.words import described, message_of, shortened, where

# As the interpreter computes. A GPU fuses scale * S - m and rounds once, where m was rounded twice: near 1e8 right
# kernels would overflow. And its tl.dot rounds factors of float32 to TF32, also those that an attempt scaled before.
AS_INTERPRETED = {"TRITON_DEFAULT_FP_FUSION": "0", "TRITON_F32_DEFAULT": "ieee"}
NUDGES = 3  # how often the inputs are rounded at random
LEFT_TO_CASES = (Exception,)  # passed over in a law: if an attempt raises an error on a case, the case reports it


@cache
def cases(exercise: Exercise) -> tuple:
    """Return the cases of an exercise, built once."""
    return (*exercise.edges, *draws.cases(exercise))


@cache
def expected_of(exercise: Exercise) -> tuple[Expected, ...]:
    """Return the reference's answer to each case, computed once in this process."""
    with np.errstate(all="ignore"):
        return tuple(expected(exercise))


def expected(exercise: Exercise) -> Iterator[Expected]:
    """Yield the reference's answer to each case."""
    for case in cases(exercise):
        rounded = outcome_of(exercise, exercise.reference, case.args, laws=False)
        wide = mapped(_widen, case.args)
        exact = _arrays(exercise.truth()(*wide))
        seeds = range(NUDGES if exercise.sways else 0)
        nudged = [_arrays(exercise.truth()(*_nudged(case.args, wide, seed))) for seed in seeds]
        nudged += [_arrays(function(*wide)) for function in exercise.rounded]
        yield Expected(rounded, exact, tuple(map(_swayed, exact, *nudged)))


def _nudged(args, wide, seed):
    """Return arguments in float64, float arrays moved by one rounding of their dtype, or of float32 if it is finer."""
    rng, originals = np.random.default_rng(seed), iter(leaves(args))

    def nudge(leaf):
        dtype = getattr(next(originals), "dtype", np.dtype(int))
        if not isinstance(leaf, np.ndarray) or dtype.kind != "f":
            return leaf
        eps = min(np.finfo(dtype).eps, np.finfo(np.float32).eps)
        return leaf * (1 + rng.choice((-eps, eps), leaf.shape))

    return mapped(nudge, wide)


def _widen(leaf):
    return leaf.astype(np.float64) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else copy.deepcopy(leaf)


def _swayed(exact, *others):
    """Return the largest difference of results from the exact one, where both are finite."""
    return max((largest((other - exact)[np.isfinite(exact) & np.isfinite(other)]) for other in others), default=0.0)


def _arrays(result):
    return tuple(np.asarray(leaf) for leaf in result_leaves(result))


def outcomes(exercise: Exercise, function: Callable) -> Iterator[Outcome]:
    """Run a function, or that of a ``Program``, on private copies of each case's arguments."""
    try:
        function = defined(function)
    except BaseException as error:  # SystemExit too
        yield Outcome(error=message_of(error), where=where(error))
        return
    for case in cases(exercise):
        outcome = outcome_of(exercise, function, case.args)
        yield outcome
        if outcome.missing:
            return


def launches(exercise: Exercise, attempt: Callable) -> Iterator[str]:
    """Run an attempt in Triton on its first and its last case and yield, once, its launches as JSON."""
    from flashlab.kernels import compiles  # late: Triton

    with compiles.launches() as to_json:
        for case in {0: cases(exercise)[0], 1: cases(exercise)[-1]}.values():
            exercise.run(attempt)(*case.args)
    yield to_json()


def outcome_of(exercise: Exercise, function: Callable, args: tuple, laws: bool = True) -> Outcome:
    """Run a function, or the launch of a kernel, on copies of the arguments; with ``laws``, look for a broken law."""
    with nullcontext() if exercise.launch is None else mock.patch.dict(os.environ, AS_INTERPRETED):
        return _outcome_of(exercise, function, args, laws)


def _outcome_of(exercise, function, args, laws):
    copies = copy.deepcopy(args)
    try:
        with _programs_noted(exercise, laws) as programs:
            result = exercise.run(function)(*copies)
        values, fields = tuple(map(_leaf, result_leaves(result))), tuple(getattr(result, "_fields", ()))
        broke = _broken(exercise, function, args, programs) if laws else None
        return Outcome(values, fields, described(result), changed=_changed(args, copies), broke=broke)
    except NotImplementedError as error:
        if not str(error):
            return Outcome(missing=True)
        return Outcome(error=message_of(error), where=where(error))
    except BaseException as error:  # SystemExit too: whatever an attempt raises is an answer
        return Outcome(error=message_of(error), where=where(error))


def _programs_noted(exercise, laws):
    if not (laws and exercise.moves):
        return nullcontext()
    from flashlab.grading import programs  # late: Triton

    return programs.noted()


def _changed(x, y):
    """Return whether arrays, or collections of them and of numbers, differ; NaN equals NaN."""
    if isinstance(x, dict):
        return x.keys() != y.keys() or any(_changed(x[key], y[key]) for key in x)
    if isinstance(x, list | tuple):
        return len(x) != len(y) or any(map(_changed, x, y))
    if isinstance(x, np.ndarray):
        return not np.array_equal(x, y, equal_nan=True)
    return isinstance(x, Number) and x != y and x == x


def _broken(exercise, function, args, programs):
    """Return the first law that a function breaks, with these inputs or with the law's own; None if there is none."""
    laws = [partial(law, function, *copy.deepcopy(args)) for law in exercise.laws]
    laws += [partial(law, programs, *args) for law in exercise.moves]
    if args is cases(exercise)[0].args:
        laws += [partial(law, function) for law in (_overwritten(exercise), *exercise.once)]
    for law in laws:
        quiet = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())  # only the output of the cases counts
        with suppress(*LEFT_TO_CASES), quiet[0], quiet[1]:
            if broken := law():
                return broken if isinstance(broken, Broken) else Broken("", broken)
    return None


def _overwritten(exercise):
    """Build a law with its own inputs, two cases of the same shapes: a second call leaves the first result as it is."""

    def law(function):
        if exercise.launch is not None:  # its launch makes the outputs
            return None
        all_pairs = itertools.combinations([case.args for case in cases(exercise)], 2)
        pair = next((pair for pair in all_pairs if _shapes(pair[0]) == _shapes(pair[1])), None)
        if pair is None:
            return None
        first = result_leaves(function(*copy.deepcopy(pair[0])))
        before = copy.deepcopy(first)
        function(*copy.deepcopy(pair[1]))
        if _changed(before, first):
            return Broken("two calls", "the second call changed the first one's result: make a new array per call.")

    return law


def _shapes(args):
    return [getattr(leaf, "shape", ()) for leaf in leaves(args)]


def _leaf(value):
    kind = type(value)  # not isinstance: a value may pretend to be of another class
    if issubclass(kind, bool | int | float | complex | np.generic) and np.asarray(value).dtype.kind in "biufc":
        return Leaf("number", np.asarray(value))
    if kind is np.ndarray:
        of_numbers = value.dtype.kind in "biufc"
        return Leaf("array", np.array(value)) if of_numbers else Leaf(f"an array of {value.dtype}", None)
    if kind.__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return Leaf("array", (tensor.double() if tensor.is_floating_point() else tensor).numpy())
    if kind is list:
        return Leaf("a list", None)
    return Leaf(f"a {kind.__name__}" + (f", {shortened(value, 100)!r}" if kind is str else ""), None)
