"""The page of wrong implementations: those of the library, and the mistakes that a check of an exercise names."""

from collections import Counter

from flashlab.course.registry import every
from tests.mutants.answers import in_numpy, in_other_lessons, in_triton
from tests.mutants.mutants import MUTANTS

INTRODUCTION = """# Wrong implementations, and what rejects them

Each line is a mistake. Tests check that all of them are rejected, by the check in the last column or by that of the
exercise.
"""


def page() -> str:
    """Return the page in Markdown."""
    return "\n".join([INTRODUCTION, *_of_the_library(), *_of_exercises()]) + "\n"


def _of_the_library():
    yield f"## In the library: {len(MUTANTS)}\n"
    yield "| mistake | in | becomes | rejected by |\n|---|---|---|---|"
    for mutant in MUTANTS:
        where = f"{mutant.module.__name__.removeprefix('flashlab.')}.{mutant.function}"
        yield f"| {mutant.mistake} | `{where}` | {_code(mutant.new)} | {mutant.check.__name__} |"


def _of_exercises():
    mistakes = [(name, it) for name, exercise in every().items() for it in getattr(exercise, "mistakes", ())]
    collected = in_numpy.ANSWERS + in_other_lessons.ANSWERS + in_triton.ANSWERS
    answers = Counter(answer.exercise for answer in collected)
    yield f"\n## In the exercises: {len(mistakes)}, and {answers.total()} collected answers\n"
    yield "| exercise | what the check says | becomes | collected answers |\n|---|---|---|---|"
    for name, mistake in mistakes:
        yield f"| {name} | {mistake.says} | {_code(mistake.new)} | {answers.pop(name, '')} |"


def _code(text):
    return f"`` {' '.join(text.split())} ``".replace("|", "\\|") if text.strip() else "(nothing)"
