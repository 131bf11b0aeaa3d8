"""Decide whether an attempt is right, from what it answers and what the reference answers, and name its mistake.

What runs code that is not trusted (``outcomes``) yields plain data, so that it can run in a process of its own; what
judges (``first_wrong``) runs no such code. ``check`` puts the two together; ``first_failure`` does so in this process.

An attempt is as right as the reference is exact: its error against the reference in float64 may be twice the
reference's own in the dtype of the inputs, and a few roundings. Where an exercise says so (``sways``), also what a few
roundings of the inputs change: products that are added in another order give other scores, and far from zero much
changes with them. NaN is never right where a number is due.
"""

import copy
import inspect
import itertools
import linecache
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flashlab.grading import draws
from flashlab.grading.exercise import Broken, Exercise
from flashlab.grading.records import Expected, Leaf, Outcome

OURS = tuple({str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<frozen"})
LATER = 16  # cases after the one that is wrong first in which mistakes are compared
NUDGES = 3  # times that the inputs are rounded at random
NUMBERS = {"b": "booleans", "u": "integers", "i": "integers", "f": "real numbers", "c": "complex numbers"}
NEVER = 0x7FC0F1A5  # the bits of a NaN that no computation gives: what an output of float32 holds before it is stored


class Fault(NamedTuple):
    """Hold what is wrong with an attempt: a sentence, and names with values in words."""

    says: str
    results: tuple[tuple[str, str], ...] = ()  # what was expected, and what came
    on: str = ""  # the property of the case, which is broken
    inputs: tuple[tuple[str, str], ...] = ()  # of the case

    def __str__(self):
        """Return all of it in lines."""
        pairs = (f"  {name} = {value}" for name, value in (*self.inputs, *self.results))
        return "\n".join(filter(None, (self.on, *pairs, self.says)))


def first_failure(exercise: Exercise, attempt: Callable) -> Fault | None:
    """Return what is wrong with an attempt on the first case that it gets wrong, None if it is right on all of them.

    Runs the attempt in this process. Raises NotImplementedError for one that was not attempted.
    """
    with np.errstate(all="ignore"):
        first = first_wrong(exercise, _attempted(outcomes(exercise, attempt)), known(exercise))
    return first and first[1]


def _attempted(outcomes):
    for outcome in outcomes:
        if outcome.missing:
            raise NotImplementedError
        yield outcome


@cache
def known(exercise: Exercise) -> tuple[Expected, ...]:
    """Return what the reference answers to each case, computed once in this process."""
    with np.errstate(all="ignore"):
        return tuple(expected(exercise))


@cache
def cases(exercise: Exercise) -> tuple:
    """Return the cases of an exercise, built once."""
    return (*exercise.edges, *draws.cases(exercise)) if exercise.cases is None else tuple(exercise.cases())


def expected(exercise: Exercise) -> Iterator[Expected]:
    """Run the reference on each case."""
    for case in cases(exercise):
        rounded = _outcome(exercise, exercise.reference, case.args, laws=False)
        wide = _map(_widen, case.args)
        exact = _arrays(exercise.truth()(*wide))
        seeds = range(NUDGES if exercise.sways else 0)
        nudged = [_arrays(exercise.truth()(*_nudged(case.args, wide, seed))) for seed in seeds]
        yield Expected(rounded, exact, tuple(map(_swayed, exact, *nudged)))


def _nudged(args, wide, seed):
    """Return arguments in float64, each number of an array a rounding away from what it is, in float32 or better."""
    rng, given = np.random.default_rng(seed), iter(_leaves(args))

    def nudge(leaf):
        dtype = getattr(next(given), "dtype", np.dtype(int))
        if not isinstance(leaf, np.ndarray) or dtype.kind != "f":
            return leaf
        eps = min(np.finfo(dtype).eps, np.finfo(np.float32).eps)
        return leaf * (1 + rng.choice((-eps, eps), leaf.shape))

    return _map(nudge, wide)


def _swayed(exact, *others):
    """Return the largest difference of results from the exact one, where both are finite."""
    return max((_largest((other - exact)[np.isfinite(exact) & np.isfinite(other)]) for other in others), default=0.0)


def _arrays(result):
    return tuple(np.asarray(leaf) for leaf in _results(result))


def outcomes(exercise: Exercise, function: Callable) -> Iterator[Outcome]:
    """Run a function on private copies of each case's arguments."""
    for case in cases(exercise):
        outcome = _outcome(exercise, function, case.args)
        yield outcome
        if outcome.missing:
            return


def first_wrong(exercise: Exercise, outcomes: Iterable[Outcome], due: Sequence[Expected]) -> tuple[int, Fault] | None:
    """Return the first case that an attempt gets wrong, and what is wrong. None if it is right.

    A law speaks only where the results of all cases are right: its sentence may say that they are.
    """
    lawless = None
    for at, outcome in enumerate(outcomes):
        if fault := _fault(outcome, due[at]):
            return at, on(fault, exercise, at)
        if outcome.broke and lawless is None:
            broken = Fault(outcome.broke.says, on=outcome.broke.on)
            lawless = at, broken if broken.on else on(broken, exercise, at)
    return lawless


def on(fault: Fault, exercise: Exercise, at: int) -> Fault:
    """Return a fault with the property and the inputs of a case."""
    case, names = cases(exercise)[at], inspect.signature(exercise.truth()).parameters
    inputs = ((name, _short(value)) for name, value in zip(names, case.args, strict=False))
    return fault._replace(on=case.property, inputs=tuple(inputs))


def recognise(
    exercise: Exercise, tried: Sequence[Outcome], first: int, due: Sequence[Expected]
) -> Iterator[str | None]:
    """Yield, once, what the known mistake says that goes wrong first where the attempt does, and answers alike.

    tried: outcomes of the attempt, case by case. first: the case that it gets wrong first. Of several mistakes that
    answer alike up to there, the one that answers most often alike afterwards is named: once more at least, if the
    attempt is wrong once more. An attempt that breaks a law, all of whose results are right, has only mistakes that
    break it, too, and whose results are right. Where results are wrong and no mistake is known, a broken law that found
    the reason names it.
    """
    lawless = _fault(tried[first], due[first]) is None
    together = tried[: first + 1 + LATER]
    again = {at for at, mine in enumerate(together) if at > first and _fault(mine, due[at])}
    alike = {}
    for mistake in exercise.mistakes:
        wrong = mistake.function(exercise.reference)
        theirs = _outcome(exercise, wrong, cases(exercise)[first].args, lawless)  # most mistakes differ here
        if not _alike(theirs, tried[first]):
            continue
        if _law(theirs) != _law(tried[first]) if lawless else _fault(theirs, due[first]) is None:
            continue
        same = set()
        for at, mine in enumerate(together):
            if at == first or _alike(_outcome(exercise, wrong, cases(exercise)[at].args, laws=False), mine):
                same.add(at)
            elif at < first:
                break
        else:
            if len(same) == len(together) if lawless else not again or again & same:
                alike.setdefault(len(same), mistake.says)
    broken = (it.broke for it in tried if it.broke and it.broke.on)
    reasons = (f"It looks like this: {it.says}" for it in broken if not (lawless or it.if_right))
    yield alike[max(alike)] if alike else next(reasons, None)


def _law(outcome):
    return outcome.broke and outcome.broke.says


def launches(exercise: Exercise, attempt: Callable) -> Iterator[str]:
    """Run an attempt in Triton on its first and its last case and yield, once, its launches as JSON."""
    from flashlab.kernels import compiles  # late: Triton

    with compiles.launches() as noted:
        for case in {0: cases(exercise)[0], 1: cases(exercise)[-1]}.values():
            exercise.run(attempt)(*case.args)
    yield noted()


# Running


def _outcome(exercise, function, args, laws=True):
    given = copy.deepcopy(args)
    try:
        with _programs_noted(exercise, laws) as programs:
            result = exercise.run(function)(*given)
        leaves, fields, whole = tuple(map(_leaf, _results(result))), getattr(result, "_fields", ()), described(result)
        broke = _broken(exercise, function, args, programs) if laws else None
        return Outcome(leaves, tuple(fields), whole, changed=_changed(args, given), broke=broke)
    except NotImplementedError as error:
        if not str(error):
            return Outcome(missing=True)
        return Outcome(error=says(error), where=_where(error))
    except BaseException as error:  # SystemExit too: whatever an attempt raises is an answer
        return Outcome(error=says(error), where=_where(error))


def _programs_noted(exercise, laws):
    if not (laws and exercise.moves):
        return nullcontext()
    from flashlab.grading import programs  # late: Triton

    return programs.noted()


def _changed(args, given):
    pairs = zip(_leaves(args), _leaves(given), strict=True)
    return any(isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def _broken(exercise, function, args, programs):
    """Return the first law that a function breaks, on these inputs or on its own; None if it keeps all."""
    laws = [partial(law, function, *copy.deepcopy(args)) for law in exercise.laws]
    laws += [partial(law, programs, *args) for law in exercise.moves]
    if args is cases(exercise)[0].args:
        laws += [partial(law, function) for law in (_overwritten(exercise), *exercise.once)]
    for law in laws:
        with suppress(Exception):  # an error is for the cases to find
            if broken := law():
                return broken if isinstance(broken, Broken) else Broken("", broken)
    return None


def _overwritten(exercise):
    """Build a law of its own inputs, two cases of the same shapes: the second call leaves the first one's result."""

    def law(function):
        if exercise.launch is not None:  # its launch makes the outputs
            return None
        pairs = itertools.combinations([case.args for case in cases(exercise)], 2)
        pair = next((pair for pair in pairs if _shapes(pair[0]) == _shapes(pair[1])), None)
        if pair is None:
            return None
        first = _results(function(*copy.deepcopy(pair[0])))
        kept = copy.deepcopy(first)
        function(*copy.deepcopy(pair[1]))
        then_and_now = zip(kept, first, strict=True)
        if any(isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=True) for x, y in then_and_now):
            return Broken("two calls", "the second call changed the first one's result: make a new array per call.")

    return law


def _shapes(args):
    return [np.shape(leaf) for leaf in _leaves(args)]


def says(error: BaseException) -> str:
    """Return an error in words, cut to a length. Some errors cannot say anything."""
    while error.__cause__ is not None and type(error).__name__ in ("InterpreterError", "CompilationError"):
        error = error.__cause__
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be printed)"
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, 600)


