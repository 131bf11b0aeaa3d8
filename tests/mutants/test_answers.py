"""Every collected wrong answer is rejected, with the name of its mistake where its line has one."""

from itertools import islice

import numpy as np
import pytest

from flashlab import kernels
from flashlab.course.registry import find
from flashlab.grading import mistakes, outcomes, poison, verdict
from tests.mutants.answers import in_numpy, in_other_lessons, in_triton

pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only")
IN_NUMPY = in_numpy.ANSWERS + in_other_lessons.ANSWERS


def sentence(answer):
    """Return what the check says on the first wrong case of an answer, and on its mistake; None if it accepts it."""
    exercise = find(answer.exercise)
    with poison.poisoned(), np.errstate(all="ignore"):
        attempted, expected, ran = [], outcomes.expected_of(exercise), outcomes.outcomes(exercise, answer.attempt())
        first = verdict.first_wrong(exercise, noted(ran, attempted), expected)
        if first is None:
            return None
        at, fault = first
        attempted.extend(islice(ran, mistakes.LATER))
        return f"{fault}\n{next(mistakes.recognise(exercise, attempted, at, expected))}"


def noted(ran, attempted):
    """Yield the outcomes, and append each to ``attempted``."""
    for outcome in ran:
        attempted.append(outcome)
        yield outcome


def accepted(exercise, right):
    """Return whether the check accepts a right answer."""
    with poison.poisoned():
        return verdict.first_failure(find(exercise), right) is None


def ids(answers):
    return [f"{answer.exercise}: {answer.what}" for answer in answers]


def rights(answers):
    """Return the right answers of which these are edits, each once."""
    return sorted({(answer.exercise, answer.right) for answer in answers}, key=str)


def test_a_right_answer_in_numpy_is_accepted():
    for exercise, right in rights(IN_NUMPY):
        assert accepted(exercise, right)


@pytest.mark.exhaustive
@pytest.mark.parametrize("exercise, right", rights(in_triton.ANSWERS))
def test_a_right_kernel_is_accepted(exercise, right):
    assert accepted(exercise, right)


@pytest.mark.parametrize("answer", IN_NUMPY, ids=ids(IN_NUMPY))
def test_a_wrong_answer_in_numpy_is_rejected_by_name(answer):
    text = sentence(answer)
    assert text is not None and answer.message in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("answer", in_triton.ANSWERS, ids=ids(in_triton.ANSWERS))
def test_a_wrong_kernel_is_rejected_by_name(answer):
    text = sentence(answer)
    assert text is not None and answer.message in text
