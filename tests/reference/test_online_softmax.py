from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flashlab.reference import online_softmax
from flashlab.reference.attention import attention
from flashlab.reference.tiling import tiles
from tests.tools.bounds import assert_as_exact_as_plain, same_state

score = st.floats(-1e4, 1e4) | st.just(-np.inf)
states = st.builds(
    online_softmax.update,
    st.just(online_softmax.identity(2, 2, float)),
    arrays(float, (2, 3), elements=score),
    arrays(float, (3, 2), elements=st.floats(-10, 10)),
)


@given(states, states)
def test_merge_is_commutative(a, b):
    assert same_state(online_softmax.merge(a, b), online_softmax.merge(b, a))


@given(states, states, states)
def test_merge_is_associative(a, b, c):
    assert same_state(
        online_softmax.merge(online_softmax.merge(a, b), c), online_softmax.merge(a, online_softmax.merge(b, c))
    )


@given(states)
def test_identity_is_neutral(a):
    assert same_state(online_softmax.merge(a, online_softmax.identity(2, 2, float)), a)


@given(arrays(float, (2, 5), elements=score), st.integers(0, 5))
@settings(deadline=None)
def test_the_state_of_a_whole_follows_from_the_states_of_its_parts(S, cut):
    V, start = np.arange(10.0).reshape(5, 2), online_softmax.identity(2, 2, float)
    parts = [online_softmax.update(start, S[:, part], V[part]) for part in (slice(0, cut), slice(cut, 5))]
    assert same_state(online_softmax.merge(*parts), online_softmax.update(start, S, V))


def test_a_tree_of_merges_equals_the_left_fold():
    S, V = np.random.default_rng(0).normal(0, 4, (1, 16)), np.arange(16.0)[:, None]
    leaves = [online_softmax.update(online_softmax.identity(1, 1, float), S[:, b], V[b]) for b in tiles(16, 1)]
    level = leaves
    while len(level) > 1:
        level = [online_softmax.merge(*level[at : at + 2]) for at in range(0, len(level), 2)]
    assert same_state(level[0], reduce(online_softmax.merge, leaves))


@pytest.mark.parametrize("block", [1, 3, 16, 100])
@pytest.mark.parametrize("spread", [1, 1e4])
def test_online_attention_equals_dense(block, spread):
    rng = np.random.default_rng(block)
    Q, K, V = (rng.normal(size=(n, 8)) for n in (5, 50, 50))
    Q *= spread
    state = online_softmax.identity(5, 8)
    narrow = [array.astype(np.float32) for array in (Q, K, V)]
    S = narrow[0] @ narrow[1].T / np.float32(np.sqrt(8))
    for part in tiles(50, block):
        state = online_softmax.update(state, S[:, part], narrow[2][part])
    plain, exact = attention(*narrow, return_lse=True), attention(*(a.astype(float) for a in narrow), return_lse=True)
    for ours, theirs, true in zip(online_softmax.finish(state), plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs, true)


def test_a_row_that_meets_no_key_finishes_as_zero_and_minus_infinity():
    masked = np.full((2, 3), -np.inf, np.float32)
    state = online_softmax.update(online_softmax.identity(2, 1), masked, np.ones((3, 1), np.float32))
    O, lse = online_softmax.finish(state)
    np.testing.assert_array_equal(O, np.zeros((2, 1)))
    np.testing.assert_array_equal(lse, [-np.inf, -np.inf])


def test_nan_is_never_the_same():
    nan = online_softmax.State(np.full(1, np.nan), np.ones(1), np.ones((1, 1)))
    assert not same_state(nan, nan)
