"""The drop-in computes what torch's function does, the module equals a dense one, and both refuse wrong arguments."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

modules = pytest.importorskip("flashlab.models.modules", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE, flash_attention  # noqa: E402
from tests.tools.bounds import assert_as_exact_as_plain  # noqa: E402
from tests.tools.long import long  # noqa: E402


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def plain_sdpa(*tensors, **options):
    """Return torch's SDPA by plain products: its fused kernels for GPUs refuse some masks and lack some gradients."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **options)


def results(function, tensors, dtype, **options):
    """Return the output and the gradients of a function of query, key and value."""
    tensors = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors]
    O = function(*tensors, **options)
    dO = randn(*O.shape, seed=9).to(dtype)
    return [O, *torch.autograd.grad(O, tensors, dO)]


def assert_is_torchs(shapes, dtype=torch.float16, **options):
    tensors = [randn(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    ours = results(modules.scaled_dot_product_attention, tensors, dtype, **options)
    plain = results(plain_sdpa, tensors, dtype, **options)
    exact = results(plain_sdpa, tensors, torch.float64, **options)
    for name, *three in zip(("O", "dQ", "dK", "dV"), ours, plain, exact, strict=True):
        assert three[0].shape == three[2].shape, name
        assert_as_exact_as_plain(*three)


@pytest.mark.parametrize(
    "dtype, is_causal",
    [
        (torch.float32, True), (torch.float16, False), long(torch.float16, True),
        long(torch.float32, False), long(torch.bfloat16, False), long(torch.bfloat16, True),
    ],
)  # fmt: skip
def test_sdpa_equals_torchs(dtype, is_causal):
    assert_is_torchs([(2, 2, 70, 32)] * 3, dtype, is_causal=is_causal)


@pytest.mark.parametrize("Nq, Nk", [(20, 50), (50, 20), (2, 30), (30, 2)])
def test_sdpa_aligns_the_causal_mask_at_the_upper_left(Nq, Nk):
    assert_is_torchs([(1, 2, Nq, 16), (1, 2, Nk, 16), (1, 2, Nk, 16)], is_causal=True)


def test_upper_left_and_lower_right_differ_where_lengths_do():
    q, k, v = randn(1, 1, 5, 16), randn(1, 1, 9, 16, seed=1), randn(1, 1, 9, 16, seed=2)
    upper_left = modules.scaled_dot_product_attention(q, k, v, is_causal=True)
    lower_right = flash_attention(q, k, v, causal=True)
    assert torch.equal(upper_left[0, 0, 0], v[0, 0, 0])  # the first query sees the first key and no other
    assert (upper_left - lower_right).abs().max() > 0.1


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)], ids=str)
def test_sdpa_takes_any_number_of_leading_dimensions(batch):
    assert_is_torchs([(*batch, 9, 16)] * 3, is_causal=True)


def test_sdpa_broadcasts_leading_dimensions():
    assert_is_torchs([(2, 3, 9, 16), (1, 3, 12, 16), (3, 12, 16)])


@pytest.mark.parametrize("batch", [(2,), (), (2, 2)], ids=str)
def test_sdpa_shares_key_heads_under_enable_gqa(batch):
    assert_is_torchs([(*batch, 4, 9, 16), (*batch, 2, 12, 16), (*batch, 2, 12, 16)], enable_gqa=True)


def test_sdpa_refuses_unequal_heads_without_enable_gqa_as_torch_does():
    q, k = randn(1, 4, 9, 16), randn(1, 2, 9, 16)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match=r"must broadcast .*, got query \[1, 4\], key \[1, 2\], value \[1, 2\]"):
        modules.scaled_dot_product_attention(q, k, k)


def test_sdpa_takes_a_scale_and_values_of_their_own_width():
    assert_is_torchs([(1, 2, 20, 16), (1, 2, 30, 16), (1, 2, 30, 24)], scale=0.7)


@pytest.mark.parametrize("shape", [(20, 30), (2, 1, 20, 30), (3, 1, 30), long((2, 3, 1, 1))], ids=str)
@pytest.mark.parametrize("kind", ["bool", long("float")])
def test_sdpa_takes_masks_as_torch_does(kind, shape):
    mask = randn(*shape, seed=5)
    mask = mask > -0.5 if kind == "bool" else mask
    assert_is_torchs([(2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 16)], torch.float32, attn_mask=mask, scale=0.3)


