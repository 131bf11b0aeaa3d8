"""Settings of a process that a learner may change, at their defaults for the time of a check."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

ONE_AT_A_TIME = threading.RLock()  # threads share the filters of warnings, and a fork of its owner owns it
QUIET = DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning  # as Python's own filters
PRINTED = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False, "nanstr": "nan",
    "infstr": "inf", "sign": "-", "formatter": None, "floatmode": "maxprec", "legacy": False,
}  # fmt: skip


@contextmanager
def defaults() -> Iterator[None]:
    """Set numpy's errors and printing, and the filters of warnings, to their defaults; restore them at the end."""
    errors = np.errstate(all="warn", under="ignore")
    with ONE_AT_A_TIME, warnings.catch_warnings(), errors, np.printoptions(**PRINTED):
        warnings.resetwarnings()
        for category in QUIET:
            warnings.simplefilter("ignore", category)
        yield
