"""Parts of the keys, computed separately, merge into attention over all keys; the bytes are the predicted ones."""

import numpy as np
import pytest

from flashlab.machine.hardware import CARDS
from flashlab.machine.memory import Memory
from flashlab.reference import decoding
from flashlab.reference.attention import attention
from flashlab.reference.masks import causal, full, window
from tests.tools.bounds import assert_as_exact_as_plain


def draw(g, n, N, d=8, dv=5, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in ((g, n, d), (N, d), (N, dv))]


def dense(Q, K, V, mask, dtype):
    return attention(*(x.astype(dtype) for x in (Q, K, V)), mask=mask, return_lse=True)


@pytest.mark.parametrize("size, Bc", [(1, 1), (7, 3), (8, 8), (100, 16)])
@pytest.mark.parametrize("g, n, N", [(1, 1, 1), (4, 1, 37), (3, 5, 64), (2, 6, 3), (2, 2, 0)])
@pytest.mark.parametrize("mask", [None, full(), window(4)], ids=["causal", "full", "window"])
def test_parts_merge_to_the_whole(g, n, N, size, Bc, mask):
    Q, K, V = draw(g, n, N)
    with np.errstate(invalid="raise"):
        results = decoding.decode(Q, K, V, size, Bc, mask=mask)
    plain, exact = (dense(Q, K, V, causal() if mask is None else mask, dtype) for dtype in (np.float32, np.float64))
    for ours, theirs, true in zip(results, plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs, true, roundings=2)


def test_parts_with_very_different_lse_keep_their_weight():
    Q, K, V = draw(1, 1, 40)
    Q, K = 30 * Q, K + np.linspace(0, 3, 40, dtype=np.float32)[:, None]
    exact = dense(Q, K, V, None, np.float64)[0]
    assert_as_exact_as_plain(decoding.decode(Q, K, V, 8, 4)[0], dense(Q, K, V, None, np.float32)[0], exact)


@pytest.mark.parametrize("g, n, N, size, Bc", [(4, 1, 64, 16, 8), (2, 3, 37, 10, 4), (1, 1, 5, 9, 2)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_bill_is_the_predicted_one(g, n, N, size, Bc, dtype):
    memory = Memory()
    decoding.decode(*draw(g, n, N, dtype=dtype), size, Bc, memory=memory)
    assert memory.bytes == decoding.traffic(g, n, N, 8, size, Bc, dv=5, dtype=dtype)


def test_the_rule_fills_the_card_with_the_fewest_parts():
    assert decoding.splits(8, 8192, slots=264) == 32  # 256 of 264: the 33rd part is not worth its merge
    assert decoding.splits(512, 8192, slots=264) == 1  # enough programs without any split
    assert decoding.splits(1, 100, slots=264, Bc=64) == 2  # no more parts than tiles
    for programs in (1, 3, 16, 128, 300):
        S = decoding.splits(programs, 16384, slots=132)
        best = max(decoding.share(programs * s, 132) for s in range(1, 257))
        assert decoding.share(programs * S, 132) >= 0.95 * best
        assert all(decoding.share(programs * s, 132) < 0.95 * best for s in range(1, S))


def test_a_plan_counts_waves_and_bytes():
    card = CARDS["H200 SXM"]
    alone, split, over = (decoding.plan(card, 1, 8, 8192, S) for S in (1, 16, 17))
    assert (alone.programs, alone.waves, split.waves, over.waves) == (8, 1, 1, 2)
    assert alone.part_bytes == 0 and split.part_bytes == 2 * 128 * 8 * 129 * 4
    assert alone.seconds == pytest.approx(8192 * 512 / (card.dram_rate / 132))
    assert split.seconds < alone.seconds / 15 and over.seconds > 1.8 * split.seconds  # one program too many
    memory = Memory()
    decoding.decode(*draw(8, 1, 64, 128, 128), 16, 8, memory=memory)
    moved = sum(nbytes for (_, name), nbytes in memory.bytes.items() if name.endswith("_s"))
    assert moved == decoding.plan(card, 1, 1, 64, 4).part_bytes


def test_the_wrong_base_makes_large_parts_larger_and_weights_still_sum_to_one():
    lse_s = np.array([8.0, 4.0, -np.inf])
    right, wrong = decoding.weights(lse_s), decoding.weights(lse_s, wrong=True)
    np.testing.assert_allclose(right, np.exp(lse_s) / np.exp(lse_s).sum())
    np.testing.assert_allclose(wrong, right ** (1 / np.log(2)) / (right ** (1 / np.log(2))).sum())
    assert wrong.sum() == pytest.approx(1) and wrong[1] < 0.2 * right[1]


def test_intensity_depends_on_the_group_and_not_on_the_batch():
    Q, K, V = draw(8, 1, 1000, 64, 64, np.float16)
    flops, nbytes = 2 * 2 * 8 * 1000 * 64, K.nbytes + V.nbytes
    assert decoding.intensity(8) == flops / nbytes


@pytest.mark.parametrize("bad, error", [
    (lambda Q, K, V: (Q[0], K, V, 4, 4), ValueError), (lambda Q, K, V: (Q, K[:-1], V, 4, 4), ValueError),
    (lambda Q, K, V: (Q, K.astype(float), V, 4, 4), TypeError), (lambda Q, K, V: (Q, K, V, 0, 4), ValueError),
])  # fmt: skip
def test_bad_input_gets_a_sentence(bad, error):
    with pytest.raises(error):
        decoding.decode(*bad(*draw(2, 1, 9)))
