"""Score functions and sinks: tiles agree with the dense computation, and slopes with finite differences."""

import numpy as np
import pytest

from flashlab.reference import recomputation, tiling
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import causal, documents, window
from flashlab.reference.rules import Rules
from flashlab.reference.scores import Score, alibi, as_score, bias, slopes, softcap

SHAPES = (13, 13), (7, 18), (11, 5), (1, 9)
B = np.random.default_rng(0).normal(size=(13, 18))


def inputs(Nq, Nk, dtype=np.float64):
    random = np.random.default_rng(Nq)
    return [(3 * random.normal(size=shape)).astype(dtype) for shape in ((Nq, 4), (Nk, 4), (Nk, 3), (Nq, 3))]


def some_scores(Nq, Nk):
    matrix = bias(B[:Nq, :Nk])
    return None, softcap(2.0), alibi(0.3), matrix, (matrix, softcap(3.0), alibi(0.1))


@pytest.mark.parametrize("Nq, Nk", SHAPES)
@pytest.mark.parametrize("sink", [None, -2.0, 100.0])
def test_tiled_equals_dense_forward_and_backward(Nq, Nk, sink):
    Q, K, V, dO = inputs(Nq, Nk)
    for mask in (None, causal(), window(3) & documents(np.arange(Nk) // 4)):
        for score in some_scores(Nq, Nk):
            rules = dict(mask=mask, score=score, sink=sink)
            exact = attention(Q, K, V, return_lse=True, **rules)
            O, lse = tiling.fa2_forward(Q, K, V, 4, 5, Rules(**rules))
            np.testing.assert_allclose(O, exact[0], 1e-11, 1e-13)
            np.testing.assert_allclose(lse, exact[1], 1e-12, 1e-13)
            ours = recomputation.backward(Q, K, V, O, lse, dO, 3, 4, Rules(**rules))
            for mine, true in zip(ours, attention_backward(Q, K, V, dO, **rules), strict=True):
                np.testing.assert_allclose(mine, true, 1e-10, 1e-11)


def slope_of(function, x, step=1e-6):
    """Return the gradient of a number-valued function of an array by central differences."""
    gradient = np.empty_like(x)
    for at in np.ndindex(x.shape):
        x[at] += step
        above = function()
        x[at] -= 2 * step
        gradient[at] = (above - function()) / (2 * step)
        x[at] += step
    return gradient


@pytest.mark.parametrize("which", range(5))
def test_gradients_are_the_slopes_of_the_forward_pass(which):
    Q, K, V, dO = inputs(4, 5)
    rules = dict(mask=causal(), score=some_scores(4, 5)[which], sink=0.5, dropout=Dropout(0.3, 1))
    O, lse = tiling.fa2_forward(Q, K, V, 2, 2, Rules(**rules))
    ours = recomputation.backward(Q, K, V, O, lse, dO, 2, 3, Rules(**rules))
    for tensor, gradient in zip((Q, K, V), ours, strict=True):
        numeric = slope_of(lambda: (dO * tiling.fa2_forward(Q, K, V, 2, 2, Rules(**rules))[0]).sum(), tensor)
        np.testing.assert_allclose(gradient, numeric, 1e-5, 1e-7)


def test_the_gradient_of_the_sink_is_the_slope_of_the_forward_pass():
    Q, K, V, dO = inputs(6, 6)
    sink, rules = np.array([0.7]), dict(mask=window(2))
    O, lse = tiling.fa2_forward(Q, K, V, 2, 2, Rules(sink=sink[0], **rules))
    ours = recomputation.sink_gradient(sink[0], lse, recomputation.delta(dO, O))
    numeric = slope_of(lambda: (dO * tiling.fa2_forward(Q, K, V, 2, 2, Rules(sink=sink[0], **rules))[0]).sum(), sink)
    np.testing.assert_allclose(ours, numeric[0], 1e-6)


def test_a_sink_is_a_key_whose_value_is_0():
    Q, K, V, _ = inputs(3, 5)
    S = Q @ K.T / 2  # [3, 5]
    P = np.exp(np.hstack([S, np.full((3, 1), 0.7)]))  # [3, 6]
    O, lse = attention(Q, K, V, sink=0.7, return_lse=True)
    np.testing.assert_allclose(O, P / P.sum(1, keepdims=True) @ np.vstack([V, np.zeros((1, 3))]), 1e-12)
    np.testing.assert_allclose(lse, np.log(P.sum(1)), 1e-12)


def test_a_row_that_sees_only_the_sink_has_output_0_and_the_lse_of_the_sink():
    Q, K, V, dO = inputs(5, 2)
    O, lse = tiling.fa2_forward(Q, K, V, 2, 2, Rules(mask=causal(), sink=1.5))
    assert (O[:3] == 0).all() and (lse[:3] == 1.5).all()
    dQ = recomputation.backward(Q, K, V, O, lse, dO, 2, 2, Rules(mask=causal(), sink=1.5)).dQ
    assert (dQ[:3] == 0).all()


def test_scores_by_hand():
    S, whole = np.array([[0.0, 30.0, -1e4]]), (slice(0, 1), slice(0, 3), (1, 3))
    np.testing.assert_allclose(softcap(30).apply(S, *whole), [[0, 30 * np.tanh(1), -30]])
    np.testing.assert_allclose(softcap(30).slope(S, *whole), [[1, 1 - np.tanh(1) ** 2, 0]], atol=1e-15)
    np.testing.assert_array_equal(alibi(0.5).apply(S, *whole), [[-1, 29.5, -1e4]])  # the query is at the last key
    np.testing.assert_array_equal(
        alibi(1).apply(np.zeros((2, 2)), slice(0, 2), slice(0, 2), (2, 2)), [[0, -1], [-1, 0]]
    )
    both = as_score((bias(np.full((1, 3), 2.0)), softcap(30)))
    np.testing.assert_allclose(both.apply(S, *whole), 30 * np.tanh((S + 2) / 30))


def test_slopes_of_alibi_are_the_published_ones():
    np.testing.assert_array_equal(slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(slopes(12), [*2.0 ** -np.arange(1, 9), *2.0 ** -np.arange(0.5, 4)])
    assert slopes(1) == [2**-8]


class Forward(Score):
    def apply(self, S_ij, rows, cols, shape):
        return S_ij + 1


def test_a_score_without_a_slope_serves_forward_only():
    Q, K, V, dO = inputs(3, 3)
    O, lse = tiling.fa2_forward(Q, K, V, 2, 2, Rules(score=Forward()))
    with pytest.raises(NotImplementedError, match="Forward has no slope: the backward pass needs it"):
        recomputation.backward(Q, K, V, O, lse, dO, 2, 2, Rules(score=Forward()))


@pytest.mark.parametrize("make, error, sentence", [
    (lambda: softcap(0), ValueError, "cap must be a finite number above 0, got 0"),
    (lambda: softcap(np.nan), ValueError, "above 0, got nan"),
    (lambda: alibi(slopes(4)), ValueError, "a finite number, one per head"),
    (lambda: slopes(0), ValueError, "H must be a whole number from 1 on, got 0"),
    (lambda: bias([[1.0]]), TypeError, "an array of floating-point numbers"),
    (lambda: attention(*inputs(4, 4)[:3], score=bias(np.ones((3, 4)))), ValueError, r"= \(4, 4\), got \(3, 4\)"),
    (lambda: as_score(30.0), TypeError, "such as softcap.30.* got 30.0"),
    (lambda: as_score((softcap(1), softcap)), TypeError, "or a tuple of these"),
    (lambda: softcap(1) and alibi(1), TypeError, "truth value.* tuple"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
