from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import online_softmax as figure
from figures import style
from figures.canvas import Canvas
from flashlab.reference import online_softmax, safe_softmax

STATES = [
    figure.State(0, blocks, block, source) for blocks, block, source in product((1, 3, 8), (1, 4, 8), figure.TITLES)
]


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.0, 4.2), figure.build, figure.update)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_last_step_is_the_whole_softmax(state):
    _, scores, values = figure.row(state.source, state.blocks * state.block)
    last = figure.trace(state)[-1]
    np.testing.assert_allclose(last.weights, safe_softmax.safe(scores.astype(float)), 1e-5, 1e-7)
    np.testing.assert_allclose(online_softmax.finish(last.state)[0][0], safe_softmax.safe(scores) @ values, 1e-4, 1e-6)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_alpha_is_the_factor_that_the_past_took(state):
    for before, now in zip(figure.trace(state), figure.trace(state)[1:], strict=False):
        new = figure.row(state.source, state.blocks * state.block)[1][before.seen : now.seen]
        part = np.exp(new - np.where(now.state.m == -np.inf, 0, now.state.m)).sum()
        np.testing.assert_allclose(now.alpha * before.state.l + part, now.state.l, 1e-5)


def test_the_picture_shows_the_numbers_of_the_trace(canvas):
    state = figure.State()
    canvas.png(state)
    step = figure.trace(state)[state.step]
    drawn = [segment[1, 1] for segment in canvas.artists["weights"].get_segments()]
    np.testing.assert_allclose(drawn, step.weights)
    assert style.number(step.state.m[0]) in canvas.artists["max_label"].get_text()
    assert style.number(step.state.l[0]) in canvas.artists["l"].get_text()
    assert "the maximum rose" in canvas.artists["rescale"].get_text()


@pytest.mark.parametrize("state", STATES, ids=str)
def test_same_state_same_picture_whatever_was_drawn_before(canvas, state):
    for step in range(figure.count(state) + 1):
        kept = canvas.png(replace(state, step=step))
    fresh = Canvas(style.figure(9.0, 4.2), figure.build, figure.update).png(replace(state, step=step))
    assert kept == fresh


def test_every_control_moves_the_state_and_never_raises():
    explorer = figure.explore()
    before = explorer.children[1].value
    for field, values in {"blocks": range(1, 9), "block": (1, 2, 3, 4, 6, 8), "source": figure.TITLES}.items():
        for value in values:
            explorer.widgets[field].value = value
            assert getattr(explorer.state, field) == value
            explorer.widgets["step"].value = figure.count(explorer.state)
    assert explorer.children[1].value != before


def test_a_step_beyond_the_end_is_drawn_back_when_the_row_gets_shorter():
    explorer = figure.explore(figure.State(step=6))
    explorer.widgets["blocks"].value = 2
    assert explorer.state.step == explorer.widgets["step"].value == explorer.widgets["step"].max == 2


def test_words_and_picture_are_in_one_output():
    bundle = figure.explore()._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)
    assert "m = 4.932" in bundle["text/plain"]
