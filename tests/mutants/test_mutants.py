"""Every wrong implementation is rejected, and every right one accepted."""

import sys

import numpy as np
import pytest

from docs import wrong_answers
from flashlab import kernels
from flashlab.course.registry import every
from flashlab.grading.exercise import edited
from tests.mutants import acceptance
from tests.mutants.mutants import MUTANTS
from tests.tools.long import long_except

CHECKS = sorted({mutant.check.__name__ for mutant in MUTANTS})
pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only")


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr("flashlab.kernels.plan.choose", acceptance.small_tiles)
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


SLOW = {  # seconds each; tests/kernels has the same comparisons
    f"kernel_{what}" for what in ("backward", "decoding", "float8", "masks", "pieces", "rules", "scores")
}


@pytest.mark.parametrize("check", long_except(set(CHECKS) - SLOW, CHECKS))
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


def test_the_page_of_the_site_lists_every_mutant_and_every_sentence():
    text = wrong_answers.page()
    sentences = [it.says for exercise in every().values() for it in getattr(exercise, "mistakes", ())]
    assert [it for it in [*(mutant.mistake for mutant in MUTANTS), *sentences] if f"| {it} |" not in text] == []