def test_sdpa_takes_masks_with_several_batch_dimensions_and_with_none():
    assert_is_torchs([(2, 2, 3, 9, 16)] * 3, torch.float32, attn_mask=randn(2, 1, 3, 9, 9) > 0)
    assert_is_torchs([(9, 16)] * 3, torch.float32, attn_mask=randn(9, 9) > 0)


def test_sdpa_gives_a_mask_of_numbers_its_gradient():
    def gradient(function, dtype=torch.float32):
        x, added = randn(1, 2, 40, 16).to(dtype), randn(2, 1, 40, seed=1).to(dtype).requires_grad_()
        return torch.autograd.grad((function(x, x, x, attn_mask=added) ** 2).sum(), added)[0]

    assert_as_exact_as_plain(
        gradient(modules.scaled_dot_product_attention), gradient(plain_sdpa), gradient(plain_sdpa, torch.float64)
    )


@pytest.mark.parametrize("Nq, Nk", [long(40, 40), (20, 50), long(50, 20)])
def test_sdpa_drops_weights_and_keeps_their_mean(Nq, Nk):
    torch.manual_seed(0)
    q, k = randn(1, 32, Nq, 16), randn(1, 32, Nk, 16)
    ones = torch.ones(1, 32, Nk, 16, device=DEVICE)
    O = modules.scaled_dot_product_attention(q, k, ones, dropout_p=0.5, is_causal=True)[..., 0]  # sums of weights
    assert O.unique().numel() > 100 and abs(O.mean().item() - 1) < 0.1


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"attn_mask": torch.ones(9, 9, dtype=torch.bool), "is_causal": True},
            ValueError,
            "attn_mask must be None under is_causal=True",
        ),
        ({"attn_mask": torch.ones(9, 9, dtype=torch.int)}, TypeError, "boolean or floating-point tensor"),
        ({"attn_mask": torch.ones(8, 9)}, ValueError, "broadcastable to [1, 1, 9, 9], got [8, 9]"),
        ({"attn_mask": torch.tensor(True)}, ValueError, "at least the dimensions [Nq, Nk] and be broadcastable to"),
        ({"attn_mask": torch.ones(9)}, ValueError, "attn_mask must have at least the dimensions [Nq, Nk]"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p must be a probability below 1"),
        ({"enable_gqa": "no"}, TypeError, "enable_gqa must be True or False, got 'no'"),
    ],
)
def test_sdpa_refuses_wrong_options(options, error, message):
    x = randn(1, 1, 9, 16)
    with pytest.raises(error, match=re.escape(message)):
        modules.scaled_dot_product_attention(x, x, x, **options)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("Nk, Nv", [(5, 4), (4, 5), (2, 9)])
def test_sdpa_refuses_keys_and_values_of_different_lengths(Nk, Nv, is_causal):
    with pytest.raises(ValueError, match=f"key and value must have one length, got {Nk} and {Nv}"):
        modules.scaled_dot_product_attention(
            randn(*(1, 1, 2, 8)), randn(*(1, 1, Nk, 8)), randn(*(1, 1, Nv, 8)), is_causal=is_causal
        )


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize(
    "odd, error, message",
    [
        (None, TypeError, "must be a torch tensor, got NoneType"),
        ([[1.0]], TypeError, "must be a torch tensor, got list"),
        (np.ones((1, 1, 4, 8), np.float32), TypeError, "must be a torch tensor, got ndarray"),
        (torch.ones(9), ValueError, r"must have at least the dimensions \[N, d\], got shape \[9\]"),
        (torch.eye(8).to_sparse(), TypeError, "must be a dense tensor, got torch.sparse_coo"),
    ],
    ids=["None", "list", "numpy", "vector", "sparse"],
)
def test_sdpa_refuses_what_is_no_dense_tensor_of_rows(name, odd, error, message):
    x = dict.fromkeys(("query", "key", "value"), randn(*(1, 1, 4, 8)))
    with pytest.raises(error, match=f"{name} {message}"):
        modules.scaled_dot_product_attention(**(x | {name: odd}))


@pytest.mark.exhaustive  # torch imports its compiler for a nested tensor
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_sdpa_refuses_nested_tensors(name):
    x = dict.fromkeys(("query", "key", "value"), randn(*(1, 1, 4, 8)))
    odd = torch.nested.nested_tensor([torch.ones(2, 8)], layout=torch.jagged)
    with pytest.raises(TypeError, match=f"{name} must be a dense tensor, got a nested one"):
        modules.scaled_dot_product_attention(**(x | {name: odd}))


