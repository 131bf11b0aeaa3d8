"""Offsets and dropout of packed texts. ``drawn_cases`` compares their results with those of each text alone."""

import re

import pytest
import torch

from flashlab.kernels import DEVICE, flash_attention, flash_attention_packed
from tests.kernels.inputs import randn

H, Hk, d = 4, 2, 16


def offsets(lengths):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0)


def test_equal_texts_drop_different_weights_and_a_seed_repeats():
    q, k, v = randn(40, H, d), randn(40, Hk, d, seed=1), randn(40, Hk, d, seed=2)
    twice = [torch.cat([x, x]) for x in (q, k, v)]
    options = {"offsets_q": offsets([40, 40]), "dropout": 0.5, "seed": 3}
    O = flash_attention_packed(*twice, **options)
    first = flash_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), dropout=0.5, seed=3)
    torch.testing.assert_close(O[:40], first[0].transpose(0, 1))
    assert not torch.equal(O[:40], O[40:]) and torch.equal(O, flash_attention_packed(*twice, **options))


def test_offsets_that_change_are_read_again():
    q, k, v = randn(20, H, d), randn(20, Hk, d, seed=1), randn(20, Hk, d, seed=2)
    starts = offsets([5, 15])
    before = flash_attention_packed(q, k, v, offsets_q=starts)
    starts[1] = 10
    after = flash_attention_packed(q, k, v, offsets_q=starts)
    assert not torch.equal(before, after)
    assert torch.equal(after, flash_attention_packed(q, k, v, offsets_q=offsets([10, 10])))


BAD = [
    (ValueError, "q must be a tensor [tokens, heads, width]", lambda q: (q[None], q, q), [3]),
    (TypeError, "offsets_q must be a tensor of integers", lambda q: (q, q, q), torch.tensor([3.0])),
    (ValueError, "offsets_q must begin with 0 and not decrease", lambda q: (q, q, q), [4, -1]),
    (ValueError, "and not decrease, got [1, 3]", lambda q: (q, q, q), torch.tensor([1, 3])),
    (TypeError, "got torch.uint64", lambda q: (q, q, q), torch.tensor([0, 3]).to(torch.uint64)),
    (ValueError, "offsets_q must have values", lambda q: (q, q, q), torch.ones(2, device="meta").int()),
    (ValueError, "offsets_q must end at 3, the number of tokens in q, got 2", lambda q: (q, q, q), [2]),
    (
        ValueError,
        "offsets_q and offsets_k must have the same number of texts, got 1 and 2",
        lambda q: (q, q, q),
        ([3], [1, 2]),
    ),
]


@pytest.mark.parametrize("error, message, tensors, lengths", BAD, ids=[message for _, message, *_ in BAD])
def test_bad_input_gets_a_sentence(error, message, tensors, lengths):
    both = lengths if isinstance(lengths, tuple) else (lengths,)
    starts = [offsets(x) if isinstance(x, list) else x for x in both]
    with pytest.raises(error, match=re.escape(message)):
        flash_attention_packed(*tensors(randn(3, H, d)), **dict(zip(("offsets_q", "offsets_k"), starts, strict=False)))


def test_an_unknown_option_gets_a_sentence():
    q = randn(3, H, d)
    with pytest.raises(TypeError, match="flash_attention_packed.. got an unexpected keyword argument 'casual'"):
        flash_attention_packed(q, q, q, offsets_q=offsets([3]), casual=True)
