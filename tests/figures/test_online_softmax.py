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
