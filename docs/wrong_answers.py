"""The page of wrong implementations: those of the library, and the mistakes that a check of an exercise names."""

from collections import Counter
from itertools import groupby

from flashlab.course.registry import every
from tests.mutants.answers import in_numpy, in_other_lessons, in_triton
from tests.mutants.mutants import MUTANTS
from tests.mutants.mutator import RULES
from tests.mutants.places import PLACES

INTRODUCTION = """# Wrong implementations, and what rejects them

Tests verify that each of them is rejected: in the library by the checks in the last column, in the exercises by the
check of the exercise.
"""


def page() -> str:
    """Return the page in Markdown."""
    return "\n".join([INTRODUCTION, *_of_the_library(), *_of_exercises()]) + "\n"


def _of_the_library():
    yield "## In the library\n\nAt each place of a function where it applies, a rule gives a wrong implementation:\n"
    yield from (f"- {rule.__doc__}" for rule in RULES)
    yield "\n| functions | rejected by |\n|---|---|"
    for checks, places in groupby(PLACES, key=lambda place: place.checks):
        functions = ", ".join(f"`{place.name}`" for place in places)
        yield f"| {functions} | {', '.join(check.__name__ for check in checks)} |"
    yield "\n| mistake in a kernel | in | becomes | rejected by |\n|---|---|---|---|"
    for it in MUTANTS:
        yield f"| {it.mistake} | `{it.name}` | {_code(it.new)} | {it.checks[0].__name__} |"


def _of_exercises():
    mistakes = [(name, it) for name, exercise in every().items() for it in getattr(exercise, "mistakes", ())]
    collected = in_numpy.ANSWERS + in_other_lessons.ANSWERS + in_triton.ANSWERS
    answers = Counter(answer.exercise for answer in collected)
    yield f"\n## In the exercises: {len(mistakes)}, and {answers.total()} collected answers\n"
    yield "| exercise | what the check says | becomes | collected answers |\n|---|---|---|---|"
    for name, mistake in mistakes:
        yield f"| {name} | {mistake.message} | {_code(mistake.new)} | {answers.pop(name, '')} |"


def _code(text):
    return f"`` {' '.join(text.split())} ``".replace("|", "\\|") if text.strip() else "(nothing)"
