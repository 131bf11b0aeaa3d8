"""The exercises of the course by name. "online_softmax.merge" is ``merge`` of ``exercises/online_softmax.py``."""

from importlib import import_module
from importlib.util import find_spec

from flashlab.course.exercise import Exercise, Question
from flashlab.course.lessons import LESSONS

HOME = "flashlab.course.exercises"


def find(name: str) -> Exercise | Question:
    """Return the exercise called "LESSON.NAME". Raises ValueError if there is none."""
    lesson, _, exercise = name.partition(".")
    found = _of(lesson).get(exercise) if lesson in {it.name for it in LESSONS} else None
    if found is None:
        raise ValueError(f'there is no exercise "{name}"; names look like "online_softmax.merge"')
    return found


def every() -> dict[str, Exercise | Question]:
    """Return all exercises by name, in the order of the lessons; those on kernels only where Triton is installed."""
    found = {}
    for lesson in LESSONS:
        try:
            exercises = _of(lesson.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
        else:
            found |= {f"{lesson.name}.{name}": exercise for name, exercise in exercises.items()}
    return found


def _of(lesson):
    """The exercises of a lesson by name; imported when they are asked for, as some need Triton."""
    if find_spec(f"{HOME}.{lesson}") is None:
        return {}
    module = import_module(f"{HOME}.{lesson}")
    return {name: it for name, it in vars(module).items() if isinstance(it, Exercise | Question)}
