"""Attention as separate kernels: the oracle's numbers, and bytes that the closed form predicts exactly."""

import numpy as np
import pytest

from flashlab.machine.memory import Memory
from flashlab.reference import standard_attention
from flashlab.reference.attention import attention, attention_backward, weights
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import causal, dense
from flashlab.reference.rules import Rules
from flashlab.reference.scores import softcap
from tests.tools.bounds import assert_as_exact_as_plain

SHAPES = [(1, 1, 1, 1), (7, 7, 3, 3), (20, 33, 8, 5), (33, 20, 8, 5), (64, 64, 16, 16)]  # Nq, Nk, d, dv


def inputs(Nq, Nk, d, dv, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv), (Nq, dv))]


def with_dropout(Q, K, V, dO, Z, **masks):
    """Return O and the gradients with the weights P * Z, with dense matrices. Source: FlashAttention, appendix B.4."""
    scale = Q.dtype.type(Q.shape[1] ** -0.5)
    P, _ = weights(Q, K, **masks)
    dP = (dO @ V.T) * Z
    dS = P * (dP - (P * dP).sum(-1, keepdims=True))
    return (P * Z) @ V, scale * dS @ K, scale * dS.T @ Q, (P * Z).T @ dO


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", [None, causal()])
def test_kernels_equal_the_oracle(shape, mask, dtype):
    Q, K, V, dO = inputs(*shape, dtype)
    memory = Memory()
    ours = [standard_attention.forward(Q, K, V, Rules(mask=mask), Br=8, memory=memory)]
    ours += standard_attention.backward(dO, memory, Br=5)
    wide = [x.astype(np.float64) for x in (Q, K, V, dO)]
    plain = [attention(Q, K, V, mask=mask), *attention_backward(Q, K, V, dO, mask=mask)]
    exact = [attention(*wide[:3], mask=mask), *attention_backward(*wide, mask=mask)]
    for mine, rounded, true in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(mine, rounded, true)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_dropped_weights_are_P_times_Z_forward_and_backward(shape, dtype):
    Q, K, V, dO = inputs(*shape, dtype)
    memory = Memory()
    ours = [standard_attention.forward(Q, K, V, Rules(mask=causal(), dropout=Dropout(0.3, 5)), memory=memory)]
    ours += standard_attention.backward(dO, memory)
    Z = memory.tensors["Z"] * Dropout(0.3, 5).factor
    plain = with_dropout(Q, K, V, dO, Z.astype(dtype), mask=causal())
    exact = with_dropout(*(x.astype(np.float64) for x in (Q, K, V, dO)), Z, mask=causal())
    for mine, rounded, true in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(mine, rounded, true)


def test_gradients_are_the_slopes_of_the_forward_pass():
    tensors, step = inputs(5, 6, 3, 2), 1e-6
    *QKV, dO = tensors
    memory = Memory()
    rules = Rules(mask=causal(), dropout=Dropout(0.4, 1))
    standard_attention.forward(*QKV, rules, memory=memory)
    for which, gradient in enumerate(standard_attention.backward(dO, memory)):
        slopes = np.empty_like(gradient)
        for at in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [x.copy() for x in QKV]
                moved[which][at] += sign * step
                ends.append(
                    (dO * standard_attention.forward(*moved, Rules(mask=causal(), dropout=Dropout(0.4, 1)))).sum()
                )
            slopes[at] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-8)


def test_dropout_is_a_bernoulli_mask_that_keeps_the_mean():
    Q, K, V, _ = inputs(200, 300, 4, 4)
    memory = Memory()
    standard_attention.forward(Q, K, V, Rules(dropout=Dropout(0.1, 3)), memory=memory)
    Z, n = memory.tensors["Z"], 200 * 300
    assert Z.dtype == np.uint8 and set(np.unique(Z)) == {0, 1}
    assert abs(Z.mean() - 0.9) < 5 * (0.9 * 0.1 / n) ** 0.5  # five standard deviations
    kept = Z == 1
    assert np.array_equal(memory.tensors["P_dropped"][~kept], np.zeros((~kept).sum()))
    expected = memory.tensors["P"][kept] * Dropout(0.1, 3).factor
    np.testing.assert_allclose(memory.tensors["P_dropped"][kept], expected, rtol=1e-15)
    again = Memory()
    standard_attention.forward(Q, K, V, Rules(dropout=Dropout(0.1, 4)), memory=again)
    assert not np.array_equal(again.tensors["Z"], Z)


@pytest.mark.parametrize("Br", [1, 7, 20, 50])
def test_bands_change_no_byte_and_no_dropped_weight(Br):
    Q, K, V, dO = inputs(20, 33, 8, 5, np.float32)
    bills = []
    for rows in (None, Br):
        memory = Memory()
        standard_attention.forward(Q, K, V, Rules(mask=causal(), dropout=Dropout(0.2, 0)), Br=rows, memory=memory)
        standard_attention.backward(dO, memory, Br=rows)
        bills.append((memory.bytes, memory.tensors["Z"].tobytes()))
    assert bills[0] == bills[1]


def test_a_dense_mask_is_applied():
    Q, K, V, dO = inputs(5, 6, 3, 2)
    mask = dense(np.random.default_rng(2).random((5, 6)) < 0.6)
    memory = Memory()
    O = standard_attention.forward(Q, K, V, Rules(mask=mask), Br=2, memory=memory)
    gradients = standard_attention.backward(dO, memory)
    np.testing.assert_allclose(O, attention(Q, K, V, mask=mask), rtol=1e-13, atol=1e-15)
    for mine, true in zip(gradients, attention_backward(Q, K, V, dO, mask=mask), strict=True):
        np.testing.assert_allclose(mine, true, rtol=1e-12, atol=1e-14)


