"""What all kernels refuse: NaN, values beyond their range, arithmetic of masks. Messages name the argument."""

import math

import pytest
import torch

from flashlab.kernels import DEVICE, INTERPRETED, count, flash_attention, flash_attention_packed, float8, masks, scores
from flashlab.kernels.decode import PagedCache, decode
from flashlab.kernels.merge import merge_into
from flashlab.kernels.shared_prefix import decode_shared, merge
from tests.tools.refused import assert_refused

Q, K, V = torch.randn(3, 1, 2, 5, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
HEADS = [x[0].transpose(0, 1) for x in (Q, K, V)]  # [N, H, d]
CALLS = {
    "flash_attention": lambda **options: flash_attention(Q, K, V, **options),
    "packed": lambda **options: flash_attention_packed(
        *HEADS, offsets_q=torch.tensor([0, 2, 5], device=DEVICE), **options
    ),
    "decode": lambda **options: decode(Q[:, :, :2], (K, V), **options),
}
NUMBERS = {  # message, option made of a tensor of two numbers, numbers that are refused, numbers that are accepted
    "sinks": ("sinks must be finite", lambda x: {"sinks": x}, (math.nan, math.inf), (-math.inf, -3e38)),
    "slopes": ("slopes must be finite", lambda x: {"score": scores.alibi(x)}, (math.nan, -math.inf, 2e36), (-1e36, 0)),
    "bias": (
        "a bias must hold finite",
        lambda x: {"score": scores.bias(x[:, None, None])},
        (math.nan, math.inf),
        (-math.inf, 3e38),
    ),
}


@pytest.mark.skipif(not INTERPRETED, reason="values are not checked on a GPU")
@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("attend", CALLS.values(), ids=CALLS)
def test_only_valid_sinks_slopes_and_biases_are_accepted(attend, option):
    sentence, options, refused, accepted = NUMBERS[option]
    for x in accepted:
        assert attend(**options(torch.tensor([x, 0.0]))).isfinite().all()
    for x in refused:
        with pytest.raises(ValueError, match=f"^{sentence} .*, got {x:g}$".replace("+", r"\+")):
            attend(**options(torch.tensor([0.0, x])))


@pytest.mark.skipif(not INTERPRETED, reason="values are not checked on a GPU")
def test_a_learned_sink_that_becomes_nan_is_refused_by_a_cached_plan():
    sinks = torch.nn.Parameter(torch.zeros(2))
    for _ in range(2):
        flash_attention(Q, K, V, sinks=sinks)
    sinks.data[1] = math.nan
    with pytest.raises(ValueError, match="sinks must be finite numbers of float32, or -inf, got nan"):
        flash_attention(Q, K, V, sinks=sinks)


def test_a_sink_of_minus_infinity_is_like_no_sink():
    none = torch.full((2,), -math.inf, device=DEVICE)
    torch.testing.assert_close(flash_attention(Q, K, V, sinks=none), flash_attention(Q, K, V), rtol=1e-6, atol=1e-6)


COMBINED = {
    "mask + mask": lambda mask: mask + mask, "mask + tuple": lambda mask: mask + (1,), "sum": lambda mask: sum([mask]),
    "tuple + mask": lambda mask: (1,) + mask, "2 * mask": lambda mask: 2 * mask, "mask * 2": lambda mask: mask * 2,
    "mask - mask": lambda mask: mask - mask, "mask ^ mask": lambda mask: mask ^ mask, "~mask": lambda mask: ~mask,
    "mask < mask": lambda mask: mask < mask, "max": lambda mask: max([mask, mask]),
}  # fmt: skip


@pytest.mark.parametrize(
    "mask",
    [masks.window(3), masks.causal(), masks.prefix(3), scores.softcap(2)],
    ids=["window", "causal", "prefix", "softcap"],
)
@pytest.mark.parametrize("combined", COMBINED.values(), ids=COMBINED)
def test_masks_and_scores_are_neither_numbers_nor_tuples(combined, mask):
    with pytest.raises(TypeError, match="objects have no arithmetic and no order: combine"):
        combined(mask)


O, LSE = torch.zeros(1, 2, 4, 16, device=DEVICE), torch.zeros(1, 2, 4, device=DEVICE)
NAMED = {
    "got Tensor torch.float32 [1, 2, 5, 16]; of a PagedCache, pass cache.view(texts)": lambda: decode(Q[:, :, :2], K),
    "q must be a torch tensor, got NoneType": lambda: decode(None, (K, V)),
    "return_lse must be True or False, got 1": lambda: decode_shared(Q, [], (K, V), return_lse=1),
    "expected q [Tq, H, d], k [Tk, Hk, d] and v [Tk, Hk, dv] with H a multiple of Hk, got [5, 2, 16], [5, 2, 16] and "
    "[3, 2, 16]": lambda: flash_attention_packed(*HEADS[:2], HEADS[2][:3], offsets_q=torch.tensor([0, 5])),
    "offsets_q and offsets_k must have the same number of texts, got 1 and 2": lambda: flash_attention_packed(
        *HEADS, offsets_q=torch.tensor([0, 5]), offsets_k=torch.tensor([0, 2, 5])
    ),
    "O_p must hold floating-point numbers, got torch.int32": lambda: merge(O, LSE, O.int(), LSE),
    "lse_p must hold floating-point numbers, got torch.int32": lambda: merge(O, LSE, O, LSE.int()),
    "the texts of a prefix must be int32 [R], got torch.int32 []": lambda: merge(
        O, LSE, O, LSE, torch.tensor(0, dtype=torch.int32)
    ),
    "O_b must hold floating-point numbers, got torch.int32": lambda: merge_into(O, LSE, O.int(), LSE, 0, O.dtype),
    "and all tensors must be on one such device": lambda: merge_into(O, LSE, O.to("meta"), LSE, 0, O.dtype),
    "dtype must be a floating-point torch.dtype, got torch.int32": lambda: merge_into(O, LSE, O, LSE, 0, torch.int32),
    "fixed_split must be a multiple of 128 up to 536870912, or None, got 11805916207": lambda: decode(
        Q, (K, V), fixed_split=2**70
    ),
    "Br must be a whole number from 1 to 536870912, got 11805916207": lambda: masks.blocks(Q[0, 0] > 0, 2**70, 8),
    "d must be a whole number from 1 on, got 0": lambda: float8.random_signs(0, 1),
    "seed must be a whole number from 0 to 18446744073709551615, got -1": lambda: float8.random_signs(16, -1),
    'such as "cpu" or "cuda:0", got \'gpu\'': lambda: float8.random_signs(16, 1, "gpu"),
    "function must be one at the top level of a module, got None": lambda: count.count(None),
    "mask must be None or a mask of flashlab.kernels.masks, such as causal(), or dense(seen) for a boolean tensor, got "
    "Tensor torch.bool [5, 5]": lambda: flash_attention(Q, K, V, mask=torch.ones(5, 5, dtype=torch.bool)),
    "such as softcap(30), or bias(added) for a tensor to add, or a tuple of these, got Tensor torch.float32 [5, 5]":
        lambda: flash_attention(Q, K, V, score=torch.ones(5, 5)),
}  # fmt: skip


@pytest.mark.parametrize("sentence", NAMED)
def test_a_message_names_the_argument_and_what_was_passed(sentence):
    assert_refused(NAMED[sentence], sentence)


SPARSE = {
    "sinks must be a dense tensor": lambda: flash_attention(Q, K, V, sinks=torch.ones(2, device=DEVICE).to_sparse()),
    "slopes must be a dense tensor": lambda: scores.alibi(torch.ones(2).to_sparse()),
    "a bias must be a dense tensor": lambda: scores.bias(torch.ones(5, 5).to_sparse()),
    "the tensor of masks.dense or masks.blocks must be a dense tensor": lambda: masks.dense(
        torch.eye(5).bool().to_sparse()
    ),
    "ids must be a dense tensor": lambda: masks.documents(torch.ones(5, dtype=torch.int32).to_sparse()),
    "offsets must be a dense tensor": lambda: masks.documents(offsets=torch.ones(5, dtype=torch.int32).to_sparse()),
    "lengths must be a dense tensor": lambda: masks.padding(torch.ones(1, dtype=torch.int32).to_sparse()),
    "an argument of a function in Triton must be a dense tensor": lambda: scores.custom(
        scores.capped, torch.ones(5).to_sparse()
    ),
}


@pytest.mark.parametrize("sentence", SPARSE)
def test_sparse_tensors_are_refused(sentence):
    with pytest.raises(TypeError, match=f"^{sentence}, got torch.sparse_coo$"):
        SPARSE[sentence]()


def test_a_view_shows_other_keys_after_its_text_is_dropped():
    cache = PagedCache(1, 4, 1, 16, dtype=torch.float32)
    first = cache.add()
    cache.append([first], Q[:, :1, :4], Q[:, :1, :4])
    view = cache.view([first])
    cache.drop(first)
    cache.append([cache.add()], K[:, :1, :4], K[:, :1, :4])
    assert torch.equal(view.K[view.table[0]], K[:, :1, :4])
