"""What a learner calls: ``check`` an attempt, ask for a ``hint``, see the ``solution``, ``show`` a function's source.

A check never raises, whatever it is given: it prints what it found. An attempt is run on each case of its exercise,
small ones first; the case's name is the property that a wrong answer breaks, and if the attempt answers as one of the
known mistakes would, the check says which. ``python -m flashlab.course.check`` prints how far you are.
"""

import argparse
from textwrap import shorten

from flashlab.course import judge, progress
from flashlab.course.exercise import Question, edited
from flashlab.course.registry import every, find
from flashlab.course.source import show

__all__ = ["check", "edited", "hint", "overview", "show", "solution"]


def check(name: str, attempt: object) -> None:
    """Print whether ``attempt`` (a function, or the answer to a question) solves the exercise ``name``."""
    exercise = find(name)
    if attempt is ...:
        print(f'○ {name}: not answered yet.   (hint("{name}") helps)')
        return
    try:
        if isinstance(exercise, Question):
            solved, said = _answered(exercise, attempt)
        else:
            solved, said = _attempted(exercise, attempt)
    except NotImplementedError:
        print(f'○ {name}: not attempted yet.   (hint("{name}") helps)')
        return
    print(f"{'✓' if solved else '✗'} {name}{said}")
    progress.note(name, solved, said.strip(": \n"))


def hint(name: str, layer: int = 1) -> None:
    """Print one of three hints for the exercise ``name``: 1 says where to look, 3 nearly says it all."""
    hints = find(name).hints
    if layer not in (1, 2, 3):
        raise ValueError(f"hints have three layers, 1 to 3, got {layer!r}")
    more = f'   (more: hint("{name}", {layer + 1}))' if layer < 3 else ""
    print(f"Hint {layer} of 3: {hints[layer - 1]}{more}")


def solution(name: str, *, sure: bool = False) -> None:
    """Print the reference for the exercise ``name``, once you are sure."""
    exercise = find(name)
    if not sure:
        print(f'Have you read hint("{name}", 3)? If you still want to see it: solution("{name}", sure=True)')
    elif isinstance(exercise, Question):
        print(f"{exercise.answer}: {exercise.because}")
    else:
        show(exercise.reference)


def overview() -> None:
    """Print the course at a glance: for each exercise its level and time, whether it is solved, and the last error."""
    tried, exercises = progress.read(), every()
    for name, exercise in exercises.items():
        entry = tried.get(name)
        mark, said = ("○", "") if entry is None else ("✓", "") if entry["solved"] else ("✗", entry["said"])
        last = shorten(said.split("\n")[-1].removeprefix("It looks like this: "), 70, placeholder=" …")
        print(f"{mark} {name:36} {'*' * exercise.level:4} {exercise.minutes:3} min   {last}".rstrip())
    solved = sum(tried.get(name, {}).get("solved", False) for name in exercises)
    print(f"{solved} of {len(exercises)} solved")


def _attempted(exercise, attempt):
    if not callable(attempt):
        return False, f": expected a function, got a {type(attempt).__name__}."
    try:
        failure, looks_like = judge.verdict(exercise, attempt)
    except TimeoutError:
        return False, f": still running after {judge.PATIENCE:g} s, stopped. Does a loop never end?"
    if failure is None:
        return True, f": right in all {len(exercise.cases())} cases."
    return False, f" fails for {failure}\n{f'It looks like this: {looks_like}' if looks_like else 'A hint may help.'}"


def _answered(question, answer):
    if _same(answer, question.answer, question.rel):
        return True, f": {question.answer}. {question.because}"
    for wrong, why in question.wrong:
        if _same(answer, wrong, question.rel):
            return False, f": not {answer}. {why}"
    return False, f": not {answer!r}. {_wanted(question, answer)}A hint may help."


def _wanted(question, answer):
    """The kind of answer that a question wants, where it got one of another kind."""
    if isinstance(question.answer, str):
        return f"Choose one of {', '.join(sorted({question.answer, *(wrong for wrong, _ in question.wrong)}))}. "
    return "A number is wanted. " if isinstance(answer, str) else ""


def _same(answer, expected, rel):
    if isinstance(expected, (bool, str)) or isinstance(answer, (bool, str)):
        return type(answer) is type(expected) and answer == expected
    try:
        return bool(abs(float(answer) - expected) <= rel * abs(expected))
    except (TypeError, ValueError):
        return False


if __name__ == "__main__":
    argparse.ArgumentParser("python -m flashlab.course.check", description=overview.__doc__).parse_args()
    overview()
