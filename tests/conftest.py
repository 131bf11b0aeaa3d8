import gc
import math
import sys
from itertools import count

import pytest

from flashlab.course import check, progress

numbers = count()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude the million objects of imports and of pytest's collection from garbage collection: all of them stay."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(autouse=True)
def no_plans():
    """Forget the cached plans of calls before each test: tests change what a plan is computed from."""
    if plans := sys.modules.get("flashlab.kernels.plan"):
        plans.forget()


@pytest.fixture(scope="session")
def learners(tmp_path_factory):
    """Return one folder for the progress files of all tests: a folder for each would take seconds in total."""
    return tmp_path_factory.mktemp("learners")


@pytest.fixture(autouse=True)
def own_progress_and_patience(learners, monkeypatch):
    """Store the attempts of a test in a file of its own, and give checks enough time on a busy machine."""
    monkeypatch.setattr(progress, "FILE", learners / f"{next(numbers)}.json")
    monkeypatch.setattr(check, "PATIENCE", 600.0)
    monkeypatch.setattr(check, "SLOW", math.inf)