def _where(error):
    """Return the last line of the learner's in a traceback, with its number; "" if there is none."""
    found = ""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            theirs = not file.startswith(OURS) or "<" in file[:1] and not file.startswith("<frozen")
            if theirs and (line := linecache.getline(file, number).strip()):
                found = f"line {number}: {shortened(line, 200)}"
        error = error.__cause__ or error.__context__
    return found


def _leaf(value):
    kind = type(value)  # not isinstance, which a value may contradict
    if issubclass(kind, bool | int | float | complex | np.generic) and np.asarray(value).dtype.kind in "biufc":
        return Leaf("number", np.asarray(value))
    if kind is np.ndarray:
        return (
            Leaf("array", np.array(value)) if value.dtype.kind in "biufc" else Leaf(f"an array of {value.dtype}", None)
        )
    if kind.__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return Leaf("array", (tensor.double() if tensor.is_floating_point() else tensor).numpy())
    if kind is list:
        return Leaf("a list", None)
    return Leaf(f"a {kind.__name__}" + (f", {shortened(value, 100)!r}" if kind is str else ""), None)


# Judging


def _fault(outcome, due):
    """Return the ``Fault`` of an outcome's results; None if it has none."""
    if outcome.missing:
        return None
    if outcome.error:
        return Fault(f"it raised {outcome.error}" + (f"\nin {outcome.where}" if outcome.where else ""))
    if outcome.changed:
        return Fault("it changed its inputs; make new arrays instead.")
    if len(due.exact) == 1 and due.exact[0].ndim and outcome.whole.startswith("a list"):
        return Fault(f"expected an array, your result is {outcome.whole}: np.array makes one of it.")
    names = due.rounded.fields or ([""] if len(due.exact) == 1 else [f"result[{at}]" for at in range(len(due.exact))])
    if len(outcome.leaves) != len(due.exact) or outcome.whole == "None":
        many = f"{len(due.exact)} result{'s' if len(due.exact) > 1 else ''}"
        none = "None: does it return its result?" if outcome.whole == "None" else f"{outcome.whole}."
        return Fault(f"expected {many}, got {none}")
    for name, yours, rounded, exact, sways in zip(names, outcome.leaves, due.rounded.leaves, *due[1:], strict=True):
        if fault := _compared(name, yours, rounded, exact, sways):
            return fault
    return None


