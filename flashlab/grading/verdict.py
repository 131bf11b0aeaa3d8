"""Decide whether an attempt is right, from its answers and those of the reference.

``outcomes`` runs untrusted code; ``first_wrong``, which judges, runs none. ``course.check`` runs the
first by ``forked``, and then the second; ``first_failure`` runs both in this process.

The precision of the reference is the limit: the error of an attempt, against the reference in float64, may be twice the
error of the reference in the dtype of the inputs, and a few roundings more. If an exercise sets ``sways``, a few
roundings of the inputs add their effect: products added in another order give other scores, and far from zero the
results change much with them. So do the roundings on the way of the functions in ``rounded``. NaN is never right in
place of a number.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flashlab.grading.exercise import Exercise
from flashlab.grading.outcomes import cases, expected_of, outcomes
from flashlab.grading.records import Expected, Outcome
from flashlab.grading.results import largest
from flashlab.grading.words import apart, short

NUMBERS = {"b": "booleans", "u": "integers", "i": "integers", "f": "real numbers", "c": "complex numbers"}
FINEST = 1e-13  # relative: sums of numbers in float64 differ by more than its eps if their order differs
NEVER = 0x7FC0F1A5  # the bits of a NaN that no computation gives: what an output of float32 holds before it is stored


class Fault(NamedTuple):
    """A fault of an attempt: a sentence, and names with values in words."""

    message: str
    results: tuple[tuple[str, str], ...] = ()  # what was expected, and what came
    on: str = ""  # the property of the case, which is broken
    inputs: tuple[tuple[str, str], ...] = ()  # of the case

    def __str__(self):
        """Return all of it in lines."""
        pairs = (f"  {name} = {value}" for name, value in (*self.inputs, *self.results))
        return "\n".join(filter(None, (self.on, *pairs, self.message)))


def first_failure(exercise: Exercise, attempt: Callable) -> Fault | None:
    """Return the fault of an attempt on the first wrong case, or None if it is right on all cases.

    Runs the attempt in this process. Raises NotImplementedError for a stub.
    """
    with np.errstate(all="ignore"):
        first = first_wrong(exercise, _attempted(outcomes(exercise, attempt)), expected_of(exercise))
    return first and first[1]


def _attempted(outcomes):
    for outcome in outcomes:
        if outcome.missing:
            raise NotImplementedError
        yield outcome


def first_wrong(
    exercise: Exercise, outcomes: Iterable[Outcome], expected: Sequence[Expected]
) -> tuple[int, Fault] | None:
    """Return the first wrong case of an attempt, and its fault. None if it is right.

    Laws count only if the results of all cases are right, which their sentences may presuppose.
    """
    lawless = None
    for at, outcome in enumerate(outcomes):
        if fault := fault_of(outcome, expected[at]):
            return at, on(fault, exercise, at)
        if outcome.broke and lawless is None:
            broken = Fault(outcome.broke.message, on=outcome.broke.on)
            lawless = at, broken if broken.on else on(broken, exercise, at)
    return lawless


def on(fault: Fault, exercise: Exercise, at: int) -> Fault:
    """Return a fault with the property and the inputs of a case."""
    case, names = cases(exercise)[at], inspect.signature(exercise.truth()).parameters
    inputs = ((name, short(value)) for name, value in zip(names, case.args, strict=False))
    return fault._replace(on=case.property, inputs=tuple(inputs))


def fault_of(outcome: Outcome, expected: Expected) -> Fault | None:
    """Return the ``Fault`` of an outcome's results; None if it has none."""
    if outcome.missing:
        return None
    if outcome.error:
        return Fault(f"it raised {outcome.error}" + (f"\nin {outcome.where}" if outcome.where else ""))
    if outcome.changed:
        return Fault("it changed its inputs; make new ones instead.")
    if len(expected.exact) == 1 and expected.exact[0].ndim and outcome.whole.startswith("a list"):
        return Fault(f"expected an array, your result is {outcome.whole}: np.array makes one of it.")
    names = expected.rounded.fields or (
        [""] if len(expected.exact) == 1 else [f"result[{at}]" for at in range(len(expected.exact))]
    )
    if len(outcome.leaves) != len(expected.exact) or outcome.whole == "None":
        many = f"{len(expected.exact)} result{'s' if len(expected.exact) > 1 else ''}"
        none = "None: does it return its result?" if outcome.whole == "None" else f"{outcome.whole}."
        return Fault(f"expected {many}, got {none}")
    for name, yours, rounded, exact, sways in zip(
        names, outcome.leaves, expected.rounded.leaves, *expected[1:], strict=True
    ):
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
    eps = max(FINEST, np.finfo(rounded.value.dtype).eps) if floating else 0
    floor = np.finfo(np.float32).tiny if floating else 0  # smaller numbers have fewer digits, however they are computed
    limit = 2 * largest(own) + 8 * eps * largest(exact[finite]) + 4 * sways + floor
    if _within_limit(yours.value, exact, limit):
        return None
    right, wrong = apart(exact, yours.value)
    coarse = floating and _explained_by_rounding(yours.value, exact, limit, eps)
    reasons = f"{what} is {yours.value.dtype}, which rounds more coarsely than {rounded.value.dtype}." if coarse else ""
    reasons = "\n".join(filter(None, (reasons, _left_as_before(what, yours.value))))
    return Fault(reasons, ((f"expected {name or 'result'}", right), (what, wrong)))


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
        rounded = np.float64(exact.astype(value.dtype))  # inf beyond the range of the dtype
    return _within_limit(np.float64(value), rounded, limit * np.finfo(value.dtype).eps / eps)


def _left_as_before(what, value):
    """Return in words which rows of an output are as before the launch; "" if none is."""
    before = never_stored(value)
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


def never_stored(value: np.ndarray) -> np.ndarray:
    """Return which elements were never stored."""
    return value.view(np.int32) == NEVER if value.dtype == np.float32 else np.zeros(value.shape, bool)
