"""Every wrong implementation is rejected, every right one accepted; and the table that says so is true."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flashlab import kernels
from flashlab.course import worker
from flashlab.course.exercise import Exercise, edited
from flashlab.course.judge import first_failure
from flashlab.course.registry import every
from tests.mutants import acceptance
from tests.mutants.answers import afterwards, in_numpy, in_other_lessons, in_triton
from tests.mutants.mutants import MUTANTS

TABLE = Path(__file__).with_name("README.md")
CHECKS = sorted({mutant.check.__name__ for mutant in MUTANTS})
pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only")


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr("flashlab.kernels.attention.choose", acceptance.small_tiles)
    with np.errstate(all="ignore"):
        yield


def rejected(mutant, monkeypatch):
    """Why a mutant fails its check, in the check's first line; None if it passes."""
    *owner, name = mutant.function.split(".")
    owner = getattr(mutant.module, owner[0]) if owner else mutant.module
    right = getattr(owner, name)
    wrong = edited(right, mutant.old, mutant.new)
    by_name = [it for path, it in sys.modules.items() if path.startswith("flashlab.")]  # whoever imports the function
    for module in [owner, *by_name]:
        if vars(module).get(name) is right:
            monkeypatch.setattr(module, name, wrong)
    try:
        mutant.check()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return None


SLOW = {
    "kernel_masks",
    "kernel_rules",
    "kernel_scores",
    "kernel_decoding",
}  # seconds each; tests/kernels has the same comparisons


@pytest.mark.parametrize(
    "check", [pytest.param(check, marks=[pytest.mark.exhaustive] if check in SLOW else []) for check in CHECKS]
)
def test_what_is_right_is_accepted(check):
    getattr(acceptance, check)()


def quick(mutants):
    """Return test parameters: the first mutant of each function, or slow check, is quick, the others are exhaustive."""
    seen, parameters = set(), []
    for mutant in mutants:
        name = mutant.check.__name__
        place = name if name in SLOW else (mutant.module, mutant.function)
        marks = [pytest.mark.exhaustive] if place in seen else []
        parameters.append(pytest.param(mutant, marks=marks, id=f"{mutant.function}: {mutant.mistake}"))
        seen.add(place)
    return parameters


@pytest.mark.parametrize("mutant", quick(MUTANTS))
def test_a_wrong_implementation_is_rejected(mutant, monkeypatch):
    assert rejected(mutant, monkeypatch) is not None


def table():
    """The mutants of the implementations and of the exercises, each with its edit and the check that rejects it."""
    yield "# Wrong implementations, and what rejects them\n"
    yield "Each line is a mistake that somebody might make, and the test or the check that must reject it.\n"
    yield "Written by `python -m tests.mutants.test_mutants`; `test_mutants.py` fails when a line is not true.\n"
    yield f"## In the library: {len(MUTANTS)}\n"
    yield "| mistake | in | becomes | rejected by |\n|---|---|---|---|"
    for mutant in MUTANTS:
        where = f"{mutant.module.__name__.removeprefix('flashlab.')}.{mutant.function}"
        yield f"| {mutant.mistake} | `{where}` | {_code(mutant.new)} | {mutant.check.__name__} |"
    yield from _answers()
    exercises = {name: it for name, it in every().items() if isinstance(it, Exercise)}
    yield f"\n## In the exercises: {sum(len(it.mistakes) for it in exercises.values())}\n"
    yield "| exercise | what the check says | becomes | first fails for |\n|---|---|---|---|"
    for name, exercise in exercises.items():
        for mistake in exercise.mistakes:
            with worker.poisoned():
                failure = first_failure(exercise, mistake.function(exercise.reference)) or "NOTHING: IT PASSES"
            yield f"| {name} | {mistake.says} | {_code(mistake.new)} | {failure.splitlines()[0]} |"


def _answers():
    """Count the collected wrong answers, and those with a name; ``test_answers.py`` checks that all are rejected."""
    answers = in_numpy.ANSWERS + in_other_lessons.ANSWERS + in_triton.ANSWERS + afterwards.ANSWERS
    rejected, named = (Counter(it.exercise for it in chosen) for chosen in (answers, [it for it in answers if it.says]))
    yield f"\n## Wrong answers to the exercises: {rejected.total()}, {named.total()} of them named\n"
    natural = in_numpy.ANSWERS + in_triton.ANSWERS  # the others were made up to try the checks
    known = sum(it.says != "" for it in natural)
    share = f"{known / len(natural):.0%}"
    yield f"Of the {len(natural)} natural ones, most of them from reviews of the lessons, {known} are named: {share}.\n"
    yield "| exercise | rejected | with a sentence of its own |\n|---|---|---|"
    for name in sorted(rejected, key=list(every()).index):
        yield f"| {name} | {rejected[name]} | {named[name]} |"


def _code(text):
    return f"`` {' '.join(text.split())} ``".replace("|", "\\|") if text.strip() else "(nothing)"


@pytest.mark.exhaustive
def test_the_table_is_true():
    written = "\n".join(table()) + "\n"
    assert "IT PASSES" not in written
    assert TABLE.read_text(encoding="utf-8") == written, "run python -m tests.mutants.test_mutants"


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        TABLE.write_text("\n".join(table()) + "\n", encoding="utf-8")
