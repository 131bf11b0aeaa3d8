"""Drawn figures in a real JupyterLab: they move, the kernel answers them, and they move without the kernel.

All figures are cells of one notebook. The tests need this order: it runs, its kernel is shut down, it is opened again.
"""

import importlib
import time

import nbformat
import pytest

from tests.browser.conftest import NAMES
from tests.browser.lab import READY, SECONDS, figures
from tests.browser.test_page import move, shown
from tests.tools.normalise import KERNEL

HOST = "[data-figure={}]"
CELL = """name => {
    const notebook = jupyterapp.shell.currentWidget.content;
    return notebook.widgets.findIndex(cell => cell.model.type === 'code'
        && cell.model.sharedModel.getSource().includes(`${name}.explore(`));
}"""
RUN = """async at => {
    const notebook = jupyterapp.shell.currentWidget.content;
    for (const here of [notebook.widgets.findIndex(cell => cell.model.type === 'code'), at]) {
        notebook.activeCellIndex = here;
        await jupyterapp.commands.execute('notebook:run-cell');
    }
    await notebook.scrollToItem(at, 'start');
}"""
SHOW = """async at => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = at;
    await notebook.scrollToItem(at, 'start');
}"""
LISTEN = """() => {
    window.followed = [];
    jupyterapp.commands.commandExecuted.connect((_, { id }) => followed.push(id));
}"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"


@pytest.fixture(scope="module")
def notebook(lab):
    """Run a notebook of all figures; the page's ``followed`` lists the commands that JupyterLab executes afterwards."""
    cells = [nbformat.v4.new_code_cell(f"import figures.{name}\n\nfigures.{name}.explore()") for name in NAMES]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, lab.folder / "notebooks" / "all_figures.ipynb")
    assert lab.open("all_figures").errors() == []
    lab.page.evaluate(LISTEN)


@pytest.fixture(scope="module")
def dead(lab, notebook):
    """Shut the kernel down."""
    lab.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")


@pytest.fixture(scope="module")
def again(lab, dead):
    """Save the notebook, and open it again with a new kernel."""
    reopened(lab)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def figure(lab, notebook, name):
    """Scroll a figure into view and return it."""
    lab.page.evaluate(SHOW, NAMES.index(name))
    host = lab.page.locator(HOST.format(name))
    host.locator("svg").first.wait_for()
    return host


def reopened(lab):
    lab.page.evaluate(SAVE)
    lab.page.reload()
    lab.page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.context")
    lab.page.evaluate(READY)


def controls(figure):
    """Return all controls but the clock: a change of one of them asks the kernel for numbers."""
    return figure.locator("[data-field]:not(.clock input)").all()


def eventually(page, condition):
    """Wait until condition() is true, at most ``SECONDS``; return whether it is."""
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    return condition()


def test_the_notebooks_keys_leave_the_cell_alone(lab, figure):
    figure.locator("input[data-field]").first.focus()
    lab.page.evaluate("() => { followed.length = 0 }")
    for key in ("m", "b", "d", "d", "x", "Enter"):
        lab.page.keyboard.press(key)
    lab.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCell.node.focus()")
    lab.page.keyboard.press("ArrowDown")  # the notebook handles this key, and would have handled the others before
    lab.page.wait_for_function("() => followed.length")
    assert lab.page.evaluate("() => followed") == ["notebook:move-cursor-down"]
    assert figure.is_visible()


def test_the_kernel_answers(lab, figure):
    before = shown(figure)
    move(controls(figure)[0])
    assert eventually(lab.page, lambda: shown(figure)[0] != before[0])
    assert figure.locator(".message").inner_text() == "" and lab.outside == []


def test_after_the_kernels_death_it_moves_and_says_what_to_do(dead, figure):
    figure.get_by_role("button", name="reset").click()
    if figure.locator(".clock").count():
        before = shown(figure)
        figure.get_by_role("button", name="one step on").click()
        assert shown(figure)[1] != before[1]
    asks = figure.locator(".busy, .message:not(:empty)")
    for control in controls(figure):  # until one asks for numbers that are not there
        if not asks.count():
            move(control)
    figure.locator(".message", has_text="No kernel answers").wait_for()
    assert "run this cell again" in figure.locator(".message").inner_text()


def test_saved_and_opened_again_with_a_new_kernel_it_is_alive(again, name, figure):
    module = importlib.import_module(f"figures.{name}")
    assert shown(figure)[1] == module.describe(module.State())
    if figure.locator(".clock").count():
        figure.locator(".clock input").press("Home")
        before = shown(figure)
        figure.get_by_role("button", name="one step on").click()
        assert shown(figure)[0] != before[0] and shown(figure)[1] != before[1]


def test_a_lesson_of_which_one_cell_was_run_has_picture_and_words_when_opened_again(lab):
    """JupyterLab takes scripts out of a notebook unless it has run every cell whose output is more than text."""
    lab.open(figures()["tiling"], run=False)
    at = lab.page.evaluate(CELL, "tiling")
    lab.page.evaluate(RUN, at)
    figure = lab.page.locator(HOST.format("tiling"))
    figure.locator("svg").first.wait_for()
    words = shown(figure)[1]
    reopened(lab)
    lab.page.evaluate(SHOW, at)
    cell = lab.page.locator(".jp-Cell", has_text="tiling.explore(")
    cell.locator("figcaption", has_text=words).wait_for()
    assert cell.locator("figure img").get_attribute("alt") == words
    assert not lab.page.evaluate("at => jupyterapp.shell.currentWidget.content.widgets[at].model.trusted", at)
