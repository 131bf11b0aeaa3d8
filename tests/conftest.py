import gc
import math
import sys
from itertools import count

import pytest

from flashlab.course import check, progress

numbers = count()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage only among what the tests make: the million objects imported and collected before all stay."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(autouse=True)
def no_plans():
    """Have each test make its own plans of calls: tests change what plans are made of."""
    if plans := sys.modules.get("flashlab.kernels.plan"):
        plans.forget()


@pytest.fixture(scope="session")
def learners(tmp_path_factory):
    """A folder for the files of all learners: a folder per test takes seconds in all."""
    return tmp_path_factory.mktemp("learners")


@pytest.fixture(autouse=True)
def no_learner(learners, monkeypatch):
    """Keep the attempts of tests out of the learner's progress, and give them time on a busy machine."""
    monkeypatch.setattr(progress, "FILE", learners / f"{next(numbers)}.json")
    monkeypatch.setattr(check, "PATIENCE", 600.0)
    monkeypatch.setattr(check, "SLOW", math.inf)
