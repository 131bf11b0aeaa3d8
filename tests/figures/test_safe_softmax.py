from itertools import product

import numpy as np
import pytest
import torch

from figures import safe_softmax as figure
from flashlab.reference import safe_softmax

STATES = [figure.State(0, dtype, spread) for dtype, spread in product(figure.DTYPES, figure.SPREADS)]
states = pytest.mark.parametrize("state", STATES, ids=str)


def row_of(state):
    return figure.row(state.dtype, state.spread)


@states
def test_scores_and_exponents_are_exact_in_the_dtype(state):
    scores, dtype = row_of(state).scores, getattr(torch, state.dtype)
    assert np.array_equal(torch.tensor(scores, dtype=dtype).double().numpy(), scores)
    near = [shift for shift in figure.SHIFTS if abs(scores - shift).max() < 128]
    for shift in near:
        assert np.array_equal((torch.tensor(scores, dtype=dtype) - shift).double().numpy(), scores - shift)


@states
def test_the_shift_by_the_maximum_is_right_and_the_outermost_shifts_are_wrong(state):
    now = row_of(state)
    assert now.outcome[figure.TOP] == "right"
    eps = torch.finfo(getattr(torch, state.dtype)).eps
    assert (np.abs(now.P[figure.TOP] - now.exact) <= 2 * eps).all()
    assert now.outcome[0] == "NaN: ∞ / ∞" and now.outcome[-1] == "NaN: 0 / 0"


@states
def test_the_name_of_an_outcome_fits_its_numbers(state):
    now = row_of(state)
    for P, l, outcome in zip(now.P, now.l, now.outcome, strict=True):
        assert np.isnan(P).any() == outcome.startswith("NaN")
        assert (not P.any()) == (outcome == "zeros: 1 / ∞")
        assert (l == 0) == (outcome == "NaN: 0 / 0")


def test_a_window_ends_where_exp_becomes_0_or_infinite():
    for dtype in figure.DTYPES:
        now = figure.row(dtype, 14)
        exponents = now.scores - np.array(figure.SHIFTS)[:, None]
        zero, _, inf = figure.window(dtype)
        assert np.array_equal(np.isinf(now.e), exponents > inf)
        assert np.array_equal(now.e == 0, exponents < zero)


@states
def test_the_trace_has_the_numbers_of_the_row(state):
    trace, now = figure.trace(state), row_of(state)
    for name in ("e", "l", "P"):
        np.testing.assert_allclose(np.array(trace[name], object).astype(str) == "NaN", np.isnan(getattr(now, name)))
        back = np.vectorize(lambda x: {"∞": np.inf, "NaN": np.nan}.get(x, x), otypes=[float])(trace[name])
        np.testing.assert_allclose(back, getattr(now, name), 1e-3)
    np.testing.assert_allclose(trace["exact"], safe_softmax.safe(now.scores), 1e-3)
    for lane in trace["lanes"]:
        row = figure.row(lane["dtype"], state.spread)
        assert [one for part in lane["outcomes"] for one in [part["name"]] * (part["last"] + 1 - part["first"])] == (
            row.outcome
        )
        tiny = torch.finfo(getattr(torch, lane["dtype"])).tiny
        kinds = np.array([list(kind) for kind in lane["kinds"]])
        assert np.array_equal(kinds == "i", np.isinf(row.e)) and np.array_equal(kinds == "0", row.e == 0)
        assert np.array_equal(kinds == "s", (row.e > 0) & (row.e < tiny))


def test_words_have_the_numbers():
    assert "∞ above 11.09" in figure.describe(figure.State(dtype="float16"))
    words = figure.describe(figure.State())
    assert "exp is 0 below −104, ∞ above 88.72" in words
    assert "Result: NaN: ∞ / ∞." in words and "Right for shifts from 12 to 188." in words
