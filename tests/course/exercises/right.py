"""A test of right answers, however they are written, for the file of each lesson."""

from collections.abc import Callable

import pytest

from flashlab.course.registry import find
from flashlab.grading.poison import poisoned
from flashlab.grading.verdict import first_failure


def all_pass(answers: dict[str, list[Callable]]) -> Callable:
    """Return a test that each of these answers to exercises passes the exercise's check."""
    pairs = [(name, answer) for name in answers for answer in answers[name]]

    @pytest.mark.parametrize("name, answer", pairs, ids=lambda it: getattr(it, "__name__", it))
    def test(name, answer):
        with poisoned():
            assert first_failure(find(name), answer) is None

    return test
