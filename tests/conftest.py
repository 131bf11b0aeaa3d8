import pytest

from flashlab.course import check, progress


@pytest.fixture(autouse=True)
def no_learner(tmp_path, monkeypatch):
    """A test's tries are nobody's progress, and on a busy machine they may take their time."""
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    monkeypatch.setattr(check, "PATIENCE", 120.0)
    monkeypatch.setattr(check, "SLOW", 600.0)
