"""Every wrong implementation is rejected, and every right one accepted."""

import inspect
import random
import sys

import pytest

from flashlab import kernels
from flashlab.grading.exercise import edited
from tests.mutants.mutants import MUTANTS
from tests.mutants.mutator import compiled, mutants
from tests.mutants.places import EQUIVALENT, PLACES
from tests.tools.long import long_except

pytestmark = [
    pytest.mark.skipif(not kernels.INTERPRETED, reason="kernels are edited in the interpreter only"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CHECKS = {check.__name__: check for it in [*PLACES, *MUTANTS] for check in it.checks}
SLOW = {  # seconds each; tests/kernels has the same comparisons
    f"kernel_{what}" for what in ("backward", "decoding", "float8", "masks", "pieces", "rules", "scores")
}
SAME = {edit for edits in EQUIVALENT.values() for edit in edits}
each_place = pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])


def accepted(place, wrong):
    """Return whether the checks pass with a wrong function in place of the right one."""
    with pytest.MonkeyPatch.context() as patch:
        replace(patch, place, wrong)
        clear_caches(place.module)
        try:
            for check in place.checks:
                check()
        except (Exception, pytest.fail.Exception):
            return False
        finally:
            clear_caches(place.module)
    return True


def replace(patch, place, wrong):
    """Give a function the code of the wrong one, wherever it is used; replace a kernel in all modules that have it."""
    name, right = place.function, place.right
    if hasattr(right, "fn"):
        for owner in [it for path, it in sys.modules.items() if path.startswith("flashlab.")]:
            if vars(owner).get(name) is right:
                patch.setattr(owner, name, wrong)
        return
    for part in "__code__", "__defaults__", "__kwdefaults__":
        patch.setattr(inspect.unwrap(right), part, getattr(inspect.unwrap(wrong), part))


def clear_caches(module):
    """Clear the caches of the functions of a module, whose results may come from the function that is replaced."""
    for it in vars(module).values():
        cached = inspect.unwrap(it, stop=lambda it: hasattr(it, "cache_clear"))
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@pytest.mark.parametrize("check", long_except(set(CHECKS) - SLOW, sorted(CHECKS)))
def test_the_right_implementations_are_accepted(check):
    CHECKS[check]()


@each_place
def test_a_mutant_is_rejected(place):
    wrong = [mutant for mutant in mutants(place.right) if f"{place.name}: {mutant}" not in SAME]
    assert not accepted(place, compiled(place.right, random.Random(place.name).choice(wrong).source))


@pytest.mark.exhaustive
@each_place
def test_all_mutants_are_rejected_but_those_that_compute_the_same(place):
    survivors = {
        f"{place.name}: {it}" for it in mutants(place.right) if accepted(place, compiled(place.right, it.source))
    }
    assert survivors == {edit for edit in SAME if edit.startswith(f"{place.name}: ")}


def quick(mutants):
    """Return test parameters. All mutants are exhaustive but the first of each function, or of each slow check."""
    seen, parameters = set(), []
    for mutant in mutants:
        name = mutant.checks[0].__name__
        place = name if name in SLOW else (mutant.module, mutant.function)
        marks = [pytest.mark.exhaustive] if place in seen else []
        parameters.append(pytest.param(mutant, marks=marks, id=f"{mutant.function}: {mutant.mistake}"))
        seen.add(place)
    return parameters


@pytest.mark.parametrize("mutant", quick(MUTANTS))
def test_a_wrong_kernel_is_rejected(mutant):
    assert not accepted(mutant, edited(mutant.right, mutant.old, mutant.new))