@pytest.mark.parametrize("is_causal", ["False", 1, None])
@pytest.mark.parametrize("Nk", [4, 5])
def test_sdpa_refuses_a_causal_that_is_no_bool(is_causal, Nk):
    q, k = randn(*(1, 1, 4, 8)), randn(*(1, 1, Nk, 8))
    with pytest.raises(TypeError, match=f"is_causal must be True or False, got {is_causal!r}"):
        modules.scaled_dot_product_attention(q, k, k, is_causal=is_causal)


def test_sdpa_needs_a_dimension_of_heads_under_enable_gqa():
    x = randn(*(9, 16))
    with pytest.raises(ValueError, match=r"at least the dimensions \[H, N, d\]"):
        modules.scaled_dot_product_attention(x, x, x, enable_gqa=True)


@pytest.mark.parametrize("Nq, Nk", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_without_queries_is_empty_and_without_keys_zero(Nq, Nk, is_causal):
    k = randn(*(1, 2, Nk, 16))
    O = modules.scaled_dot_product_attention(randn(*(1, 2, Nq, 16)), k, k, is_causal=is_causal)
    assert O.shape == (1, 2, Nq, 16) and (O == 0).all()


def dense(Q, K, V, *, causal):
    return F.scaled_dot_product_attention(Q, K, V, is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize(
    "num_kv_heads, causal",
    [(None, False), (2, True), long(None, True), long(2, False), long(1, False), long(1, True)],
)
def test_module_equals_the_dense_module_in_output_and_gradients(num_kv_heads, causal):
    def run(attention, dtype):
        torch.manual_seed(0)
        module = modules.FlashAttention(64, 4, num_kv_heads, causal=causal, bias=True, attention=attention)
        module = module.to(DEVICE, dtype)
        x = randn(2, 33, 64).to(dtype).requires_grad_()
        y = module(x)
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()])]

    ours, plain, exact = run(flash_attention, torch.float16), run(dense, torch.float16), run(dense, torch.float64)
    assert len(ours) == 10
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three)


def test_module_has_a_narrower_projection_for_shared_heads():
    module = modules.FlashAttention(64, 8, 2)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "q_proj.weight": (64, 64),
        "k_proj.weight": (16, 64),
        "v_proj.weight": (16, 64),
        "o_proj.weight": (64, 64),
    }


@pytest.mark.parametrize("sizes", [(64, 5), (64, 4, 3)], ids=str)
def test_module_refuses_heads_that_do_not_divide(sizes):
    with pytest.raises(
        ValueError, match="num_heads must divide d_model and be a multiple of num_kv_heads, got d_model=64"
    ):
        modules.FlashAttention(*sizes)


@pytest.mark.parametrize(
    "sizes",
    [(0, 1), (64, 0), (64, -4), (64, 4, 0), (64, 4, -2), (64.0, 4), (64, "4"), (64, True), (True, 1), (64, 4, True)],
    ids=str,
)
def test_module_refuses_sizes_that_are_no_whole_numbers_from_one_on(sizes):
    with pytest.raises(
        (TypeError, ValueError), match="(d_model|num_heads|num_kv_heads) must be a whole number from 1 on, got"
    ):
        modules.FlashAttention(*sizes)


@pytest.mark.parametrize(
    "option, message",
    [
        ({"causal": "False"}, "causal must be True or False, got 'False'"),
        ({"bias": "no"}, "bias must be True or False, got 'no'"),
        ({"attention": 3}, "attention must be a function"),
    ],
    ids=str,
)
def test_module_refuses_options_of_a_wrong_type(option, message):
    with pytest.raises(TypeError, match=message):
        modules.FlashAttention(64, 4, **option)


@pytest.mark.parametrize(
    "x, message",
    [
        (None, "x must be a torch tensor, got NoneType"),
        (np.ones((1, 3, 64), np.float32), "x must be a torch tensor, got ndarray"),
        (torch.ones(1, 3, 64).to_sparse(), "x must be a dense tensor, got torch.sparse_coo"),
        (torch.ones(1, 3, 64, dtype=torch.int64), "x must have a floating-point dtype, got torch.int64"),
    ],
    ids=["None", "numpy", "sparse", "int64"],
)
def test_module_refuses_an_input_that_is_no_dense_floating_point_tensor(x, message):
    with pytest.raises(TypeError, match=message):
        modules.FlashAttention(64, 4)(x)


@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 5, 63), (1, 2, 5, 64)], ids=str)
def test_module_refuses_an_input_of_other_dimensions(shape):
    module = modules.FlashAttention(64, 4, device=DEVICE)
    with pytest.raises(ValueError, match=r"x must have the dimensions \[B, N, 64\], got"):
        module(randn(*shape))
