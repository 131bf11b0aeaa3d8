import gc
from itertools import count

import pytest

from flashlab.course import check, progress

numbers = count()


def pytest_collection():
    """Let the tests be collected without looking for garbage: a million objects are made, and all are kept."""
    gc.disable()


def pytest_collection_finish():
    """Look for garbage only among what the tests make: what was imported and collected stays to the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def learners(tmp_path_factory):
    """A folder for the files of all learners: a folder per test takes seconds in all."""
    return tmp_path_factory.mktemp("learners")


@pytest.fixture(autouse=True)
def no_learner(learners, monkeypatch):
    """Keep the attempts of tests out of the learner's progress, and give them time on a busy machine."""
    monkeypatch.setattr(progress, "FILE", learners / f"{next(numbers)}.json")
    monkeypatch.setattr(check, "PATIENCE", 120.0)
    monkeypatch.setattr(check, "SLOW", 600.0)
