"""Chunks, the recurrence and the quadratic form are one function; states merge; the costs are those of the formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.machine import costs
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import linear_attention as linear
from flashlab.reference import masks, tiling
from flashlab.reference.rules import Rules
from tests.tools.bounds import assert_as_exact_as_plain

DECAYS = (1.0, 0.9, 0.01)


def draw(N, d=8, dv=5, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(N, width)).astype(dtype) for width in (d, d, dv)]


def by_definition(Q, K, V, decay):
    """Return O, computed one query and one key at a time in float64."""
    O = np.zeros(V.shape)
    for i in range(len(Q)):
        for j in range(i + 1):
            O[i] += decay ** (i - j) * (Q[i].astype(float) @ K[j]) * V[j]
    return O


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("N, C", [(1, 1), (1, 8), (12, 4), (13, 4), (37, 1), (37, 37), (37, 100), (0, 4)])
def test_chunked_is_the_definition(N, C, decay):
    Q, K, V = draw(N)
    exact = by_definition(Q, K, V, decay)
    plain = linear.quadratic(Q, K, V, decay=decay)
    np.testing.assert_allclose(
        linear.quadratic(*(x.astype(float) for x in (Q, K, V)), decay=decay), exact, 1e-12, 1e-12
    )
    O, KV = linear.chunked(Q, K, V, C, decay=decay)
    assert_as_exact_as_plain(O, plain, exact, roundings=2)
    np.testing.assert_allclose(KV, linear.state(K, V, decay=decay).KV, 1e-5, 1e-5)


@pytest.mark.parametrize("decay", DECAYS)
def test_a_long_text_in_half_precision_keeps_its_state_in_float32(decay):
    Q, K, V = draw(300, dtype=np.float16)
    exact = linear.quadratic(*(x.astype(float) for x in (Q, K, V)), decay=decay)
    plain = linear.quadratic(*(x.astype(np.float32) for x in (Q, K, V)), decay=decay).astype(np.float16)
    O, KV = linear.chunked(Q, K, V, 16, decay=decay)
    assert KV.dtype == np.float32
    assert_as_exact_as_plain(O, plain, exact)


@pytest.mark.parametrize("decay", DECAYS)
def test_the_state_goes_on_where_it_stopped(decay):
    Q, K, V = (x.astype(float) for x in draw(30))
    whole, last = linear.chunked(Q, K, V, 8, decay=decay)
    first, KV = linear.chunked(Q[:11], K[:11], V[:11], 8, decay=decay)
    rest, KV = linear.chunked(Q[11:], K[11:], V[11:], 8, decay=decay, start=KV)
    np.testing.assert_allclose(np.concatenate([first, rest]), whole, 1e-12, 1e-12)
    np.testing.assert_allclose(KV, last, 1e-12, 1e-12)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.floats(0.1, 1), st.integers(0, 99))
def test_merge_is_associative_with_an_identity(a, b, c, decay, seed):
    _, K, V = (x.astype(float) for x in draw(a + b + c, seed=seed))
    cuts = np.split(np.arange(a + b + c), [a, a + b])
    first, second, third = (linear.state(K[i], V[i], decay=decay) for i in cuts)
    left = linear.merge(linear.merge(first, second), third)
    right = linear.merge(first, linear.merge(second, third))
    whole = linear.state(K, V, decay=decay)
    for state in (left, right, linear.merge(linear.identity(8, 5), left), linear.merge(left, linear.identity(8, 5))):
        np.testing.assert_allclose(state.shrink, whole.shrink, 1e-12)
        np.testing.assert_allclose(state.KV, whole.KV, 1e-10, 1e-10)


def test_the_order_of_stretches_matters_with_decay_and_without_it_does_not():
    _, K, V = draw(9)
    for decay, same in ((1.0, True), (0.5, False)):
        first, second = linear.state(K[:4], V[:4], decay=decay), linear.state(K[4:], V[4:], decay=decay)
        assert np.allclose(linear.merge(first, second).KV, linear.merge(second, first).KV, atol=1e-5) == same


@pytest.mark.parametrize("N, d, dv, C", [(64, 8, 8, 16), (70, 8, 5, 16), (7, 4, 4, 100), (12, 4, 4, 1)])
def test_flops_and_bytes_are_those_of_the_run(N, d, dv, C):
    Q, K, V = draw(N, d, dv)
    memory = Memory()
    _, counted = costs.counted(linear.chunked, Q, K, V, C, memory=memory)
    assert counted == linear.flops(N, d, C, dv=dv)
    assert memory.bytes == linear.traffic(N, d, dv=dv)
    assert linear.state_bytes(d, dv=dv) == memory.bytes["store", "KV"]
    if N % C == 0:
        assert counted == 2 * N * C * (d + dv) + 4 * N * d * dv


@pytest.mark.parametrize("N, d, C", [(64, 8, 16), (70, 8, 16), (7, 4, 100)])
def test_softmax_flops_are_those_of_the_run(N, d, C):
    Q, K, V = draw(N, d, d)
    _, counted = costs.counted(tiling.fa2_forward, Q, K, V, C, C, Rules(masks.causal()))
    assert counted == linear.softmax_flops(N, d, C)


@pytest.mark.parametrize("C, d", [(16, 16), (64, 32), (64, 64), (64, 128), (128, 64)])
def test_flops_are_equal_at_the_crossover(C, d):
    N = linear.crossover(C, d)
    for n, sign in ((N - C, -1), (N, 0), (N + C, 1)):
        if n % C == 0:
            assert np.sign(linear.softmax_flops(n, d, C) - linear.flops(n, d, C)) == sign


def test_a_chunk_and_the_state_must_fit():
    Q, K, V = draw(64, 16, 16)
    needed = 4 * (16 * 16 + 3 * 8 * 16 + 8 * 8)
    linear.chunked(Q, K, V, 8, memory=Memory(needed))
    with pytest.raises(FastMemoryFull):
        linear.chunked(Q, K, V, 8, memory=Memory(needed - 1))


def test_a_state_recalls_about_as_many_pairs_as_it_has_columns_and_softmax_all():
    d = 16
    K, V = linear.directions(128, d), linear.directions(128, d, seed=1)
    np.testing.assert_allclose(np.linalg.norm(K, axis=1), 1)
    shares = [linear.recall(K[:n], V[:n]).mean() for n in (1, 4, 16, 64, 128)]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True) and shares[2] > 0.7 and shares[-1] < 0.4
    assert linear.recall(K, V, scale=100.0).all()
    assert linear.recall(np.eye(d), V[:d]).all()  # at right angles nothing is lost
    late = linear.recall(linear.directions(128, 32), linear.directions(128, 32, seed=1), decay=0.9)
    assert late[-8:].mean() > 0.8 and late[:-40].mean() < 0.1  # decay forgets the early pairs


@pytest.mark.parametrize("options, error, sentence", [
    ({"decay": 0}, ValueError, "decay must be a finite number above 0 and at most 1, got 0"),
    ({"decay": 1.1}, ValueError, "at most 1"),
    ({"decay": float("nan")}, ValueError, "decay"), ({"decay": True}, TypeError, "decay"),
    ({"C": 0}, ValueError, "C must be"), ({"C": 2.5}, ValueError, "C must be"),
])  # fmt: skip
def test_bad_numbers_are_refused(options, error, sentence):
    with pytest.raises(error, match=sentence):
        linear.chunked(*draw(8), **{"C": 4, **options})


def test_bad_tensors_are_refused():
    Q, K, V = draw(8)
    with pytest.raises(ValueError, match="expected Q"):
        linear.chunked(Q, K[:5], V, 4)
    with pytest.raises(TypeError, match="one dtype"):
        linear.chunked(Q, K.astype(float), V, 4)
    with pytest.raises(TypeError, match="numpy array"):
        linear.quadratic(Q.tolist(), K, V)
