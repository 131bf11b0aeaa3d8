"""Every figure of every lesson, driven by hand in a real JupyterLab. Where each is shown, `lab.figures` finds."""

import pytest

from figures import page
from tests.browser.lab import ROOT, figures

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
SHOWN = [(notebook, name) for name, notebook in figures().items() if notebook and not page.drawn(name)]


@pytest.fixture(scope="module")
def lesson(lab, request):
    """A notebook, open and run. The tests of one lesson follow each other, so it is opened once."""
    return lab.open(request.param)


def test_every_figure_is_shown_in_a_lesson():
    assert [name for name, notebook in figures().items() if notebook is None] == []


@pytest.mark.parametrize("lesson", NOTEBOOKS, indirect=True, scope="module")
def test_lesson_runs_in_the_browser(lab, lesson):
    assert lesson.errors() == []
    assert lab.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    assert lab.outside == [], "the page asks for something from outside this machine"


@pytest.mark.parametrize("lesson, name", SHOWN, indirect=["lesson"], scope="module")
def test_every_control_moves_picture_and_numbers(lab, lesson, name):
    for field in lesson.figure(name).fields:
        figure = lesson.figure(name)  # each control is driven from the state in which the figure opens
        for step in drive(figure, field):
            picture, words = figure.shown()
            step()
            now = figure.until(lambda shown, picture=picture, words=words: shown[0] != picture and shown[1] != words)
            assert now[0] != picture, f"{field}: the picture does not change"
            assert now[1] != words, f"{field}: the numbers do not change: {words}"


@pytest.mark.parametrize("lesson, name", SHOWN, indirect=["lesson"], scope="module")
def test_picture_and_numbers_depend_on_the_state_only(lab, lesson, name):
    figure = lesson.figure(name)
    for field in [field for field in figure.fields if figure.kind(field) == "slider"]:
        figure.press(field, "Home")
        there = figure.shown()
        figure.press(field, "End")
        figure.drag(field, 0.4)
        figure.press(field, "Home")
        assert figure.until(lambda shown, there=there: shown == there) == there, f"{field}: the way matters"


def drive(figure, field):
    """Steps by keyboard and mouse, from one end to the other, each of which must change what is shown."""
    match figure.kind(field):
        case "slider":
            figure.press(field, "Home")
            yield lambda: figure.press(field, "End")
            yield lambda: figure.press(field, "Home")
            yield lambda: figure.drag(field, 1.0)
            yield lambda: figure.drag(field, 0.0)
        case "menu":
            figure.press(field, "Space", "Home", "Enter")
            yield lambda: figure.press(field, "Space", "End", "Enter")
            yield lambda: figure.press(field, "Space", "Home", "Enter")
        case "box":
            yield lambda: figure.press(field, "Space")
            yield lambda: figure.press(field, "Space")
