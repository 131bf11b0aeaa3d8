"""The defaults of settings that a learner may have changed, for the time of a check."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

ONE_AT_A_TIME = threading.RLock()  # threads share the warning filters; in a forked process the owner still owns it
QUIET = DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning  # as Python's default filters do
PRINT_OPTIONS = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False, "nanstr": "nan",
    "infstr": "inf", "sign": "-", "formatter": None, "floatmode": "maxprec", "legacy": False,
}  # fmt: skip


@contextmanager
def defaults() -> Iterator[None]:
    """Set numpy's errors and printing, and the filters of warnings, to their defaults; restore them at the end."""
    errors = np.errstate(all="warn", under="ignore")
    with ONE_AT_A_TIME, warnings.catch_warnings(), errors, np.printoptions(**PRINT_OPTIONS):
        warnings.resetwarnings()
        for category in QUIET:
            warnings.simplefilter("ignore", category)
        yield
