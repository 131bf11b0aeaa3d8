"""Masks: the answers agree with the definition, tile by tile, and the definition with matrices drawn by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.reference import recomputation, tiling
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.masks import Mask, as_mask, blocks, causal, count, full, window

lengths, sizes = st.integers(1, 30), st.integers(1, 12)
ends = st.one_of(st.integers(0, 35), st.just(np.inf))


@st.composite
def masks(draw, Nq, Nk):
    """Draw any mask for Nq queries and Nk keys."""
    if draw(st.booleans()):
        return window(draw(ends), draw(ends))
    Br, Bc = draw(sizes), draw(sizes)
    random = np.random.default_rng(draw(st.integers(0, 9)))
    return blocks(random.random((count(Nq, Br), count(Nk, Bc))) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])), Br, Bc)


@given(st.data(), lengths, lengths, sizes, sizes)
@settings(deadline=None, max_examples=300)
def test_the_three_questions_follow_from_the_definition(data, Nq, Nk, Br, Bc):
    mask, shape = data.draw(masks(Nq, Nk)), (Nq, Nk)
    seen = mask.visible(*np.ogrid[:Nq, :Nk], shape) & np.ones(shape, bool)  # [Nq, Nk]
    np.testing.assert_array_equal(mask.dense(shape), seen)
    np.testing.assert_array_equal(mask.T.dense(shape[::-1]), seen.T)
    keys = tiling.tiles(Nk, Bc)
    for rows in tiling.tiles(Nq, Br):
        start, stop = mask.bounds(rows, shape)
        assert not seen[rows, :start].any() and not seen[rows, stop:].any()
        assert list(mask.tiles(rows, Bc, shape)) == [j for j, cols in enumerate(keys) if seen[rows, cols].any()]
        for cols in keys:
            assert mask.whole(rows, cols, shape) == Mask.whole(mask, rows, cols, shape) == seen[rows, cols].all()
            S_ij = np.ones(seen[rows, cols].shape, np.float32)
            np.testing.assert_array_equal(mask.apply(S_ij, rows, cols, shape), np.where(seen[rows, cols], 1, -np.inf))


@given(st.data(), lengths, lengths, sizes, sizes)
@settings(deadline=None, max_examples=60)
def test_one_loop_serves_every_mask_forward_and_backward(data, Nq, Nk, Br, Bc):
    mask, random = data.draw(masks(Nq, Nk)), np.random.default_rng(Nq)
    Q, K, V, dO = (random.normal(size=shape) for shape in ((Nq, 4), (Nk, 4), (Nk, 3), (Nq, 3)))
    seen = mask.dense((Nq, Nk))
    exact = attention(Q, K, V, mask=seen, return_lse=True)
    for forward in (tiling.fa1_forward, tiling.fa2_forward):
        O, lse = forward(Q, K, V, Br, Bc, mask=mask)
        np.testing.assert_allclose(O, exact[0], 1e-12, 1e-13)
        np.testing.assert_allclose(lse, exact[1], 1e-12, 1e-13)
    ours = recomputation.backward(Q, K, V, O, lse, dO, Bc, Br, mask=mask)
    for mine, true in zip(ours, attention_backward(Q, K, V, dO, mask=seen), strict=True):
        np.testing.assert_allclose(mine, true, 1e-11, 1e-12)


def drawn(mask, Nq, Nk):
    return ["".join(".#"[seen] for seen in row) for row in mask.dense((Nq, Nk)).astype(int)]


def test_masks_by_hand():
    assert drawn(full(), 2, 3) == ["###", "###"]
    assert drawn(causal(), 3, 3) == ["#..", "##.", "###"]
    assert drawn(causal(), 2, 4) == ["###.", "####"]  # the last query sees the last key
    assert drawn(causal(), 4, 2) == ["..", "..", "#.", "##"]
    assert drawn(window(1), 4, 4) == ["#...", "##..", ".##.", "..##"]  # Hugging Face's window of 2
    assert drawn(window(1, 1), 3, 5) == [".###.", "..###", "...##"]
    assert drawn(blocks(np.array([[True, False], [False, True]]), 2, 3), 3, 5) == ["###..", "###..", "...##"]


def test_causal_is_a_window_without_a_left_end():
    assert causal() == window(np.inf) and full() == window(np.inf, np.inf) and as_mask(None) == full()


@pytest.mark.parametrize("make, error, sentence", [
    (lambda: window(-1), ValueError, "whole numbers from 0 on, or inf, got -1, 0"),
    (lambda: window(2.5, 1), ValueError, "got 2.5, 1"),
    (lambda: window(1, np.nan), ValueError, "got 1, nan"),
    (lambda: blocks([[True]], 1, 1), TypeError, "a boolean array"),
    (lambda: blocks(np.ones((2, 2)), 1, 1), TypeError, "a boolean array"),
    (lambda: blocks(np.ones((2, 2), bool), 0, 4), ValueError, "at least one row and one column, got Br = 0, Bc = 4"),
    (lambda: blocks(np.ones((2, 2), bool), 2, 2).dense((5, 4)), ValueError, r"\[Tr, Tc\] = \(3, 2\), got \(2, 2\)"),
    (lambda: as_mask(True), TypeError, "None or made by flashlab.reference.masks, such as causal.., got True"),
    (lambda: as_mask("causal"), TypeError, "got 'causal'"),
    (lambda: as_mask(causal), TypeError, "got <function causal"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
