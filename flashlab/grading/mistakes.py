"""Name the mistake behind a wrong attempt: the known mistake with the same answers."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from flashlab.grading.exercise import Exercise
from flashlab.grading.outcomes import cases, outcome_of
from flashlab.grading.records import Expected, Outcome
from flashlab.grading.results import largest
from flashlab.grading.verdict import fault_of, never_stored

PLACES = re.compile(r" \([^()]*:\d+[^()]*\)")  # places in the source, in messages of a simulated machine
LATER = 16  # how many cases after the first wrong one are compared
FEW = 4  # an answer of so many integers may be a mistake's by chance


def recognise(
    exercise: Exercise, attempted: Sequence[Outcome], first: int, expected: Sequence[Expected]
) -> Iterator[str | None]:
    """Yield, once, the text of the known mistake that explains the attempt; None if there is none.

    attempted: outcomes of the attempt, case by case. first: the first case that it gets wrong. A mistake explains the
    attempt if it has the same wrong answer in this case, and no wrong answer in a case that the attempt gets right. If
    the attempt gets later cases wrong, the two must agree in at least one of them, and in at least as many as they
    disagree; cases in which the attempt raises an error are no disagreement. A few integers may agree by chance: there
    the two must agree in all of them. Of several such mistakes, the one that agrees most often is named. If all results
    are right and a law is broken, the mistake must break the same law and agree in all cases. Where results are wrong
    and no mistake explains them, the sentence of a broken law with inputs of its own is the text.
    """
    lawless = fault_of(attempted[first], expected[first]) is None
    together = attempted[: first + 1 + LATER]
    again = {at for at, mine in enumerate(together) if at > first and fault_of(mine, expected[at])}
    exact = expected[first].exact
    by_chance = all(it.dtype.kind in "iub" for it in exact) and sum(it.size for it in exact) <= FEW
    alike = {}
    for mistake in exercise.mistakes:
        wrong = mistake.function(exercise.reference)
        theirs = outcome_of(exercise, wrong, cases(exercise)[first].args, lawless)  # most mistakes differ here
        if not _alike(theirs, attempted[first]):
            continue
        if _law(theirs) != _law(attempted[first]) if lawless else fault_of(theirs, expected[first]) is None:
            continue
        same = {first}
        for at, mine in enumerate(together):
            if at == first:
                continue
            theirs = outcome_of(exercise, wrong, cases(exercise)[at].args, laws=False)
            if _alike(theirs, mine):
                same.add(at)
            elif at < first or at not in again and fault_of(theirs, expected[at]):
                break
        else:
            refuted = sum(not together[at].error for at in again - same)
            enough = not refuted if by_chance else len(again & same) >= max(1, refuted)
            if len(same) == len(together) if lawless else not again or enough:
                alike.setdefault(len(same), mistake.message)
    broken = (it.broke for it in attempted if it.broke and it.broke.on)
    reasons = (f"It looks like this: {it.message}" for it in broken if not (lawless or it.if_right))
    yield alike[max(alike)] if alike else next(reasons, None)


def _law(outcome):
    return outcome.broke and outcome.broke.message


def _alike(a, b):
    """Return whether two outcomes are the same numbers, NaN included, up to rounding, or the same failure."""
    if a.error or b.error or a.changed != b.changed:
        return bool(a.error) and _failure(a.error) == _failure(b.error)
    if len(a.leaves) != len(b.leaves) or any(leaf.value is None for leaf in (*a.leaves, *b.leaves)):
        return False
    return all(_equal(x.value, y.value) for x, y in zip(a.leaves, b.leaves, strict=True))


def _failure(error):
    """Return the common part of errors with one cause: the message without places in the source, or its last part."""
    anywhere = PLACES.sub("", error)
    return error.rsplit(": ", 1)[-1] if anywhere == error else anywhere


def _equal(x, y):
    if x.shape != y.shape or not np.array_equal(never_stored(x), never_stored(y)):
        return False
    with np.errstate(all="ignore"):
        return bool(np.allclose(x, y, 1e-4, 1e-6 * min(1, largest(y[np.isfinite(y)])), equal_nan=True))
