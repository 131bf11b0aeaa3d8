"""Every collected wrong answer is rejected, with the name of its mistake where its line has one."""

from itertools import islice, tee

import numpy as np
import pytest

from flashlab import kernels
from flashlab.course.registry import find
from flashlab.grading import mistakes, outcomes, poison, verdict
from tests.mutants.answers import in_numpy, in_other_lessons, in_triton

pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only")


def sentence(answer):
    """Return what the check says on the first wrong case of an answer, and on its mistake; None if it accepts it."""
    exercise = find(answer.exercise)
    with poison.poisoned(), np.errstate(all="ignore"):
        ran, again = tee(outcomes.outcomes(exercise, answer.attempt()))
        expected = outcomes.expected_of(exercise)
        first = verdict.first_wrong(exercise, ran, expected)
        if first is None:
            return None
        at, fault = first
        attempted = list(islice(again, at + 1 + mistakes.LATER))
        return f"{fault}\n{next(mistakes.recognise(exercise, attempted, at, expected))}"


def each(answers, *marks):
    return [pytest.param(answer, marks=marks, id=f"{answer.exercise}: {answer.what}") for answer in answers]


@pytest.mark.parametrize("answer", [
    *each(in_numpy.ANSWERS + in_other_lessons.ANSWERS),
    *each(in_triton.ANSWERS, pytest.mark.exhaustive),
])  # fmt: skip
def test_a_wrong_answer_is_rejected_by_name(answer):
    text = sentence(answer)
    assert text is not None and answer.message in text