def _compared(name, yours, rounded, exact, sways):
    what = f"your {name}" if name else "your result"
    if yours.value is None:
        return Fault(f"expected {'an array' if exact.ndim else 'a number'}, {what} is {yours.kind}.")
    if yours.value.shape != exact.shape:
        return Fault(f"expected shape {exact.shape}, {what} has {yours.value.shape}.")
    numbers = rounded.value.dtype if exact.ndim else np.result_type(rounded.value.dtype, float)  # a count may be 8.0
    if not np.can_cast(yours.value.dtype, numbers, "same_kind"):
        return Fault(f"expected {NUMBERS[numbers.kind]}, {what} is {yours.value.dtype}.")
    finite = np.isfinite(exact)
    own = rounded.value[finite] - exact[finite]
    floating = np.issubdtype(rounded.value.dtype, np.floating)
    eps = np.finfo(rounded.value.dtype).eps if floating else 0
    floor = np.finfo(np.float32).tiny if floating else 0  # numbers below have lost digits, however they are computed
    limit = 2 * _largest(own) + 8 * eps * _largest(exact[finite]) + 4 * sways + floor
    if _within_limit(yours.value, exact, limit):
        return None
    due, given = _apart(exact, yours.value)
    coarse = floating and _explained_by_rounding(yours.value, exact, limit, eps)
    reasons = f"{what} is {yours.value.dtype}, which rounds more coarsely than {rounded.value.dtype}." if coarse else ""
    reasons = "\n".join(filter(None, (reasons, _left_as_before(what, yours.value))))
    return Fault(reasons, ((f"expected {name or 'result'}", due), (what, given)))


