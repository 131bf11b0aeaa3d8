"""Parameters of tests that take too long for ``make test``; ``make test-all`` runs them."""

import pytest


def long(*values):
    """Return the parameters of one case that is long."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def long_except(quick, cases):
    """Return the parameters of all cases; those that are not among ``quick`` are long."""
    every = ((case, case if isinstance(case, tuple) else (case,)) for case in cases)
    return [pytest.param(*values) if case in quick else long(*values) for case, values in every]
