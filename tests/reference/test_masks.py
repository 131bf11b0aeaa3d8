"""What a mask answers for each tile agrees with ``visible``, and ``visible`` with matrices written by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.reference import recomputation, tiling
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.mask_kinds import And, Documents, Or
from flashlab.reference.masks import (
    CUT,
    SKIPPED,
    WHOLE,
    Mask,
    as_mask,
    blocks,
    causal,
    count,
    dense,
    documents,
    full,
    padding,
    pairs,
    prefix,
    schedule,
    sinks,
    window,
)
from flashlab.reference.rules import Rules

lengths, sizes = st.integers(1, 30), st.integers(1, 12)
ends = st.one_of(st.integers(0, 35), st.just(np.inf))


@st.composite
def masks(draw, Nq, Nk):
    """Draw any mask for Nq queries and Nk keys."""
    random = np.random.default_rng(draw(st.integers(0, 9)))
    share = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    match draw(st.sampled_from(["window", "blocks", "documents", "keys", "prefix", "dense", "and", "or"])):
        case "window":
            return window(draw(ends), draw(ends))
        case "blocks":
            Br, Bc = draw(sizes), draw(sizes)
            return blocks(random.random((count(Nq, Br), count(Nk, Bc))) < share, Br, Bc)
        case "documents":
            return documents(np.cumsum(random.random(Nk) < share / 4))
        case "keys":
            return draw(st.sampled_from([padding, sinks]))(draw(st.integers(0, 35)))
        case "prefix":
            return prefix(draw(st.integers(0, 35)))
        case "dense":
            return dense(random.random((Nq, Nk)) < share / 3)
        case "and":
            return draw(masks(Nq, Nk)) & draw(masks(Nq, Nk))
        case "or":
            return draw(masks(Nq, Nk)) | draw(masks(Nq, Nk))


@given(st.data(), lengths, lengths, sizes, sizes)
@settings(deadline=None, max_examples=150)
def test_bounds_tiles_and_pairs_follow_from_visible(data, Nq, Nk, Br, Bc):
    mask, shape = data.draw(masks(Nq, Nk)), (Nq, Nk)
    visible = mask.visible(*np.ogrid[:Nq, :Nk], shape) & np.ones(shape, bool)  # [Nq, Nk]
    np.testing.assert_array_equal(mask.dense(shape), visible)
    np.testing.assert_array_equal(mask.T.dense(shape[::-1]), visible.T)
    assert pairs(mask, shape, Bc) == visible.sum()
    kinds, keys = schedule(mask, shape, Br, Bc), tiling.tiles(Nk, Bc)
    for rows in tiling.tiles(Nq, Br):
        start, stop = mask.bounds(rows, shape)
        assert not visible[rows, :start].any() and not visible[rows, max(stop, 0) :].any()
        assert list(mask.tiles(rows, Bc, shape)) == [j for j, cols in enumerate(keys) if visible[rows, cols].any()]
        for j, cols in enumerate(keys):
            kind = WHOLE if visible[rows, cols].all() else CUT if visible[rows, cols].any() else SKIPPED
            assert kinds[rows.start // Br, j] == kind
            assert mask.whole(rows, cols, shape) == Mask.whole(mask, rows, cols, shape) == visible[rows, cols].all()
            S_ij = np.ones(visible[rows, cols].shape, np.float32)  # [Br, Bc]
            expected = np.where(visible[rows, cols], 1, -np.inf)  # [Br, Bc]
            np.testing.assert_array_equal(mask.apply(S_ij, rows, cols, shape), expected)


@given(st.data(), lengths, lengths, sizes, sizes)
@settings(deadline=None, max_examples=60)
def test_one_loop_serves_every_mask_forward_and_backward(data, Nq, Nk, Br, Bc):
    mask, random = data.draw(masks(Nq, Nk)), np.random.default_rng(Nq)
    Q, K, V, dO = (random.normal(size=shape) for shape in ((Nq, 4), (Nk, 4), (Nk, 3), (Nq, 3)))
    visible = mask.dense((Nq, Nk))
    exact = attention(Q, K, V, mask=visible, return_lse=True)
    for forward in (tiling.fa1_forward, tiling.fa2_forward):
        O, lse = forward(Q, K, V, Br, Bc, Rules(mask=mask))
        np.testing.assert_allclose(O, exact[0], 1e-12, 1e-13)
        np.testing.assert_allclose(lse, exact[1], 1e-12, 1e-13)
    ours = recomputation.backward(Q, K, V, O, lse, dO, Bc, Br, Rules(mask=mask))
    for mine, true in zip(ours, attention_backward(Q, K, V, dO, mask=visible), strict=True):
        np.testing.assert_allclose(mine, true, 1e-11, 1e-12)


def drawn(mask, Nq, Nk):
    return ["".join(".#"[visible] for visible in row) for row in mask.dense((Nq, Nk)).astype(int)]


def test_masks_by_hand():
    assert drawn(full(), 2, 3) == ["###", "###"]
    assert drawn(causal(), 3, 3) == ["#..", "##.", "###"]
    assert drawn(causal(), 2, 4) == ["###.", "####"]  # the last query sees the last key
    assert drawn(causal(), 4, 2) == ["..", "..", "#.", "##"]
    assert drawn(window(1), 4, 4) == ["#...", "##..", ".##.", "..##"]  # Hugging Face's window of 2
    assert drawn(window(1, 1), 3, 5) == [".###.", "..###", "...##"]
    assert drawn(documents([0, 0, 3]), 3, 3) == ["##.", "##.", "..#"]
    assert drawn(documents([0, 0, 1, 1]) & causal(), 3, 4) == ["##..", "..#.", "..##"]  # the first query is at key 1
    assert drawn(documents([5, 6]), 3, 2) == ["..", "#.", ".#"]
    assert drawn(padding(2), 2, 3) == ["##.", "##."]
    assert drawn(prefix(2), 4, 4) == ["##..", "##..", "###.", "####"]
    assert drawn(window(1) | sinks(1), 4, 4) == ["#...", "##..", "###.", "#.##"]
    assert drawn(dense(np.array([[True, False], [False, True]])), 2, 2) == ["#.", ".#"]
    assert drawn(blocks(np.array([[True, False], [False, True]]), 2, 3), 3, 5) == ["###..", "###..", "...##"]


@pytest.mark.parametrize("W, N", [(1, 8), (5, 8), (8, 8), (96, 1024)])
def test_pairs_of_a_causal_window_are_those_of_its_formula(W, N):
    assert pairs(window(W - 1), (N, N)) == W * N - W * (W - 1) // 2


@pytest.mark.parametrize("W, T", [(64, 64), (256, 64), (256, 128)])
def test_a_row_of_tiles_of_a_window_meets_one_tile_more_than_fit_into_it(W, T):
    N = 8 * W
    kinds = schedule(window(W - 1), (N, N), T, T)
    late = kinds[W // T :]  # the window of these queries does not reach the first key
    assert ((late != SKIPPED).sum(1) == W // T + 1).all()
    assert ((late == CUT).sum(1) == 2).all()
    late_pairs = pairs(window(W - 1), (N, N)) - pairs(window(W - 1), (W, W))
    assert late_pairs / ((late != SKIPPED).sum() * T * T) == W / (W + T)


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
    (lambda: documents([1, 0]), ValueError, "whole numbers .Nk. that do not decrease"),
    (lambda: documents([0.0, 1.0]), ValueError, "whole numbers .Nk. that do not decrease"),
    (lambda: documents([0, 1]).dense((3, 3)), ValueError, "documents of 3 keys, got 2"),
    (lambda: padding(-1), ValueError, "0 or more, got -1"),
    (lambda: sinks(True), ValueError, "0 or more, got True"),
    (lambda: dense([[True]]), TypeError, "boolean array .Nq, Nk."),
    (lambda: dense(np.ones((2, 2), bool)).dense((2, 3)), ValueError, r"\[Nq, Nk\] = \(2, 3\), got \(2, 2\)"),
    (lambda: causal() & True, TypeError, "a mask combines with a mask, such as causal.., got True"),
    (lambda: causal() & np.ones((3, 3), bool), TypeError, "a mask combines with a mask"),
    (lambda: np.ones((3, 3), bool) | causal(), TypeError, "a mask combines with a mask"),
    (lambda: causal() | None, TypeError, "got None"),
    (lambda: And(causal(), None), TypeError, "got None"),
    (lambda: Or(1, causal()), TypeError, "got 1"),
    (lambda: documents([0, 1]) and causal(), TypeError, r"truth value.*&.*\|"),
    (lambda: not causal(), TypeError, "truth value"),
    (lambda: (causal() | sinks(2)) or full(), TypeError, "truth value"),
    (lambda: window(True), ValueError, "got True, 0"),
    (lambda: window(0, 3.0), ValueError, "got 0, 3.0"),
    (lambda: window("3"), ValueError, "got '3', 0"),
    (lambda: blocks(np.ones((2, 2), bool), True, 2), ValueError, "got Br = True, Bc = 2"),
    (lambda: Documents([0, 1]), ValueError, "whole numbers .Nk. that do not decrease"),
    (lambda: documents(np.array([1, 0], np.uint8)), ValueError, "that do not decrease"),
    (lambda: as_mask(True), TypeError, "None or made by flashlab.reference.masks, such as causal.., got True"),
    (lambda: as_mask("causal"), TypeError, "got 'causal'"),
    (lambda: as_mask(causal), TypeError, "got <function causal"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
