"""The attentions in torch, with which the course compares ``flash_attention``, equal the oracle."""

from types import SimpleNamespace

import pytest
import torch

from flashlab.models.plain import dense, reordered, tiled, update, windowed
from flashlab.reference import masks
from flashlab.reference.attention import attention, attention_backward
from tests.reference.test_pipeline import assert_exact
from tests.reference.test_tiling import ADVERSARIAL
from tests.tools.bounds import assert_as_exact_as_plain


def qkv(Nq, Nk, d=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(Nq + Nk)
    return [torch.randn(2, 3, N, d, generator=generator).to(dtype) for N in (Nq, Nk, Nk)]


def assert_is_the_oracle(function, tensors, *, causal, mask):
    plain = attention(*(x.numpy() for x in tensors), mask=mask)
    exact = attention(*(x.double().numpy() for x in tensors), mask=mask)
    ours = function(*tensors, causal=causal)
    assert_as_exact_as_plain(ours, torch.from_numpy(plain), torch.from_numpy(exact))


@pytest.mark.parametrize("Nq, Nk, causal", [(9, 9, False), (9, 9, True), (3, 9, True), (9, 3, False), (1, 1, True)])
def test_dense_equals_the_oracle(Nq, Nk, causal):
    assert_is_the_oracle(dense, qkv(Nq, Nk), causal=causal, mask=masks.causal() if causal else None)


@pytest.mark.parametrize("Nq", [12, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("W", [1, 4, 50])
def test_a_window_of_W_counts_the_querys_own_key(Nq, causal, W):
    mask = masks.window(W - 1, 0 if causal else W - 1)
    assert_is_the_oracle(windowed(W), qkv(Nq, 12), causal=causal, mask=mask)


def test_a_window_of_one_key_returns_the_querys_own_value():
    Q, K, V = qkv(12, 12)
    torch.testing.assert_close(windowed(1)(Q, K, V, causal=True), V)


@pytest.mark.parametrize("W", [0, -3, 2.5, True])
def test_an_empty_window_is_refused(W):
    with pytest.raises((TypeError, ValueError), match=f"W must be a whole number from 1 on, got {W}"):
        windowed(W)


def test_another_order_of_keys_changes_only_rounding():
    tensors = qkv(40, 40, d=64)
    plain, other = dense(*tensors, causal=True), reordered(1)(*tensors, causal=True)
    exact = dense(*(x.double() for x in tensors), causal=True)
    assert not torch.equal(plain, other)
    assert_as_exact_as_plain(other, plain, exact)


def test_dense_refuses_queries_that_would_see_no_key():
    for version, causal in ((dense, True), (windowed(2), True), (windowed(6), False)):
        with pytest.raises(ValueError, match="a key that each of the 9 queries sees, got 3 keys"):
            version(*qkv(9, 3), causal=causal)
    assert windowed(7)(*qkv(9, 3), causal=False).isfinite().all()


# The loop over tiles


def test_tiled_equals_the_oracle():
    for inputs, mask in ADVERSARIAL.values():
        O, lse = tiled(*(torch.from_numpy(x.copy()) for x in inputs), 5, 16, causal=mask == masks.causal())
        assert_exact(SimpleNamespace(O=O.numpy(), lse=lse.numpy()), *inputs, mask)


@pytest.mark.parametrize("Br, Bc", [(1, 1), (3, 5), (5, 3), (64, 64)])
@pytest.mark.parametrize("Nq, Nk", [(7, 11), (11, 7), (1, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_any_size_give_the_same(Nq, Nk, Br, Bc, causal):
    Q, K, V = (x[0, 0].double() for x in qkv(Nq, Nk))
    exact = attention(*(x.numpy() for x in (Q, K, V)), mask=masks.causal() if causal else None, return_lse=True)
    for ours, theirs in zip(tiled(Q, K, V, Br, Bc, causal=causal), exact, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("Nq, Nk, causal", [(9, 9, False), (9, 9, True), (3, 9, True), (9, 3, True)])
def test_autograd_through_the_tiles_gives_the_oracles_gradients(Nq, Nk, causal):
    inputs = [x[0, 0].double().requires_grad_() for x in qkv(Nq, Nk)]
    dO = torch.randn(Nq, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    O, _ = tiled(*inputs, 4, 4, causal=causal)
    ours = torch.autograd.grad(O, inputs, dO)
    mask = masks.causal() if causal else None
    exact = attention_backward(*(x.detach().numpy() for x in (*inputs, dO)), mask=mask)
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, torch.from_numpy(theirs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_inputs_are_widened_and_the_output_is_narrowed_once(dtype):
    Q, K, V = (x[0, 0] for x in qkv(20, 30, dtype=dtype))
    wide, wide_lse = tiled(*(x.float() for x in (Q, K, V)), 8, 8)
    O, lse = tiled(Q, K, V, 8, 8)
    assert (O.dtype, lse.dtype) == (dtype, torch.float32)
    assert torch.equal(O, wide.to(dtype)) and torch.equal(lse, wide_lse)


def test_a_tile_that_is_all_masked_changes_nothing():
    m_i, l_i, O_i = torch.tensor([-torch.inf, 2.0]), torch.tensor([0.0, 3.0]), torch.tensor([[0.0], [5.0]])
    after = update(m_i, l_i, O_i, torch.full((2, 4), -torch.inf), torch.ones(4, 1))
    for before, now in zip((m_i, l_i, O_i), after, strict=True):
        assert torch.equal(before, now)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (2.5, 4)], ids=str)
def test_tiles_without_rows_or_columns_are_refused(sizes):
    with pytest.raises(ValueError, match="B[rc] must be a whole number from 1 on, got "):
        tiled(*(x[0, 0] for x in qkv(9, 9)), *sizes)
