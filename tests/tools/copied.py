"""Copies of the course's functions, which a check judges as it does a learner's."""

import inspect
from collections.abc import Callable

from flashlab.grading.exercise import edited


def copied(function: Callable) -> Callable:
    """Return a copy of a function or kernel that was not defined in a file of the course."""
    line = f"def {inspect.unwrap(getattr(function, 'fn', function)).__name__}("
    return edited(function, line, line)
