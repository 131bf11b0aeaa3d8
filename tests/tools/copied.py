"""Copies of the course's functions, which a check judges as it does a learner's."""

import inspect
from collections.abc import Callable

from flashlab.grading.exercise import edited


def copied(function: Callable) -> Callable:
    """Return a copy of a function, class or kernel that was not defined in a file of the course."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    line = f"{'class' if isinstance(plain, type) else 'def'} {plain.__name__}("
    return edited(function, line, line)