def _within_limit(value, exact, limit):
    """Return whether numbers differ by a limit at most where the exact ones are finite, and not at all elsewhere."""
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        near = np.abs(value[finite] - exact[finite]) <= limit  # NaN compares as wrong
    return near.all() and np.array_equal(value[~finite], exact[~finite])


def _explained_by_rounding(value, exact, limit, eps):
    """Return whether numbers in a coarser dtype than that of ``eps`` are right within the limit of their own dtype."""
    if value.dtype.kind != "f" or np.finfo(value.dtype).eps <= eps:
        return False
    with np.errstate(all="ignore"):
        rounded = np.float64(exact.astype(value.dtype))  # inf where the dtype ends
    return _within_limit(np.float64(value), rounded, limit * np.finfo(value.dtype).eps / eps)


def _left_as_before(what, value):
    """Say which rows of an output hold what they held before the launch; "" if none does."""
    before = _before(value)
    rows = np.flatnonzero(before.reshape(len(before), -1).any(1)) if before.ndim else np.empty(0)
    if not rows.size:
        return ""
    kind = "row" if value.ndim > 1 else "element"
    which = f"{kind} {rows[0]}" if len(rows) == 1 else f"{kind}s {rows[0]} to {rows[-1]}"
    if len(rows) <= rows[-1] - rows[0]:
        which = f"{len(rows)} {kind}s, first {rows[0]},"
    if not before[rows].all():
        which = f"parts of {which}"
    return f"{which} of {what} hold{'s' * (len(rows) == 1)} what was there before: was anything stored there?"


def _before(value):
    """Return which elements were never stored."""
    return value.view(np.int32) == NEVER if value.dtype == np.float32 else np.zeros(value.shape, bool)


def _alike(a, b):
    """Are two outcomes the same numbers, NaN included, up to rounding, or the same failure?"""
    if a.error or b.error or a.changed != b.changed:
        return bool(a.error) and a.error.rsplit(": ", 1)[-1] == b.error.rsplit(": ", 1)[-1]  # without their names
    if len(a.leaves) != len(b.leaves) or any(leaf.value is None for leaf in (*a.leaves, *b.leaves)):
        return False
    return all(_equal(x.value, y.value) for x, y in zip(a.leaves, b.leaves, strict=True))


def _equal(x, y):
    if x.shape != y.shape or not np.array_equal(_before(x), _before(y)):
        return False
    with np.errstate(all="ignore"):
        return bool(np.allclose(x, y, 1e-4, 1e-6 * min(1, _largest(y[np.isfinite(y)])), equal_nan=True))


def _map(function, tree):
    if isinstance(tree, tuple):
        mapped = [_map(function, leaf) for leaf in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return function(tree)


def _results(returned):
    """Return the leaves of what a function returned. A list of results serves for a tuple."""
    return _leaves(tuple(returned) if type(returned) is list else returned)


def _leaves(tree, depth=8):
    """Return the leaves of nested tuples; what is nested too deep for a result is a leaf."""
    if not isinstance(tree, tuple) or depth == 0:
        return [tree]
    return [leaf for branch in tree for leaf in _leaves(branch, depth - 1)]


def _widen(leaf):
    return leaf.astype(np.float64) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else copy.deepcopy(leaf)


def _largest(difference):
    return np.abs(difference).max(initial=0)


# Words


def shortened(text: str, length: int) -> str:
    """Return a text that can be printed, cut to a length."""
    text = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be printed
    return text if len(text) <= length else f"{text[: length - 2]} …"


def described(value) -> str:
    """Return what kind of thing a value is, with its article."""
    name = type(value).__name__
    if value is None:
        return "None"
    many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{many}"


def _apart(expected, given):
    """Return two arrays in words, with as many digits as it takes to tell them apart."""
    for digits in (4, 7, 10, 16):
        if (due := _short(expected, digits)) != (yours := _short(given, digits)):
            break
    return due, yours


def _short(value, digits=4):
    if hasattr(value, "_fields"):
        return ", ".join(f"{name} = {_short(leaf)}" for name, leaf in zip(value._fields, value, strict=True))
    if isinstance(value, np.ndarray) or np.isscalar(value):
        text = np.array2string(np.asarray(value), precision=digits, threshold=32, edgeitems=2, separator=", ")
        return shortened(text.replace("\n", ""), 200)
    return shortened(value, 200)
