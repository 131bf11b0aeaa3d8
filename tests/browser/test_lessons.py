"""Every lesson opens in a real JupyterLab, and those with ``.replay(`` also run there.

nbval checks that the cells of all lessons run (`make test`), test_drawn what figures do in JupyterLab.
"""

import io

import nbformat
import pytest
from PIL import Image

from tests.browser.lab import ROOT, figures

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
REPLAYS = [name for name, path in NOTEBOOKS.items() if ".replay(" in path.read_text(encoding="utf-8")]
ACTIVE = "() => jupyterapp.shell.currentWidget.content.activeCellIndex"
SCROLL = "at => jupyterapp.shell.currentWidget.content.scrollToItem(at, 'start')"


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_lesson_opens_in_the_browser(lab, name):
    assert lab.open(name, run=False, kernel=False).errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    for at, words in pictures(name).items():
        lab.page.evaluate(SCROLL, at)
        picture = lab.page.locator(f".jp-Cell[data-windowed-list-index='{at}'] .jp-OutputArea img")
        assert picture.get_attribute("alt") == words, "what a screen reader says of a stored picture"
        picture.evaluate("it => it.decode()")  # before that it has no height
        assert picture.bounding_box()["height"] > 50
    assert lab.outside == [], "the page asks for something from outside this machine"


def test_a_chart_wears_the_theme_and_its_words_stay_legible(lab):
    """Dark words on light paper, or vice versa. On a narrow screen the chart scrolls within its cell.

    Keys show the values of the chart's marks, and arrow keys do not leave the cell.
    """
    assert lab.open("19_packed_texts_and_dropout").errors() == []
    (at,) = pictures("19_packed_texts_and_dropout")
    lab.page.evaluate(SCROLL, at)
    chart = lab.page.locator(".flashlab-chart:not(img)")
    for light, paper in (("true", 255), ("false", 24)):
        lab.page.evaluate("light => { document.body.dataset.jpThemeLight = light }", light)
        shades = Image.open(io.BytesIO(chart.screenshot())).convert("L")
        darkest, lightest = shades.getextrema()
        assert abs(shades.getpixel((1, shades.height - 2)) - paper) <= 2 and lightest - darkest > 150
    chart.locator("svg").focus()
    lab.page.keyboard.press("Enter")
    lab.page.keyboard.press("ArrowDown")
    assert chart.locator(".tip").is_visible() and lab.page.evaluate(ACTIVE) == at
    lab.page.set_viewport_size({"width": 390, "height": 900})
    assert chart.bounding_box()["width"] == 640
    assert lab.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert chart.evaluate("it => getComputedStyle(it.closest('.jp-OutputArea-output')).overflowX") == "auto"
    lab.page.set_viewport_size({"width": 1280, "height": 900})


def pictures(name):
    """Return {number of a cell: the words of the picture that it stores}."""
    cells = enumerate(nbformat.read(NOTEBOOKS[name], as_version=4).cells)
    outputs = [(at, output.data) for at, cell in cells for output in cell.get("outputs", []) if "data" in output]
    return {at: data["text/plain"] for at, data in outputs if "data:image/png" in data.get("text/html", "")}


@pytest.mark.parametrize("name", REPLAYS)
def test_lesson_runs_in_the_browser(lab, name):
    assert lab.open(name).errors() == []
    lab.page.locator("[data-figure] svg").first.wait_for(state="attached")
    assert lab.outside == [], "the page asks for something from outside this machine"
