"""Every lesson in a real JupyterLab, as it is stored; and run, where a cell replays what the lesson has recorded.

That every other cell runs, nbval checks (`make test`); what figures do in JupyterLab, test_drawn.
"""

import pytest

from tests.browser.lab import ROOT, figures

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
REPLAYS = [name for name, path in NOTEBOOKS.items() if ".replay(" in path.read_text(encoding="utf-8")]


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_lesson_opens_in_the_browser(lab, name):
    assert lab.open(name, run=False).errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    assert lab.outside == [], "the page asks for something from outside this machine"


@pytest.mark.parametrize("name", REPLAYS)
def test_lesson_runs_in_the_browser(lab, name):
    assert lab.open(name).errors() == []
    assert lab.page.locator("[data-figure] svg").count() > 0
    assert lab.outside == [], "the page asks for something from outside this machine"
