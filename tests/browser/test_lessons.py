"""Every lesson, run in a real JupyterLab. What its figures do there, test_drawn says."""

import pytest

from tests.browser.lab import ROOT, figures

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_lesson_runs_in_the_browser(lab, name):
    assert lab.open(name).errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    assert lab.outside == [], "the page asks for something from outside this machine"
