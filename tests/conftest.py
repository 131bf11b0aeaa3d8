import pytest

from flashlab.course import judge, progress


@pytest.fixture(autouse=True)
def no_learner(tmp_path, monkeypatch):
    """A test's tries are nobody's progress, and on a busy machine they may take their time."""
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    monkeypatch.setattr(judge, "PATIENCE", 120.0)
