"""Parameters of tests that take too long for ``make test``; ``make test-all`` runs them."""

import pytest


def long(*values):
    """Return the parameters of one long case."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def long_except(quick, cases):
    """Return the parameters of all cases; all but those in ``quick`` are long."""
    every = ((case, case if isinstance(case, tuple) else (case,)) for case in cases)
    return [pytest.param(*values) if case in quick else long(*values) for case, values in every]
