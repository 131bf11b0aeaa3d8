"""Drawn figures in a real JupyterLab: alive, in touch with the kernel, and still alive when the kernel is gone.

A figure's notebook is opened once, and the tests follow each other as a learner's day does.
"""

import time

import pytest

from tests.browser.conftest import NAMES
from tests.browser.lab import READY, SECONDS, figures
from tests.browser.test_page import shown

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


@pytest.fixture(scope="module", params=[name for name in NAMES if figures()[name]])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def figure(lab, name):
    """The figure's cell, run after the imports, in a notebook that is otherwise as stored."""
    lab.open(figures()[name], run=False)
    lab.page.evaluate(RUN, lab.page.evaluate(CELL, name))
    host = lab.page.locator(HOST.format(name))
    host.locator("svg").first.wait_for()
    return host


def controls(figure):
    """Return all controls but the clock: for what they choose the kernel is asked."""
    return figure.locator("[data-field]:not(.clock input)").all()


def move(control):
    """Move a control by a key."""
    control.focus()
    kind = control.evaluate("one => one.type")
    end = control.evaluate("one => one.value === one.max || one.selectedIndex === one.length - 1")
    keys = {"checkbox": "Space", "range": "Home" if end else "End", "select-one": "ArrowUp" if end else "ArrowDown"}
    control.press(keys[kind])


def eventually(page, come):
    """Wait until come() is true; return whether it ever was."""
    deadline = time.monotonic() + SECONDS
    while not come() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    return come()


def test_the_notebooks_keys_leave_the_cell_alone(lab, figure):
    figure.locator("input[data-field]").first.focus()
    cells = lab.page.evaluate("() => jupyterapp.shell.currentWidget.content.widgets.length")
    for key in ("m", "b", "d", "d", "x", "Enter"):
        lab.page.keyboard.press(key)
    lab.page.wait_for_timeout(300)
    assert lab.page.evaluate("() => jupyterapp.shell.currentWidget.content.widgets.length") == cells
    assert figure.is_visible()


def test_the_kernel_answers(lab, figure):
    before = shown(figure)
    move(controls(figure)[0])
    assert eventually(lab.page, lambda: shown(figure)[0] != before[0])
    assert figure.locator(".message").inner_text() == "" and lab.outside == []


def test_after_the_kernels_death_it_moves_and_says_what_to_do(lab, figure):
    lab.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    figure.get_by_role("button", name="reset").click()
    if figure.locator(".clock").count():
        before = shown(figure)
        figure.get_by_role("button", name="one step on").click()
        assert shown(figure)[1] != before[1]
    asks = figure.locator(".busy, .message:not(:empty)")
    for control in controls(figure):  # until one asks for numbers that are not there
        if not asks.count():
            move(control)
    figure.locator(".message", has_text="No kernel answers").wait_for(timeout=15_000)
    assert "run this cell again" in figure.locator(".message").inner_text()


def test_saved_and_opened_again_without_a_kernel_it_is_there(lab, name, figure):
    """Alive where JupyterLab trusts the notebook: every cell with more than text and pictures was run here.

    Elsewhere JupyterLab takes the script out, and the picture and its words are left.
    """
    figure.get_by_role("button", name="reset").click()
    words = shown(figure)[1]
    lab.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    lab.page.reload()
    lab.page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.context")
    lab.page.evaluate(READY)
    at = lab.page.evaluate(CELL, name)
    lab.page.evaluate(SHOW, at)
    if lab.page.evaluate("at => jupyterapp.shell.currentWidget.content.widgets[at].model.trusted", at):
        figure.locator("svg").first.wait_for()
        assert shown(figure)[1] == words
    else:
        cell = lab.page.locator(".jp-Cell", has_text=f"{name}.explore(")
        cell.locator("figcaption", has_text=words).wait_for()
        assert cell.locator("figure img").get_attribute("alt") == words
