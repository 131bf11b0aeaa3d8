import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.course.check import edited
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import online_softmax, tiling
from flashlab.reference.attention import attention
from flashlab.reference.masks import Mask, Window, causal, full, window
from flashlab.reference.rules import Rules
from tests.tools.bounds import assert_as_exact_as_plain, same_state

ORDERS = [tiling.fa1_forward, tiling.fa2_forward]
TRAFFIC = {tiling.fa1_forward: tiling.fa1_traffic, tiling.fa2_forward: tiling.fa2_traffic}
both_orders = pytest.mark.parametrize("forward", ORDERS)


def draw(Nq, Nk, d=8, dv=5, *, dtype=np.float32, factor=1.0, seed=0):
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.normal(size=shape) for shape in ((Nq, d), (Nk, d), (Nk, dv)))
    return (factor * Q).astype(dtype), K.astype(dtype), V.astype(dtype)


def rising(N=40):
    """Scores that rise with every key, so that every tile raises every maximum."""
    Q, K = np.ones((N, 1), np.float32), np.linspace(-50, 50, N, dtype=np.float32)[:, None]
    return Q, K, np.arange(N, dtype=np.float32)[:, None]


def strided(N=33):
    Q, K, V = draw(2 * N, 2 * N, 16, 16)
    return Q[::2, ::2], K[1::2, ::-2], np.asfortranarray(V[::2])


ADVERSARIAL = {
    "whole tiles": (draw(32, 32), full()),
    "whole tiles, causal": (draw(32, 32), causal()),
    "ragged, causal": (draw(37, 37), causal()),
    "more keys, causal": (draw(19, 41), causal()),
    "fewer keys, causal: first rows see nothing": (draw(41, 19), causal()),
    "more keys": (draw(19, 41), full()),
    "one row": (draw(1, 33), causal()),
    "one key": (draw(33, 1), causal()),
    "one and one": (draw(1, 1), causal()),
    "no key": (draw(3, 0), full()),
    "no query": (draw(0, 3), causal()),
    "scores of ten thousands": (draw(40, 40, factor=1e4), causal()),
    "rising maximum": (rising(), full()),
    "rising maximum, causal": (rising(), causal()),
    "non-contiguous": (strided(), causal()),
}
adversarial = pytest.mark.parametrize("inputs, mask", ADVERSARIAL.values(), ids=ADVERSARIAL)


