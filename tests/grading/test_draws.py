"""Cases that are drawn at random are the same again, and the smallest one that fails is shown."""

import numpy as np

from flashlab.course.check import check
from flashlab.course.registry import every
from flashlab.grading import draws, outcomes, results
from flashlab.grading.exercise import Exercise


def drawn():
    return {name: it for name, it in every().items() if isinstance(it, Exercise) and it.draw}


def test_cases_are_the_same_again():
    for exercise in list(drawn().values())[:10]:
        for one, other in zip(draws.cases(exercise), draws.cases(exercise), strict=True):
            np.testing.assert_equal(one.args, other.args)


def test_edges_come_first_and_are_few():
    for name, exercise in drawn().items():
        assert len(exercise.edges) <= 5, name
        assert len(exercise.mistakes) <= 6, name
        assert outcomes.cases(exercise)[: len(exercise.edges)] == exercise.edges


def floats(cases):
    """Yield the arrays of real numbers among the inputs of cases."""
    for case in cases:
        for leaf in results.leaves(case.args):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
                yield leaf


def test_inputs_are_finite_or_hidden():
    """No draw has NaN; -inf is a mask, and inf occurs only if an edge case has it."""
    for name, exercise in drawn().items():
        has_infinity = any((leaf == np.inf).any() for leaf in floats(exercise.edges))
        for leaf in floats(outcomes.cases(exercise)):
            assert not np.isnan(leaf).any() and (has_infinity or not (leaf == np.inf).any()), (name, leaf)


def test_the_smallest_wrong_inputs_are_shown(capsys):
    def wrong_beyond_two_rows(x):
        y = np.exp(x - np.where(np.isneginf(m := x.max(1, keepdims=True)), 0, m))
        total = y.sum(1, keepdims=True, dtype=np.float32)
        y = (y / np.where(total == 0, 1, total)).astype(x.dtype)
        return y if len(x) < 3 else 2 * y

    check("safe_softmax.rows", wrong_beyond_two_rows)
    text = capsys.readouterr().out
    rows = text.split("x = ")[1].split("expected")[0].count("[") - 1
    assert draws.PROPERTY in text and rows == 3, text
