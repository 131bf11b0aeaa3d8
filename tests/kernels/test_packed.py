"""Packed texts have the results that each text has alone: O, lse and every gradient."""

import math
import re

import pytest
import torch

from flashlab.kernels import DEVICE, flash_attention, flash_attention_packed, masks, scores
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long, long_except

H, Hk, d = 4, 2, 16
LENGTHS_Q, LENGTHS_K = [20, 0, 1, 40, 9], [20, 3, 34, 21, 9]


def offsets(lengths):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0)


SLOPES, BIAS = randn(H, seed=7).abs() / 16, randn(5, H, 1, 34, seed=8)
EACH = randn(5, H, seed=9).abs() / 16
LENGTHS = torch.tensor([15, 2, 34, 13, 5], device=DEVICE)
CASES = {  # options for all texts, tensors with gradients, and options for text t alone
    "full": (lambda: {}, [], lambda t: {}),
    "causal": (lambda: {"causal": True}, [], lambda t: {"causal": True}),
    "window": (lambda: {"mask": masks.window(9, 3)}, [], lambda t: {"mask": masks.window(9, 3)}),
    "sinks and a window": (
        lambda: {"mask": (masks.sinks(3) | masks.window(9)) & masks.causal()}, [],
        lambda t: {"mask": (masks.sinks(3) | masks.window(9)) & masks.causal()},
    ),
    "padding": (lambda: {"mask": masks.padding(LENGTHS)}, [], lambda t: {"mask": masks.padding(LENGTHS[t : t + 1])}),
    "scores": (
        lambda x, y: {"causal": True, "score": (scores.alibi(x), scores.bias(y), scores.softcap(2))}, [SLOPES, BIAS],
        lambda t, x, y: {
            "causal": True,
            "score": (scores.alibi(x), scores.bias(y[t : t + 1, ..., : LENGTHS_K[t]]), scores.softcap(2)),
        },
    ),
    "slopes of each text": (
        lambda x: {"score": scores.alibi(x)}, [EACH], lambda t, x: {"score": scores.alibi(x[t : t + 1])},
    ),
    "sinks": (lambda x: {"sinks": x}, [randn(H)], lambda t, x: {"sinks": x}),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    long_except(["sinks and a window"], CASES),
)
@pytest.mark.parametrize("lengths_q", [LENGTHS_Q, long(LENGTHS_K)])
def test_packed_texts_equal_texts_alone(name, lengths_q):
    together, learned, alone = CASES[name]
    starts_q, starts_k = offsets(lengths_q), offsets(LENGTHS_K)
    leaves = [randn(sum(lengths_q), H, d), randn(sum(LENGTHS_K), Hk, d, seed=1), randn(sum(LENGTHS_K), Hk, d, seed=2)]
    dO, dlse = randn(sum(lengths_q), H, d, seed=3), randn(H, sum(lengths_q), seed=4)

    def packed(q, k, v, *others):
        same = {} if lengths_q is LENGTHS_K else {"offsets_k": starts_k}
        return flash_attention_packed(q, k, v, offsets_q=starts_q, **same, return_lse=True, **together(*others))

    def one_by_one(q, k, v, *others):
        results = [
            flash_attention(
                *(x.transpose(0, 1)[None] for x in (q[a:b], k[c:e], v[c:e])), return_lse=True, **alone(t, *others)
            )
            for t, (a, b, c, e) in enumerate(zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False))
        ]  # fmt: skip
        return torch.cat([O[0].transpose(0, 1) for O, _ in results]), torch.cat([lse[0] for _, lse in results], 1)

    outcomes = []
    for attention in (packed, one_by_one):
        tensors = [x.clone().requires_grad_() for x in (*leaves, *learned)]
        O, lse = attention(*tensors)
        seen = lse.isfinite()
        outcomes.append([O, lse, *torch.autograd.grad((O * dO).sum() + (lse[seen] * dlse[seen]).sum(), tensors)])
    for ours, theirs in zip(*outcomes, strict=True):
        assert_as_exact_as_plain(ours, theirs, theirs.double(), roundings=16)


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


@pytest.mark.parametrize("name", ["q", "k", "v", "dO"])
@pytest.mark.parametrize("value", [math.nan, long(math.inf), long(-math.inf)], ids=str)
def test_a_text_does_not_reach_its_neighbours(name, value):
    """NaN and infinities change only their own text, and the gradient of its bias."""
    ends, own = offsets([10, 12, 8]), slice(10, 22)
    bias = randn(3, H, 12, 12, seed=5)
    heads = {"q": H, "k": Hk, "v": Hk, "dO": H}
    tensors = {key: randn(30, heads[key], d, seed=seed) for seed, key in enumerate(heads)}

    def results(tensors):
        *leaves, added = (x.clone().requires_grad_() for x in (*map(tensors.get, "qkv"), bias))
        score = scores.bias(added), scores.softcap(2)
        O, lse = flash_attention_packed(*leaves, offsets_q=ends, causal=True, score=score, return_lse=True)
        dQ, dK, dV, dB = torch.autograd.grad(O, [*leaves, added], tensors["dO"])
        return O, lse.T, dQ, dK, dV, dB.repeat_interleave(torch.tensor([10, 12, 8], device=DEVICE), 0)

    before = results(tensors)
    tensors[name][15, 1] = value
    after = results(tensors)
    assert any(x[own].isnan().any() for x in after)
    for one, other in zip(before, after, strict=True):
        for part in (slice(0, 10), slice(22, 30)):
            torch.testing.assert_close(other[part], one[part])


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
