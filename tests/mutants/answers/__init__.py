"""Wrong answers that readers of the lessons gave: each is a few edits of a right answer of ``tests.course.exercises``.

The right answers differ from the references on purpose, so that a mistake is recognised by what it does and not by how
it is written. To add a wrong answer, add a line: what it is, what the check must say of it ("" for no name), and the
edits. An answer stays only if no other answer to the exercise fails a smaller set of cases and laws: a check that
rejects the answers here also rejects those that were left out.
"""

from collections.abc import Callable
from typing import NamedTuple

from flashlab.grading.exercise import edited


class Answer(NamedTuple):
    """A wrong answer to an exercise. ``message``: words of the sentence that the check must print; "" if it has none."""

    exercise: str
    what: str
    message: str
    right: Callable
    edits: tuple[tuple[str, str], ...]

    def attempt(self) -> Callable:
        """Return the wrong function or kernel."""
        function = self.right
        for old, new in self.edits:
            function = edited(function, old, new)
        return function


def wrong(exercise: str, right: Callable, *lines: tuple) -> list[Answer]:
    """Return answers from lines (what, message, old, new, more pairs of old and new)."""
    return [
        Answer(exercise, what, message, right, tuple(zip(edits[::2], edits[1::2], strict=True)))
        for what, message, *edits in lines
    ]
