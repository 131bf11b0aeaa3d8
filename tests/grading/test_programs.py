"""A kernel is launched once for each case: its loads and stores are counted in the same run."""

from dataclasses import replace

import pytest

from flashlab.course.registry import find
from flashlab.grading import outcomes, programs
from flashlab.kernels import INTERPRETED
from flashlab.kernels.interpreter import launches_noted
from tests.tools.copied import copied

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a GPU counts nothing")


def test_reference_and_attempt_are_launched_once_per_case():
    exercise = replace(find("first_triton_kernel.add"), once=())  # no laws with inputs of their own
    cases, launches = outcomes.cases(exercise), []
    with launches_noted(lambda *launch: launches.append(launch)):
        list(outcomes.expected(exercise))
        assert len(launches) == len(cases)
        results = list(outcomes.outcomes(exercise, copied(exercise.reference)))
    assert len(launches) == 2 * len(cases) and not any(outcome.broke for outcome in results)


def test_loads_and_stores_are_those_of_each_program():
    exercise = find("first_triton_kernel.add")
    (args,) = (case.args for case in outcomes.cases(exercise) if case.property == "two blocks, the second one not full")
    with programs.noted() as events:
        exercise.run(exercise.reference)(*args)
    moved = [[(event.kind, event.name, event.nbytes) for event in program] for program in events]
    assert moved == [[("load", "x", n), ("load", "y", n), ("store", "z", n)] for n in (16, 8)]
