"""The exercises of the course by name. "online_softmax.merge" is ``merge`` of ``exercises/online_softmax``."""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

from flashlab.course.lessons import LESSONS
from flashlab.grading.exercise import Exercise, Question

HOME = "flashlab.course.exercises"


class UnknownExercise(ValueError):
    """There is no exercise of that name. The message suggests a similar name."""


def find(name: str) -> Exercise | Question:
    """Return the exercise called "LESSON.NAME". Raises UnknownExercise, a ValueError, if there is none."""
    if not isinstance(name, str):
        got = f"got an object of type {type(name).__name__}"
        raise UnknownExercise(f'the name of an exercise comes first, such as "online_softmax.merge", {got}')
    lesson, _, exercise = name.partition(".")
    found = _of(lesson).get(exercise) if lesson in {it.name for it in LESSONS} else None
    if found is None:
        raise UnknownExercise(f'there is no exercise "{name[:60]}"; {_near(lesson, exercise)}')
    return found


def every() -> dict[str, Exercise | Question]:
    """Return all exercises by name, in the order of the lessons; those on kernels only where Triton is installed."""
    found = {}
    for lesson in LESSONS:
        try:
            exercises = _of(lesson.name)
        except ModuleNotFoundError:
            if lesson.needs == "numpy":
                raise
        else:
            found |= {f"{lesson.name}.{name}": exercise for name, exercise in exercises.items()}
    return found


def _near(lesson, exercise):
    lessons = get_close_matches(lesson, [it.name for it in LESSONS], 1)
    exercises = get_close_matches(exercise, _of(lessons[0]), 1) if lessons else []
    return f'did you mean "{lessons[0]}.{exercises[0]}"?' if exercises else 'names look like "online_softmax.merge"'


def _of(lesson):
    """Return the exercises of a lesson by name. They are imported only now, since some need Triton.

    Their order is that of the module, or of ``__all__`` in a package.
    """
    if find_spec(f"{HOME}.{lesson}") is None:
        return {}
    module = import_module(f"{HOME}.{lesson}")
    names = getattr(module, "__all__", vars(module))
    return {name: it for name in names if isinstance(it := getattr(module, name), Exercise | Question)}
