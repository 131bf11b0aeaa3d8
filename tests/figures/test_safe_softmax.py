from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from figures import safe_softmax as figure
from figures import style
from figures.canvas import Canvas
from flashlab.reference import safe_softmax

STATES = [figure.State(0, dtype, spread) for dtype, spread in product(figure.DTYPES, figure.SPREADS)]


def fresh():
    return Canvas(style.figure(9.2, 4.8), figure.build, figure.update)


@pytest.fixture(scope="module")
def canvas():
    return fresh()


@pytest.mark.parametrize("state", STATES, ids=str)
def test_scores_and_exponents_are_exact_in_the_dtype(state):
    scores, dtype = figure.trace(state).scores, getattr(torch, state.dtype)
    assert np.array_equal(torch.tensor(scores, dtype=dtype).double().numpy(), scores)
    near = [shift for shift in figure.SHIFTS if abs(scores - shift).max() < 128]
    for shift in near:
        assert np.array_equal((torch.tensor(scores, dtype=dtype) - shift).double().numpy(), scores - shift)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_maximum_is_always_right_and_far_from_it_never(state):
    now = figure.trace(state)
    at = figure.SHIFTS.index(figure.TOP)
    assert now.outcome[at] == "right"
    assert (np.abs(now.P[at] - now.exact) <= 2 * torch.finfo(getattr(torch, state.dtype)).eps).all()
    assert now.outcome[0] == "NaN: ∞ / ∞" and now.outcome[-1] == "NaN: 0 / 0"


@pytest.mark.parametrize("state", STATES, ids=str)
def test_outcomes_are_named_for_what_the_numbers_are(state):
    now = figure.trace(state)
    for P, l, outcome in zip(now.P, now.l, now.outcome, strict=True):
        assert np.isnan(P).any() == outcome.startswith("NaN")
        assert (not P.any()) == (outcome == "zeros: 1 / ∞")
        assert (l == 0) == (outcome == "NaN: 0 / 0")


def test_windows_are_where_exp_leaves_them():
    for dtype in figure.DTYPES:
        now = figure.row(dtype, 14)
        exponents = now.scores - np.array(figure.SHIFTS)[:, None]
        zero, _, inf = safe_softmax.window(torch.finfo(getattr(torch, dtype)))
        assert np.array_equal(np.isinf(now.e), exponents > inf)
        assert np.array_equal(now.e == 0, exponents < zero)


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_picture_shows_the_numbers_of_the_trace(canvas, state):
    for shift in (0, 12, 100, 114, 220):
        canvas.png(replace(state, shift=shift))
        now, at = figure.trace(state), figure.SHIFTS.index(shift)
        heights = [bar.get_height() for bar in canvas.artists["bars"]]
        np.testing.assert_array_equal(heights, np.nan_to_num(now.P[at]))
        assert [segment[0, 1] for segment in canvas.artists["exact"].get_segments()] == list(now.exact)
        assert now.outcome[at] in canvas.artists["verdict"].get_text()
        assert ("NaN" in canvas.artists["words"].get_text()) == np.isnan(now.P[at]).any()
        lane = canvas.artists["map"].get_array()[figure.DTYPES.index(state.dtype)]
        assert [list(figure.OUTCOMES)[value] for value in lane] == now.outcome


def test_words_have_the_numbers():
    assert "∞ above 11.09" in figure.describe(figure.State(dtype="float16"))
    words = figure.describe(figure.State())
    assert "0 below −104, subnormal below −87.34 and ∞ above 88.72" in words
    assert "result NaN: ∞ / ∞" in words and "right for shifts from 12 to 188" in words
    assert {"application/vnd.jupyter.widget-view+json", "image/png"} <= set(figure.explore()._repr_mimebundle_())
