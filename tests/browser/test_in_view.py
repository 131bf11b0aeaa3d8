"""Every figure in JupyterLab: whole in the notebook's panel, with its compared parts side by side."""

import json
import shutil

import nbformat
import pytest

from tests.browser.conftest import NAMES
from tests.browser.lab import ROOT
from tests.tools.normalise import KERNEL

WINDOW = {"width": 1280, "height": 900}
DEFAULT = "default-37a8.jupyterlab-workspace"  # JupyterLab's file of the default workspace, as in the Makefile
ZOOMED = {"width": 1024, "height": 720}  # the same window at 125 %
SHOW = "at => jupyterapp.shell.currentWidget.content.scrollToItem(at, 'start')"
PANEL = "document.querySelector('.jp-NotebookPanel-notebook').getBoundingClientRect().toJSON()"
FRAMES = """() => new Promise((done) => {
    let left = 12;
    const next = () => (left-- ? requestAnimationFrame(next) : done());
    next();
})"""
SCROLL = "by => { document.querySelector('.jp-WindowedPanel-outer').scrollTop += by }"
ACTIVATE = """async at => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = at;
    await notebook.scrollToItem(at, 'center');
    notebook.activeCell.node.focus();
}"""
CLOSED = "jupyterapp.restored.then(() => jupyterapp.shell.leftCollapsed)"


def open_figures(lab, names):
    """Run a notebook with a cell for each figure, and a long text below each."""
    words = "\n\n".join(["A paragraph about the figure."] * 12)
    cells = []
    for name in names:
        cells.append(nbformat.v4.new_code_cell(f"import figures.{name}\n\nfigures.{name}.explore()"))
        cells.append(nbformat.v4.new_markdown_cell(words))
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, lab.folder / "notebooks" / "all_figures.ipynb")
    assert lab.open("all_figures").errors() == []


def shown(lab, names, name):
    """Scroll to a figure and return it."""
    lab.page.evaluate(SHOW, 2 * names.index(name))
    figure = lab.page.locator(f"[data-figure={name}]")
    figure.locator("svg").first.wait_for()
    lab.page.evaluate(FRAMES)  # wait until it is drawn for the width of the panel
    return figure


def assert_whole(lab, figure):
    """Assert that a figure is no higher than the panel, and that its compared parts stand side by side."""
    assert figure.bounding_box()["height"] <= lab.page.evaluate(PANEL)["height"]
    parts = [part.bounding_box() for part in figure.locator("svg .compared").all()]
    for left, right in zip(parts, parts[1:], strict=False):
        assert right["x"] >= left["x"] + left["width"] / 2
        assert right["y"] < left["y"] + left["height"] and left["y"] < right["y"] + right["height"]


def stores_an_open_file_browser(response):
    """Return whether JupyterLab has stored a layout whose left area is open."""
    request = response.request
    if request.method != "PUT" or "/api/workspaces/" not in request.url:
        return False
    return not json.loads(request.post_data)["data"]["layout-restorer:data"]["left"]["collapsed"]


@pytest.fixture(scope="module")
def notebook(lab):
    open_figures(lab, NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("files", ["expandLeft", "collapseLeft"])
def test_a_figure_is_whole_on_the_screen(lab, notebook, files, name):
    """files: the command that opens or closes the file browser."""
    lab.page.evaluate(f"jupyterapp.shell.{files}()")
    assert_whole(lab, shown(lab, NAMES, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_that_was_run_stays_in_view(lab, notebook, name):
    lab.page.evaluate(ACTIVATE, 2 * NAMES.index(name))
    lab.page.locator(f"[data-figure={name}]").evaluate("host => host.dataset.old = true")
    lab.page.keyboard.press("Shift+Enter")
    figure = lab.page.locator(f"[data-figure={name}]:not([data-old])")
    figure.locator("svg").first.wait_for()
    lab.page.evaluate(FRAMES)  # wait until JupyterLab has scrolled
    panel, box = lab.page.evaluate(PANEL), figure.bounding_box()
    assert panel["y"] - 1 <= box["y"] and box["y"] + box["height"] <= panel["y"] + panel["height"] + 1


def test_the_controls_stay_in_view_at_125_per_cent(lab, notebook):
    lab.page.set_viewport_size(ZOOMED)
    figure = shown(lab, NAMES, "tiling")
    panel = lab.page.evaluate(PANEL)
    lab.page.evaluate(SCROLL, figure.bounding_box()["height"] / 2)
    assert figure.bounding_box()["y"] < panel["y"] <= figure.locator(".head").bounding_box()["y"]
    lab.page.set_viewport_size(WINDOW)


def test_the_file_browser_is_closed_at_first_and_stays_open_once_opened(lab):
    stored = lab.folder / "workspaces" / DEFAULT
    stored.parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / ".jupyter/workspace.json", stored)
    lab.open("00_start_here", run=False, kernel=False, reset=False)
    assert lab.page.evaluate(CLOSED)
    with lab.page.expect_response(stores_an_open_file_browser):
        lab.page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
    lab.open("00_start_here", run=False, kernel=False, reset=False)
    assert not lab.page.evaluate(CLOSED)
