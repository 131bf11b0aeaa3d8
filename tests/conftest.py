import pytest

from flashlab import progress


@pytest.fixture(autouse=True)
def no_learner(tmp_path, monkeypatch):
    """A test's tries are nobody's progress."""
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