@both_orders
@adversarial
@pytest.mark.parametrize("Br, Bc", [(8, 8), (16, 4), (5, 16), (1, 1), (64, 64)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tiled_equals_dense(forward, inputs, mask, Br, Bc, dtype):
    if dtype == np.float16:
        inputs = [np.clip(tensor, -100, 100) for tensor in inputs]  # plain float16 must not overflow
    inputs = [tensor.astype(dtype) for tensor in inputs]
    with np.errstate(over="raise", invalid="raise"):
        result = forward(*inputs, Br, Bc, Rules(mask=mask))
    plain = attention(*inputs, mask=mask, return_lse=True)
    exact = attention(*(tensor.astype(np.float64) for tensor in inputs), mask=mask, return_lse=True)
    for got, rounded, true in zip(result, plain, exact, strict=True):
        assert_as_exact_as_plain(got, rounded, true)


@both_orders
def test_lse_is_float32_or_better(forward):
    for dtype, expected in [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]:
        O, lse = forward(*draw(3, 3, dtype=dtype), 2, 2)
        assert (O.dtype, lse.dtype) == (dtype, expected)


@both_orders
def test_a_scale_of_the_caller_is_used(forward):
    inputs = draw(9, 9)
    ours, expected = forward(*inputs, 4, 4, Rules(scale=0.7))[0], attention(*inputs, scale=0.7)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_finished_tile_is_a_state():
    """An update of (lse, 1, O) gives the same as one of (m, l, O)."""
    Q, K, V = draw(4, 12, dtype=np.float64)
    first, second = Q @ K[:5].T, Q @ K[5:].T
    state = online_softmax.update(online_softmax.identity(4, 5, float), first, V[:5])
    O, lse = online_softmax.finish(state)
    assert same_state(online_softmax.State(lse, np.ones(4), O), state)
    continued = online_softmax.update(online_softmax.State(lse, np.ones(4), O), second, V[5:])
    assert same_state(continued, online_softmax.update(state, second, V[5:]))


MASKS = full(), causal(), window(3), window(0, 5), window(2, np.inf)
lengths, sizes = st.integers(0, 40), st.integers(1, 20)


@both_orders
@given(lengths, lengths, sizes, sizes, st.sampled_from(MASKS), st.sampled_from([np.float16, np.float32, np.float64]))
@settings(deadline=None)
def test_counted_bytes_equal_the_closed_form(forward, Nq, Nk, Br, Bc, mask, dtype):
    memory = Memory()
    forward(*draw(Nq, Nk, 3, 2, dtype=dtype), Br, Bc, Rules(mask=mask), memory=memory)
    assert memory.bytes == TRAFFIC[forward](Nq, Nk, 3, Br, Bc, dv=2, mask=mask, dtype=dtype)


def test_the_bills_by_hand():
    """Four queries and keys, tiles of two, d = 1: a pass over N d numbers is 4 x 1 x 4 = 16 bytes, and so is lse."""
    fa2 = tiling.fa2_traffic(4, 4, 1, 2, 2)
    assert fa2 == {("load", "Q"): 16, ("load", "K"): 32, ("load", "V"): 32, ("store", "O"): 16, ("store", "lse"): 16}
    fa1 = tiling.fa1_traffic(4, 4, 1, 2, 2)
    assert {key: fa1[key] for key in [("load", "Q"), ("load", "K"), ("load", "V")]} == {
        ("load", "Q"): 32, ("load", "K"): 16, ("load", "V"): 16,
    }  # fmt: skip
    assert (fa1["load", "O"], fa1["store", "O"], fa1["load", "lse"], fa1["store", "lse"]) == (16, 32, 16, 32)


def test_causal_tiles_above_the_diagonal_are_not_visited():
    loaded = {}
    for mask in (full(), causal()):
        memory = Memory()
        tiling.fa2_forward(*draw(64, 64), 8, 8, Rules(mask=mask), memory=memory)
        loaded[mask] = memory.bytes["load", "K"]
    assert loaded[causal()] / loaded[full()] == 36 / 64  # 1 + 2 + ... + 8 of 8 x 8 tiles


@pytest.mark.parametrize("Nq, Nk", [(32, 32), (19, 41), (41, 19)])
def test_only_tiles_on_the_diagonal_are_masked(Nq, Nk):
    for rows, cols in product(tiling.tiles(Nq, 8), tiling.tiles(Nk, 8)):
        visible = np.tri(Nq, Nk, Nk - Nq, dtype=bool)[rows, cols]  # [Br, Bc]
        Q_i, K_j = np.ones((len(visible), 1)), np.ones((visible.shape[1], 1))
        S_ij = Rules(mask=causal(), scale=1.0).scores(Q_i, K_j, rows, cols, (Nq, Nk))
        np.testing.assert_array_equal(S_ij, np.where(visible, 1, -np.inf))


@both_orders
def test_nothing_of_size_N_by_N_is_ever_alive(forward):
    memory = Memory(sram_bytes=4 * (2 * 8 * 8 + 2 * 8 * 5 + 8 * 8 + 2 * 8))  # one tile of each, in float32
    forward(*draw(256, 256), 8, 8, memory=memory)
    assert {name: tensor.size for name, tensor in memory.tensors.items()}.keys() == {"Q", "K", "V", "O", "lse"}
    assert max(event.nbytes for event in memory.events) <= 4 * 8 * 8


@both_orders
def test_a_memory_too_small_for_any_tile_says_which_tiles(forward):
    with pytest.raises(FastMemoryFull, match=r"Q 64 .*= 1\d\d bytes, but the fast memory holds 150"):
        forward(*draw(4, 4), 2, 2, memory=Memory(150))


@both_orders
@pytest.mark.parametrize("forward_args, error, sentence", [
    ((*draw(4, 4)[:2], draw(4, 5)[2], 2, 2), ValueError, r"expected Q \[Nq, d\], K .*, V .*, got \(4, 8\)"),
    ((draw(4, 4)[0], *draw(4, 4, 7)[1:], 2, 2), ValueError, r"got \(4, 8\), \(4, 7\), \(4, 5\)"),
    ((*(x[None] for x in draw(4, 4)), 2, 2), ValueError, r"got \(1, 4, 8\)"),
    ((*draw(4, 4, 0), 2, 2), ValueError, "a head needs at least one dimension, got d = 0"),
    ((*(np.ones((4, 4), int) for _ in "QKV"), 2, 2), TypeError, "Q must hold floating-point numbers, got int64"),
    ((draw(4, 4)[0].astype(float), *draw(4, 4)[1:], 2, 2), TypeError, "must have one dtype, got Q float64, K float32"),
    (([[1.0]], *draw(1, 1, 1)[1:], 2, 2), TypeError, "Q must be a numpy array, got list"),
    ((*draw(4, 4), 0, 2), ValueError, "Br must be a whole number from 1 on, got 0"),
    ((*draw(4, 4), 2, 1.5), ValueError, "Bc must be a whole number from 1 on, got 1.5"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(forward, forward_args, error, sentence):
    with pytest.raises(error, match=sentence):
        forward(*forward_args)


EDITS = {
    "mask off by one": (Window, "visible", "(j <= own", "(j < own"),
    "places within the tile": (Mask, "apply", "np.ogrid[rows, cols]", "np.ogrid[: len(S_ij), : S_ij.shape[1]]"),
    "mask too late": (Window, "whole", "cols.stop - 1 <= rows.start", "cols.stop <= rows.stop"),
    "large negative number": (Mask, "apply", "-np.inf)", "-1e9)"),
}


@both_orders
@pytest.mark.parametrize("owner, name, old, new", EDITS.values(), ids=EDITS)
def test_a_wrong_mask_is_noticed(forward, owner, name, old, new, monkeypatch):
    monkeypatch.setattr(owner, name, edited(getattr(owner, name), old, new))
    wrong = 0
    for Nq, Nk in [(37, 37), (19, 41), (41, 19)]:
        inputs = draw(Nq, Nk)
        true = attention(*inputs, mask=np.tri(Nq, Nk, Nk - Nq, dtype=bool), return_lse=True)
        got = forward(*inputs, 8, 4, Rules(mask=causal()))
        wrong += not all(np.allclose(*pair, 1e-4, 1e-5) for pair in zip(got, true, strict=True))
    assert wrong


@pytest.mark.parametrize("forward, B", [(tiling.fa1_forward, 256), (tiling.fa2_forward, 128)])
def test_extra_memory_stays_below_4_MiB_where_dense_takes_256(forward, B):
    Q, K, V = draw(8192, 8192, 64, 64)
    tracemalloc.start()
    O, lse = forward(Q, K, V, B, B)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - O.nbytes - lse.nbytes <= 4 * 2**20
