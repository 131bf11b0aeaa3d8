import re
from itertools import product

import numpy as np
import pytest

from figures import online_softmax as figure
from flashlab.reference import online_softmax, safe_softmax
from tests.tools import drawn

STATES = [
    figure.State(0, tokens, block, source) for tokens, block, source in product((8, 23), (1, 4, 8), figure.TITLES)
]
states = pytest.mark.parametrize("state", STATES, ids=str)


def heights(step):
    """Return the unnormalised P of a step in float64."""
    return np.array(step["P"], float)


@states
def test_the_last_step_is_the_whole_softmax(state):
    _, scores, values = figure.row(state.source, state.tokens)
    trace = figure.trace(state)
    whole = safe_softmax.safe(scores.astype(float))
    np.testing.assert_allclose(trace["weights"], whole, 1e-5, 1e-7)
    np.testing.assert_allclose(trace["softmax"], whole, 1e-5, 1e-7)
    np.testing.assert_allclose(trace["output"], whole @ values[:, 0], 1e-4, 1e-6)
    np.testing.assert_allclose(heights(trace["steps"][-1]) / trace["steps"][-1]["l"], trace["weights"], 1e-5, 1e-7)


@states
def test_the_past_shrinks_by_alpha_and_the_new_block_is_added(state):
    steps = figure.trace(state)["steps"]
    for before, now in zip(steps, steps[1:], strict=False):
        past = heights(now)[: before["new"][1]]
        np.testing.assert_allclose(past, now["alpha"] * heights(before), 1e-5, 1e-7)
        np.testing.assert_allclose(now["alpha"] * before["l"] + now["added"][0], now["l"], 1e-5)
        np.testing.assert_allclose(now["alpha"] * before["O"] + now["added"][1], now["O"], 1e-4, 1e-6)
        np.testing.assert_allclose(heights(now).sum(), now["l"], 1e-5)


@states
def test_bars_are_the_exponentials(state):
    _, scores, _ = figure.row(state.source, state.tokens)
    for step in figure.trace(state)["steps"][1:]:
        m = 0 if step["m"] is None else step["m"]
        np.testing.assert_allclose(heights(step), np.exp(scores[: step["new"][1]].astype(float) - m), 1e-5, 1e-7)


def test_the_state_of_a_step_is_that_of_update():
    state = figure.State()
    _, scores, values = figure.row(state.source, state.tokens)
    first = online_softmax.update(online_softmax.identity(1, 1), scores[None, :4], values[:4])
    step = figure.trace(state)["steps"][1]
    assert (step["m"], step["l"], step["O"]) == pytest.approx((first.m[0], first.l[0], first.O[0, 0]), rel=1e-6)


@pytest.mark.parametrize("source", figure.TITLES)
@pytest.mark.parametrize("lift", figure.LIFTS)
def test_the_largest_score_is_lifted_and_no_other(source, lift):
    state = figure.State(source=source, lift=lift)
    _, scores, values = figure.row(source, state.tokens)
    scores = scores.astype(float)
    trace, largest = figure.trace(state), scores.argmax()
    scores[largest] += lift
    assert trace["largest"] == largest and trace["scores"][largest] == pytest.approx(scores[largest], rel=1e-6)
    np.testing.assert_allclose(trace["softmax"], safe_softmax.safe(scores), 1e-5, 1e-7)
    low, high = trace["limits"]
    assert all(low <= score <= high for score in trace["scores"] if score is not None)


def test_words_and_numbers_agree():
    """The words state a shrinking past exactly where alpha is below 1."""
    state = figure.State()
    descriptions = [figure.describe(figure.State(step)) for step in range(figure.count(state) + 1)]
    for step, words in zip(figure.trace(state)["steps"][2:], descriptions[2:], strict=False):
        assert ("shrinks by alpha" in words) == (step["alpha"] < 1)
    assert "alpha = 0.2056" in descriptions[4] and "there is no past yet" in descriptions[1]
    assert descriptions[-1].startswith("All 23 scores have come. Divide once, by ℓ = 1.923")


@pytest.mark.skipif(drawn.NODE is None, reason="needs node")
def test_no_sign_follows_a_sign():
    whole = [figure.State(0, 23, 4, source) for source in figure.TITLES]
    steps = [figure.State(step, *(state.tokens, state.block, state.source)) for state in whole for step in range(8)]
    texts = " ".join(drawing["markup"] for drawing in drawn.draw(figure, steps))
    assert "alpha = e^(" in texts and not re.search(r"[−+·] [−+]", texts)
