"""Every lesson in a real JupyterLab, as it is stored; and run, where a cell replays what the lesson has recorded.

That every other cell runs, nbval checks (`make test`); what figures do in JupyterLab, test_drawn.
"""

import nbformat
import pytest

from tests.browser.lab import ROOT, figures

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
REPLAYS = [name for name, path in NOTEBOOKS.items() if ".replay(" in path.read_text(encoding="utf-8")]
SHOWN = "at => jupyterapp.shell.currentWidget.content.scrollToItem(at, 'start')"


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_lesson_opens_in_the_browser(lab, name):
    assert lab.open(name, run=False, kernel=False).errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    for at, words in pictures(name).items():
        lab.page.evaluate(SHOWN, at)
        picture = lab.page.locator(f".jp-Cell[data-windowed-list-index='{at}'] .jp-OutputArea img")
        assert picture.get_attribute("alt") == words, "what a screen reader says of a stored picture"
        assert picture.bounding_box()["height"] > 50
    assert lab.outside == [], "the page asks for something from outside this machine"


def pictures(name):
    """The words of the pictures that a notebook stores, by the number of the cell."""
    cells = enumerate(nbformat.read(NOTEBOOKS[name], as_version=4).cells)
    outputs = [(at, output.data) for at, cell in cells for output in cell.get("outputs", []) if "data" in output]
    return {at: data["text/plain"] for at, data in outputs if "data:image/png" in data.get("text/html", "")}


@pytest.mark.parametrize("name", REPLAYS)
def test_lesson_runs_in_the_browser(lab, name):
    assert lab.open(name).errors() == []
    assert lab.page.locator("[data-figure] svg").count() > 0
    assert lab.outside == [], "the page asks for something from outside this machine"
