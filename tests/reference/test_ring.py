"""Ring attention equals attention on one processor for every placement, and its steps are those of the schedule."""

import numpy as np
import pytest

from flashlab.machine import ranks
from flashlab.reference import masks, online_softmax, ring
from flashlab.reference.attention import attention, attention_backward

MASKS = {"full": None, "causal": masks.causal(), "window": masks.window(5, 2)}


def inputs(N=23, d=4, dv=6, dtype=np.float64):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(N, width)).astype(dtype) for width in (d, d, dv, dv)]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ranks.PLACEMENTS)
@pytest.mark.parametrize("P", [1, 2, 3, 5])
def test_ring_equals_attention(name, P, mask):
    Q, K, V, _ = inputs()
    O, lse = ring.forward(Q, K, V, ranks.placement_of(name, len(Q), P), mask=mask)
    np.testing.assert_allclose(O, attention(Q, K, V, mask=mask), rtol=1e-12, atol=1e-12)
    i = np.arange(len(Q))
    S = ring.scores(Q, K, i, i, mask, len(Q))
    np.testing.assert_allclose(lse, np.log(np.exp(S).sum(-1)), rtol=1e-12)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ranks.PLACEMENTS)
@pytest.mark.parametrize("P", [1, 3])
def test_gradients_equal_those_of_one_processor(name, P, mask):
    Q, K, V, dO = inputs()
    placement = ranks.placement_of(name, len(Q), P)
    O, lse = ring.forward(Q, K, V, placement, mask=mask)
    ours = ring.backward(dO, Q, K, V, O, lse, placement, mask=mask)
    theirs = attention_backward(Q, K, V, dO, mask=mask)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def test_merge_of_finished_sides_is_that_of_states():
    rng = np.random.default_rng(1)
    sides = [online_softmax.State(rng.normal(size=4), rng.uniform(1, 5, 4), rng.normal(size=(4, 3))) for _ in range(2)]
    for ours, theirs in zip(
        ring.merge(*online_softmax.finish(sides[0]), *online_softmax.finish(sides[1])),
        online_softmax.finish(online_softmax.merge(*sides)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("name", ranks.PLACEMENTS)
def test_the_steps_are_those_of_the_schedule(name):
    Q, K, V, _ = inputs()
    placement, events = ranks.placement_of(name, len(Q), 3), []
    ring.forward(Q, K, V, placement, mask=masks.causal(), events=events)
    steps = ranks.schedule(placement, None, 0)
    for event in events:
        owner, scores = steps[event.step][event.rank]
        assert event.owner == owner
        sent = ranks.length(placement[owner]) * (4 + 6) * 8
        assert event.amount == (scores if event.kind == "compute" else sent)
    assert [event.kind for event in events].count("send") == 3 * 2
