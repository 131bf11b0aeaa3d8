"""The backward pass by tiles agrees with float64 and with torch's autograd, and its bytes with the closed form."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.course.check import edited
from flashlab.machine import costs
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import recomputation, standard_attention, tiling
from flashlab.reference.attention import attention, attention_backward, weights
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import causal, window
from flashlab.reference.rules import Rules

SHAPES = {  # Nq, Nk, d, dv, Br, Bc, mask
    "one row, one key": (1, 1, 8, 8, 4, 4, causal()),
    "no tile divides": (50, 50, 16, 16, 16, 12, None),
    "causal, no tile divides": (50, 50, 16, 16, 16, 12, causal()),
    "wide tiles": (40, 40, 8, 8, 8, 32, causal()),
    "tall tiles": (40, 40, 8, 8, 32, 8, causal()),
    "more keys than queries": (33, 70, 16, 8, 16, 16, causal()),
    "fewer keys than queries: rows that see none": (70, 33, 16, 8, 8, 16, causal()),
    "fewer keys, not causal": (70, 33, 16, 8, 9, 7, None),
    "no keys": (5, 0, 8, 8, 4, 4, None),
}


def inputs(Nq, Nk, d, dv, dtype=np.float64):
    rng = np.random.default_rng(8)
    return [rng.normal(size=shape).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv), (Nq, dv))]


def tiled(Q, K, V, dO, Br, Bc, mask=None, memory=None):
    O, lse = tiling.fa2_forward(Q, K, V, Br, Bc, Rules(mask))
    return recomputation.backward(Q, K, V, O, lse, dO, Br, Bc, Rules(mask), memory=memory)


def hold(inputs, Br, Bc, mask=None):
    """Assert that our error is at most twice that of the plain computation, plus one rounding of O and of lse.

    dS = P * (dP - delta) is a difference. In a row with one visible key, dP equals delta. The plain computation takes
    delta from the same dP, so its dS is exactly 0. Ours takes delta from O and dO, which equals dP only up to rounding.
    A rounding of lse, which is large if scores are large, is the relative change of a row of P. NaN fails.
    """
    Q, K, V, dO = (x.astype(np.float64) for x in inputs)
    exact = attention_backward(Q, K, V, dO, mask=mask)
    plain = attention_backward(*inputs, mask=mask)
    P, lse = weights(Q, K, mask=mask)
    terms = P * (np.abs(dO) @ np.abs(V).T + (np.abs(dO) * np.abs(P @ V)).sum(-1, keepdims=True)) * Q.shape[1] ** -0.5
    largest = np.abs(lse[np.isfinite(lse)]).max(initial=0)
    sizes = terms @ np.abs(K), terms.T @ np.abs(Q), P.T @ np.abs(dO)
    for mine, rounded, true, size in zip(tiled(*inputs, Br, Bc, mask), plain, exact, sizes, strict=True):
        assert mine.shape == true.shape and mine.dtype == rounded.dtype
        rounding = (np.finfo(mine.dtype).eps + largest * np.finfo(np.float32).eps) * size.max(initial=0)
        allowed = 2 * np.abs(rounded - true).max(initial=0) + rounding
        assert (np.abs(mine - true) <= allowed).all()


@pytest.mark.parametrize("name", SHAPES)
def test_tiled_gradients_equal_dense_ones(name):
    Nq, Nk, d, dv, Br, Bc, mask = SHAPES[name]
    Q, K, V, dO = inputs(Nq, Nk, d, dv)
    dense = attention_backward(Q, K, V, dO, mask=mask)
    for mine, true in zip(tiled(Q, K, V, dO, Br, Bc, mask), dense, strict=True):
        assert np.abs(mine - true).max(initial=0) < 1e-13


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", SHAPES)
def test_error_is_that_of_the_plain_computation(name, dtype):
    Nq, Nk, d, dv, Br, Bc, mask = SHAPES[name]
    hold(inputs(Nq, Nk, d, dv, dtype), Br, Bc, mask)


@pytest.mark.parametrize("mask", [None, causal()])
def test_scores_of_ten_thousand(mask):
    Q, K, V, dO = inputs(40, 48, 16, 16, np.float32)
    Q *= np.float32(1e4 / np.abs(Q @ K.T / 4).max())
    hold((Q, K, V, dO), 16, 16, mask)


def test_growing_maximum():
    Q, K, V, dO = inputs(24, 64, 8, 8, np.float32)
    Q, K = np.abs(Q), np.abs(K) * np.linspace(0, 20, 64, dtype=np.float32)[:, None]
    hold((Q, K, V, dO), 8, 8)


def test_inputs_that_are_not_contiguous():
    Q, K, V, dO = (np.asfortranarray(x) for x in inputs(30, 44, 8, 8))
    strided = [np.repeat(x, 2, axis=0)[::2] for x in (Q, K, V, dO)]
    for mine, true in zip(tiled(*strided, 8, 8), attention_backward(Q, K, V, dO), strict=True):
        assert np.abs(mine - true).max() < 1e-13


@pytest.mark.parametrize("mask", [None, causal()])
def test_gradients_equal_those_of_autograd(mask):
    Q, K, V, dO = inputs(45, 45, 16, 16)
    leaves = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=mask is not None).backward(torch.tensor(dO))
    for mine, leaf in zip(tiled(Q, K, V, dO, 16, 16, mask), leaves, strict=True):
        assert np.abs(mine - leaf.grad.numpy()).max() < 1e-13


rows, sizes = st.integers(1, 30), st.integers(1, 12)


@settings(max_examples=40, deadline=None)
@given(rows, st.integers(0, 30), sizes, sizes, st.sampled_from([None, causal(), window(4, 2)]), st.integers(0, 9))
def test_tiles_of_any_size_give_the_same_gradients_and_the_predicted_bill(Nq, Nk, Br, Bc, mask, seed):
    random, memory = np.random.default_rng(seed), Memory()
    Q, K, V, dO = (random.normal(size=shape) for shape in ((Nq, 4), (Nk, 4), (Nk, 3), (Nq, 3)))
    ours = tiled(Q, K, V, dO, Br, Bc, mask, memory)
    for mine, true in zip(ours, attention_backward(Q, K, V, dO, mask=mask), strict=True):
        assert np.abs(mine - true).max(initial=0) < 1e-13
    assert memory.bytes == recomputation.traffic(Nq, Nk, 4, Br, Bc, dv=3, mask=mask, dtype=np.float64)


def test_recomputed_P_equals_stored_P():
    Q, K, _, _ = inputs(20, 30, 8, 8)
    P, lse = weights(Q, K)
    S = Q @ K.T * 8**-0.5
    for cols in tiling.tiles(30, 7):
        assert np.abs(recomputation.rebuild(S[:, cols], lse) - P[:, cols]).max() < 1e-15


def test_rebuilt_row_that_sees_no_key_is_zero_and_not_nan():
    P = recomputation.rebuild(np.array([[-np.inf, -np.inf], [0.0, -np.inf]]), np.array([-np.inf, 0.0]))
    assert np.array_equal(P, [[0, 0], [1, 0]])


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_delta_is_rowsum_P_dP(p):
    Q, K, V, dO = inputs(20, 30, 8, 8)
    P, _ = weights(Q, K)
    Z = Dropout(p, 1).tile(slice(0, 20), slice(0, 30), np.float64)
    dP = Z * (dO @ V.T)
    assert np.abs(recomputation.delta(dO, (Z * P) @ V) - (P * dP).sum(-1)).max() < 1e-13


def test_rows_of_dS_sum_to_zero():
    Q, K, V, dO = inputs(20, 30, 8, 8)
    P, _ = weights(Q, K)
    dS = P * (dO @ V.T - recomputation.delta(dO, P @ V)[:, None])
    assert np.abs(dS.sum(-1)).max() < 1e-14


def test_a_row_sum_over_one_tile_only_is_wrong():
    Q, K, V, dO = inputs(256, 256, 64, 64)
    local = edited(recomputation.gradients, "delta_i[:, None]", "(P_ij * dP_ij).sum(-1, keepdims=True)")
    P, _ = weights(Q, K)
    dQ = sum(local(Q, K[cols], V[cols], dO, P[:, cols], np.zeros(256), 1 / 8).dQ for cols in tiling.tiles(256, 64))
    true = attention_backward(Q, K, V, dO)[0]
    assert 0.1 < np.linalg.norm(dQ - true) / np.linalg.norm(true) < 0.3


# Dropout, compared with the dense computation with a dense mask.
def dense_with_dropout(Q, K, V, dO, Z, mask):
    P, lse = weights(Q, K, mask=mask)
    dP = Z * (dO @ V.T)
    dS = P * (dP - (P * dP).sum(-1, keepdims=True)) * Q.shape[1] ** -0.5
    return (Z * P) @ V, lse, (dS @ K, dS.T @ Q, (Z * P).T @ dO)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "no keys"])
def test_replayed_dropout_equals_a_stored_mask(name):
    Nq, Nk, d, dv, Br, Bc, mask = SHAPES[name]
    Q, K, V, dO = inputs(Nq, Nk, d, dv)
    dropout = Dropout(0.25, seed=2**40 + 1)
    Z = dropout.tile(slice(0, Nq), slice(0, Nk), np.float64)
    rules = Rules(mask=mask, dropout=dropout)
    O, lse = tiling.fa2_forward(Q, K, V, Br, Bc, rules)
    ours = recomputation.backward(Q, K, V, O, lse, dO, 11, 6, rules)  # other tiles than forward's
    O_dense, lse_dense, dense = dense_with_dropout(Q, K, V, dO, Z, mask)
    assert np.abs(O - O_dense).max() < 1e-14 and np.array_equal(lse == -np.inf, lse_dense == -np.inf)
    for mine, true in zip(ours, dense, strict=True):
        assert np.abs(mine - true).max() < 1e-13


def test_dropout_of_0_is_plain_attention():
    Q, K, V, _ = inputs(30, 40, 8, 8)
    O, lse = tiling.fa2_forward(Q, K, V, 8, 8, Rules(dropout=Dropout(0, 5), mask=causal()))
    O_dense, lse_dense = attention(Q, K, V, mask=causal(), return_lse=True)
    assert np.abs(O - O_dense).max() < 1e-14 and np.abs(lse - lse_dense).max() < 1e-14


def test_dropout_moves_no_byte():
    Q, K, V, dO = inputs(50, 60, 8, 8)
    plain, dropped = Memory(), Memory()
    O, lse = tiling.fa2_forward(Q, K, V, 16, 16, memory=plain)
    recomputation.backward(Q, K, V, O, lse, dO, 16, 16, memory=plain)
    dropout = Dropout(0.1, 4)
    O, lse = tiling.fa2_forward(Q, K, V, 16, 16, Rules(dropout=dropout), memory=dropped)
    recomputation.backward(Q, K, V, O, lse, dO, 16, 16, Rules(dropout=dropout), memory=dropped)
    assert plain.bytes == dropped.bytes


# The bytes and FLOPs
def test_paper_configuration_is_33_passes():
    N, d = 1024, 64
    Q, K, V, dO = inputs(N, N, d, d, np.float16)
    memory = Memory()
    O, lse = tiling.fa1_forward(Q, K, V, 64, 256, memory=memory)
    assert _thin(memory) == 13 * N * d * 2
    recomputation.backward(Q, K, V, O, lse, dO, 64, 256, memory=memory)
    assert _thin(memory) == 33 * N * d * 2
    assert round(_thin(memory) * 64 * 16 / 1e9, 2) == 4.43
    assert round(memory.moved * 64 * 16 / 1e9, 2) == 4.49  # with lse and delta, 4 bytes per row
    standard = standard_attention.moved(N, d, mask=True, dropout=True, backward=True)
    assert round(standard * 64 * 16 / 1e9, 2) == 40.27
    assert costs.flops(N, N, d, training=True, rebuilt=False) * 64 * 16 / 1e9 == pytest.approx(824.6, abs=0.05)
    assert costs.flops(N, N, d, training=True, rebuilt=True) * 64 * 16 / 1e9 == pytest.approx(962.1, abs=0.05)


def _thin(memory):
    return sum(nbytes for (_, name), nbytes in memory.bytes.items() if name not in ("lse", "delta"))


def test_flops_are_those_of_the_products_in_the_run():
    Q, K, V, dO = inputs(64, 64, 16, 16)
    (O, lse), forward = costs.counted(tiling.fa2_forward, Q, K, V, 16, 16)
    O, lse = np.array(O), np.array(lse)
    _, backward = costs.counted(recomputation.backward, Q, K, V, O, lse, dO, 16, 16)
    assert forward + backward == costs.flops(64, 64, 16, training=True, rebuilt=True)
    stored, rebuilt = (costs.flops(64, 64, 16, training=True, rebuilt=again) for again in (False, True))
    assert rebuilt * 6 == stored * 7


def test_nothing_of_the_size_of_the_scores_is_ever_alive():
    N, d = 1024, 32
    Q, K, V, dO = inputs(N, N, d, d, np.float32)
    O, lse = tiling.fa2_forward(Q, K, V, 64, 64)
    memory = Memory(sram_bytes=100_000)
    tracemalloc.start()
    recomputation.backward(Q, K, V, O, lse, dO, 64, 64, memory=memory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory.peak_bytes <= 100_000
    assert max(tensor.size for tensor in memory.tensors.values()) == N * d
    assert peak < N * N * 4 / 4  # dQ, dK, dV, delta and a few tiles


def test_tiles_that_do_not_fit_say_so():
    Q, K, V, dO = inputs(64, 64, 32, 32, np.float32)
    O, lse = tiling.fa2_forward(Q, K, V, 64, 64)
    with pytest.raises(FastMemoryFull, match="dS_ij 16,384"):
        recomputation.backward(Q, K, V, O, lse, dO, 64, 64, memory=Memory(sram_bytes=80_000))


@pytest.mark.parametrize(
    "spoil, error, sentence",
    [
        (lambda a: a | {"O": a["O"][:-1]}, ValueError, "O and dO"),
        (lambda a: a | {"lse": a["lse"][:-1]}, ValueError, "lse"),
        (lambda a: a | {"dO": a["dO"][:, :-1]}, ValueError, "dO"),
        (lambda a: a | {"dO": a["dO"].astype(np.float32)}, TypeError, "must have one dtype"),
        (lambda a: a | {"K": a["K"][:, :-1]}, ValueError, "expected Q"),
        (lambda a: a | {"Br": 0}, ValueError, "Br must be a whole number from 1 on, got 0"),
        (lambda a: a | {"Q": a["Q"].astype(int)}, TypeError, "floating-point numbers"),
    ],
)
def test_bad_input_gets_a_sentence(spoil, error, sentence):
    Q, K, V, dO = inputs(10, 12, 4, 4)
    O, lse = tiling.fa2_forward(Q, K, V, 4, 4)
    arguments = {"Q": Q, "K": K, "V": V, "O": O, "lse": lse, "dO": dO, "Br": 4, "Bc": 4}
    with pytest.raises(error, match=sentence) as refusal:
        recomputation.backward(**spoil(arguments))
    assert "\n" not in str(refusal.value)
