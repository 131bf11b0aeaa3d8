"""The attentions that lesson 13 compares ``flash_attention`` with are what they say they are."""

import pytest
import torch

from flashlab.models.plain import dense, reordered, windowed
from flashlab.reference import masks
from flashlab.reference.attention import attention
from tests.tools.bounds import assert_as_exact_as_plain


def qkv(Nq, Nk, d=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(Nq + Nk)
    return [torch.randn(2, 3, N, d, generator=generator).to(dtype) for N in (Nq, Nk, Nk)]


def assert_is_the_oracle(function, tensors, causal, mask=None):
    plain = attention(*(x.numpy() for x in tensors), mask=mask)
    exact = attention(*(x.double().numpy() for x in tensors), mask=mask)
    ours = function(*tensors, causal=causal)
    assert_as_exact_as_plain(ours, torch.from_numpy(plain), torch.from_numpy(exact))


@pytest.mark.parametrize("Nq, Nk, causal", [(9, 9, False), (9, 9, True), (3, 9, True), (9, 3, False), (1, 1, True)])
def test_dense_is_the_oracle(Nq, Nk, causal):
    assert_is_the_oracle(dense, qkv(Nq, Nk), causal, masks.causal() if causal else None)


@pytest.mark.parametrize("Nq", [12, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("w", [1, 4, 50])
def test_a_window_masks_what_is_w_places_away(Nq, causal, w):
    mask = masks.window(w - 1, 0 if causal else w - 1)
    assert_is_the_oracle(windowed(w), qkv(Nq, 12), causal, mask)


def test_another_order_changes_bits_and_no_more():
    tensors = qkv(40, 40, d=64)
    plain, other = dense(*tensors, causal=True), reordered(1)(*tensors, causal=True)
    exact = dense(*(x.double() for x in tensors), causal=True)
    assert not torch.equal(plain, other)
    assert_as_exact_as_plain(other, plain, exact)


def test_the_first_queries_of_too_many_would_see_no_key():
    with pytest.raises(ValueError, match="a key for each of the 9 causal queries, got 3 keys"):
        dense(*qkv(9, 3), causal=True)
