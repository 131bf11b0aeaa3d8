"""Every wrong answer that was collected is rejected, and told by name where its line says so."""

from itertools import islice

import numpy as np
import pytest

from flashlab import kernels
from flashlab.course.registry import find
from flashlab.grading import poison, verdict
from tests.mutants.answers import afterwards, in_numpy, in_other_lessons, in_triton

pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only")
IN_NUMPY = in_numpy.ANSWERS + in_other_lessons.ANSWERS
NAMED = 0.85  # of the wrong answers that people gave, at least


def sentence(answer):
    """What the check says of a wrong answer: on the case that it gets wrong, and by name. None if it is accepted."""
    exercise = find(answer.exercise)
    with poison.poisoned(), np.errstate(all="ignore"):
        tried, due, outcomes = [], verdict.known(exercise), verdict.outcomes(exercise, answer.attempt())
        first = verdict.first_wrong(exercise, noted(outcomes, tried), due)
        if first is None:
            return None
        at, said = first
        tried.extend(islice(outcomes, verdict.LATER))
        return f"{said}\n{next(verdict.recognise(exercise, tried, at, due))}"


def noted(outcomes, tried):
    """Pass outcomes on as they are asked for, and keep them."""
    for outcome in outcomes:
        tried.append(outcome)
        yield outcome


def accepted(exercise, right):
    """Is a right answer accepted?"""
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
    said = sentence(answer)
    assert said is not None and answer.says in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("answer", in_triton.ANSWERS, ids=ids(in_triton.ANSWERS))
def test_a_wrong_kernel_is_rejected_by_name(answer):
    said = sentence(answer)
    assert said is not None and answer.says in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("answer", afterwards.ANSWERS, ids=ids(afterwards.ANSWERS))
def test_a_wrong_answer_written_afterwards_is_rejected(answer):
    assert sentence(answer) is not None


def test_most_wrong_answers_have_a_name():
    answers = in_numpy.ANSWERS + in_triton.ANSWERS  # the others were made up to try the checks, not to be natural
    assert sum(answer.says != "" for answer in answers) >= NAMED * len(answers)
