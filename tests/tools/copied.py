"""Copies of the course's functions, which a check grades as if a learner had written them."""

import inspect
from collections.abc import Callable

from flashlab.grading.exercise import edited


def copied(function: Callable) -> Callable:
    """Return a copy of a function, class or kernel. No file of the course defines the copy."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    line = f"{'class' if isinstance(plain, type) else 'def'} {plain.__name__}("
    return edited(function, line, line)