def test_row_that_sees_no_key_has_output_and_gradient_zero():
    Q, K, V, dO = inputs(7, 4, 3, 3)  # the first three queries come before every key
    memory = Memory()
    O = standard_attention.forward(Q, K, V, Rules(mask=causal()), memory=memory)
    dQ, dK, dV = standard_attention.backward(dO, memory)
    assert np.array_equal(O[:3], np.zeros((3, 3))) and np.array_equal(dQ[:3], np.zeros((3, 3)))
    assert np.isfinite(np.concatenate([O, dQ, dK, dV])).all() and (O[3:] != 0).all()


@pytest.mark.parametrize("scale", [1e4, 1e-3])
def test_scores_of_any_size_stay_finite(scale):
    Q, K, V, dO = inputs(9, 11, 4, 4)
    memory = Memory()
    O = standard_attention.forward(Q, K, V, Rules(scale=scale), memory=memory)
    dQ, _, _ = standard_attention.backward(dO, memory)
    np.testing.assert_allclose(O, attention(Q, K, V, scale=scale), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dQ, attention_backward(Q, K, V, dO, scale=scale)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("N, d", [(1, 1), (8, 2), (37, 5), (64, 16)])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
def test_counted_bytes_equal_the_closed_form(N, d, dtype, mask, dropout):
    Q, K, V, dO = inputs(N, N, d, d, dtype)
    memory = Memory()
    what = {"itemsize": np.dtype(dtype).itemsize, "mask": mask, "dropout": dropout}
    rules = Rules(causal() if mask else None, dropout=Dropout(0.1, 0) if dropout else None)
    standard_attention.forward(Q, K, V, rules, Br=8, memory=memory)
    assert memory.moved == standard_attention.moved(N, d, **what)
    standard_attention.backward(dO, memory, Br=8)
    assert memory.moved == standard_attention.moved(N, d, **what, backward=True)


def test_each_kernel_moves_what_its_line_of_the_table_says():
    Q, K, V, dO = inputs(24, 24, 4, 4, np.float16)
    memory = Memory()
    standard_attention.forward(Q, K, V, Rules(mask=causal(), dropout=Dropout(0.1, 0)), Br=8, memory=memory)
    standard_attention.backward(dO, memory, Br=8)
    counted, kernel = {}, None
    for event in memory.events:
        kernel = event.name if event.kind == "kernel" else kernel
        if event.kind in ("load", "store"):
            counted[kernel] = counted.get(kernel, 0) + event.nbytes
    kernels = standard_attention.passes(mask=True, dropout=True, backward=True)
    assert counted == {name: kernel.bytes(24, 4) for name, kernel in kernels.items()}


def test_plain_attention_writes_two_square_matrices_and_reads_two():
    Q, K, V, _ = inputs(16, 16, 2, 2, np.float16)
    memory = Memory()
    standard_attention.forward(Q, K, V, memory=memory)
    square = 2 * 16 * 16
    assert memory.bytes["store", "S"] == memory.bytes["load", "S"] == square
    assert memory.bytes["store", "P"] == memory.bytes["load", "P"] == square
    assert memory.moved == 4 * square + 4 * 2 * 16 * 2  # and Q, K, V, O once each


def test_the_papers_configuration_is_18_square_and_12_thin_passes():
    kernels = standard_attention.passes(mask=True, dropout=True, backward=True).values()
    assert sum(k.square for k in kernels) + sum(k.byte for k in kernels) / 2 == 18  # a byte is half a float16
    assert sum(k.thin for k in kernels) == 12
    total = 16 * 64 * standard_attention.moved(1024, 64, mask=True, dropout=True, backward=True)
    assert total == 18 * 2 * 1024**3 + 12 * 2 * 1024**2 * 64
    assert round(total / 1e9, 2) == 40.27
    assert 16 * 64 * standard_attention.moved(1024, 64, backward=True) / 1e9 == pytest.approx(25.2, abs=0.05)


def test_fast_memory_needs_a_band_and_a_thin_matrix_but_no_square_one():
    Q, K, V, dO = inputs(64, 64, 4, 4, np.float32)
    thin, band = 4 * 64 * 4, 4 * 8 * 64
    memory = Memory(sram_bytes=3 * thin + 2 * band)
    standard_attention.forward(Q, K, V, Rules(mask=causal(), dropout=Dropout(0.1, 0)), Br=8, memory=memory)
    standard_attention.backward(dO, memory, Br=8)
    assert memory.peak_bytes < 4 * 64 * 64


@pytest.mark.parametrize(
    "change, error, sentence",
    [
        ({"K": np.ones((6, 2))}, ValueError, r"expected Q \[Nq, d\]"),
        ({"V": np.ones((6, 3), np.float32)}, TypeError, "must have one dtype"),
        ({"rules": Rules(sink=1.0)}, ValueError, "no score function and no sink"),
        ({"rules": Rules(score=softcap(5.0))}, ValueError, "no score function and no sink"),
        ({"Br": 0}, ValueError, "Br must be a whole number from 1 on, got 0"),
    ],
)
def test_bad_input_gets_a_sentence(change, error, sentence):
    Q, K, V, _ = inputs(5, 6, 3, 3)
    with pytest.raises(error, match=sentence):
        standard_attention.forward(**({"Q": Q, "K": K, "V": V} | change))


def test_backward_refuses_the_memory_of_another_forward_pass():
    Q, K, V, dO = inputs(5, 6, 3, 3)
    memory = Memory()
    with pytest.raises(ValueError, match="expected the memory of a forward pass"):
        standard_attention.backward(dO, memory)
    standard_attention.forward(Q, K, V, memory=memory)
    with pytest.raises(ValueError, match="shape of its O"):
        standard_attention.backward(dO[:4], memory)
