import pytest

from flashlab.course import check, progress


@pytest.fixture(autouse=True)
def no_learner(tmp_path, monkeypatch):
    """Keep the attempts of tests out of the learner's progress, and give them time on a busy machine."""
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    monkeypatch.setattr(check, "PATIENCE", 120.0)
    monkeypatch.setattr(check, "SLOW", 600.0)
