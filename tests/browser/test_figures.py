"""Every figure of every lesson, driven by hand in a real JupyterLab. Where each is shown, `lab.figures` finds."""

import pytest

from tests.browser.lab import ROOT, figures

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_lesson_runs_in_the_browser(lab, notebook):
    assert lab.open(notebook).errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    assert lab.outside == [], "the page asks for something from outside this machine"


@pytest.mark.parametrize("name, notebook", [(name, notebook) for name, notebook in figures().items() if notebook])
def test_every_control_moves_picture_and_numbers(lab, name, notebook):
    opened = lab.open(notebook)
    for field in opened.figure(name).fields:
        figure = opened.figure(name)  # each control is driven from the state in which the figure opens
        seen = [figure.shown()]
        for drive in WAYS[figure.kind(field)]:
            drive(figure, field)
            seen.append(figure.shown())
        pictures, words = zip(*seen, strict=True)
        assert len(set(pictures)) > 1, f"{field}: the picture never changed"
        assert len(set(words)) > 1, f"{field}: the numbers never changed: {words[0]}"


@pytest.mark.parametrize("name, notebook", [(name, notebook) for name, notebook in figures().items() if notebook])
def test_picture_and_numbers_depend_on_the_state_only(lab, name, notebook):
    figure = lab.open(notebook).figure(name)
    for field in [field for field in figure.fields if figure.kind(field) == "slider"]:
        figure.press(field, "Home")
        there = figure.shown()
        figure.press(field, "End")
        figure.drag(field, 0.4)
        figure.press(field, "Home")
        assert figure.shown() == there, f"{field}: back where it was, and it shows something else"


def press(*keys):
    return lambda figure, field: figure.press(field, *keys)


def drag(part):
    return lambda figure, field: figure.drag(field, part)


WAYS = {
    "slider": [press("ArrowRight"), press("ArrowLeft"), press("End"), press("Home"), drag(0.5), drag(1.0)],
    "menu": [press("Space", key, "Enter") for key in ("ArrowDown", "ArrowDown", "ArrowUp")],
    "box": [press("Space")],
}
