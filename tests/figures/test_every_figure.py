"""What holds for every figure, whatever it shows."""

import html
import importlib
from dataclasses import fields, replace
from pathlib import Path

import pytest

import figures
from figures import controls, style
from figures.canvas import Canvas
from figures.figure import Scrub

FOLDER = Path(figures.__file__).parent
NAMES = [path.stem for path in sorted(FOLDER.glob("*.py")) if "\nCONTROLS = " in path.read_text()]


@pytest.fixture(scope="module", params=NAMES)
def figure(request):
    return importlib.import_module(f"figures.{request.param}")


@pytest.fixture(scope="module")
def explorer(figure):
    return controls.explore(figure)


def corners(figure):
    """States that take every value of every control once, the others at their defaults."""
    for field, control in figure.CONTROLS.items():
        if not isinstance(control, Scrub):
            for value in control.values:
                yield replace(figure.State(), **{field: value, **_begin(figure)})


def _begin(figure):
    return {field: 0 for field, control in figure.CONTROLS.items() if isinstance(control, Scrub)}


def test_there_are_eleven():
    assert len(NAMES) == 11


def test_every_field_has_a_control_and_every_default_can_be_chosen(figure):
    assert {field.name for field in fields(figure.State)} == set(figure.CONTROLS)
    first = replace(figure.State(), **_begin(figure))
    assert first in figures.states(figure)
    assert figure.State() in figures.steps(figure, first)


def test_states_are_all_choices_once(figure):
    number = 1
    for control in figure.CONTROLS.values():
        number *= 1 if isinstance(control, Scrub) else len(control.values)
    assert len(set(figures.states(figure))) == number


def test_every_choice_is_drawn_and_said(figure, explorer):
    """The same state gives the same picture and words, whatever was shown before."""
    fresh = Canvas(style.figure(*figure.SIZE), figure.build, figure.update)
    for state in corners(figure):
        *_, last = figures.steps(figure, state)
        explorer.set(**{field.name: getattr(last, field.name) for field in fields(last)})
        assert explorer.state == last
        assert figure.describe(last) in html.unescape(explorer._caption.value)
    assert explorer._canvas.png(last) == fresh.png(last)


def test_every_control_changes_the_words(figure):
    first = replace(figure.State(), **_begin(figure))
    for field, control in figure.CONTROLS.items():
        if isinstance(control, Scrub):
            said = {figure.describe(state) for state in figures.steps(figure, first)}
        else:
            said = {figure.describe(replace(first, **{field: value})) for value in control.values}
        assert len(said) > 1, field


def test_a_step_past_the_end_is_drawn_back(figure, explorer):
    for field, control in figure.CONTROLS.items():
        if isinstance(control, Scrub):
            explorer.set(**{field: 10**6})
            assert getattr(explorer.state, field) == explorer.widgets[field].max == control.steps(explorer.state)


def test_words_and_picture_are_in_one_output(figure):
    bundle = figure.explore()._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)
    assert bundle["text/plain"] == figure.describe(figure.State())
