"""With batch_invariant=True, a text's results have the same bits alone and in every batch; without it, not always."""

import math

import pytest
import torch

from flashlab.kernels import DEVICE, configurations, flash_attention, flash_attention_packed, masks, scores
from flashlab.kernels.configurations import Card
from flashlab.kernels.packed import OWN
from flashlab.kernels.problem import Problem
from flashlab.kernels.tables import MEASURED, ON_HOPPER, UNMEASURED

H200 = Card((9, 0), 227 * 1024, 132)
ON_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
MOST = 3000 if ON_GPU else 90  # the most tokens of a text
DRAWS = [range(4), *(pytest.param(range(n, n + 28), marks=pytest.mark.exhaustive) for n in range(4, 200, 28))]


def text(generator, tokens, d):
    """Return q [tokens, 4, d], k and v [tokens, 2, d]."""
    return [torch.randn(tokens, heads, d, generator=generator).to(DEVICE, DTYPE) for heads in (4, 2, 2)]


def drawn(seed):
    """Return a text, other texts, its place among them, and the options of a call."""
    generator = torch.Generator().manual_seed(seed)

    def number(most):
        return int(torch.randint(most, (), generator=generator))

    d = 8 * (1 + number(16 if ON_GPU else 3))
    sizes = [number(MOST) for _ in range(1 + number(4))]
    own, *others = (text(generator, n, d) for n in (1 + number(MOST), *sizes))
    mask = (None, masks.causal(), masks.window(number(50)), masks.window(7, 5))[number(4)]
    score = scores.softcap(5.0) if number(2) else None
    sinks = torch.tensor([0.3, -2.0, 4.0, -math.inf], device=DEVICE) if number(2) else None
    return own, others, number(len(others) + 1), {"mask": mask, "score": score, "sinks": sinks, "return_lse": True}


def packed(texts, **options):
    """Return O [tokens, H, d] and lse [H, tokens] of each of these texts, in one packed call."""
    ends = torch.tensor([0, *(len(q) for q, _, _ in texts)]).cumsum(0)
    rows = (torch.cat(x) for x in zip(*texts, strict=True))
    O, lse = flash_attention_packed(*rows, offsets_q=ends.int().to(DEVICE), **options)
    return [(O[a:b], lse[:, a:b]) for a, b in zip(ends.tolist(), ends[1:].tolist(), strict=False)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("seeds", DRAWS)
def test_a_text_has_the_same_bits_in_every_packed_call(seeds):
    for seed in seeds:
        own, others, place, options = drawn(seed)
        (alone,) = packed([own], batch_invariant=True, **options)
        batch = packed([*others[:place], own, *others[place:]], batch_invariant=True, **options)
        assert same(alone, batch[place]), seed


@pytest.mark.parametrize("seeds", DRAWS)
def test_a_text_has_the_same_bits_in_every_batch(seeds):
    for seed in seeds:
        own, _, place, options = drawn(seed)
        rows = [x.transpose(0, 1)[None] for x in own]  # [1, heads, tokens, d] each
        alone = flash_attention(*rows, batch_invariant=True, **options)
        batch = [torch.cat([torch.flip(x, (2,))] * place + [x, x * 2]) for x in rows]
        together = flash_attention(*batch, batch_invariant=True, **options)
        assert same(alone, (x[place : place + 1] for x in together)), seed


def test_without_batch_invariance_the_neighbours_change_bits():
    own, others, _, _ = drawn(3)
    options = {"causal": True, "return_lse": True}
    (alone,) = packed([own], **options)
    assert not same(alone, packed([*others, own], **options)[-1])


def test_results_and_gradients_are_those_without_batch_invariance():
    own, others, _, options = drawn(5)
    texts = [[x[:70].detach().requires_grad_() for x in one] for one in (own, *others[:2])]
    both = []
    for invariant in (False, True):
        results = packed(texts, batch_invariant=invariant, **options)
        total = sum((O * O).sum() + lse[lse > -math.inf].sum() for O, lse in results)
        leaves = [x for one in texts for x in one]
        both.append([*(x for pair in results for x in pair), *torch.autograd.grad(total, leaves)])
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if ON_GPU else 1e-4, atol=2e-2 if ON_GPU else 1e-4)


def kinds():
    """Yield functions from the batch size to a problem: for each width of heads, mask, and number of tokens."""
    for d in (40, 64, 72, 96, 128, 192, 256):
        for mask in (masks.full(), masks.causal(), masks.window(100)):
            for N in (1, 128, 512, 4096):
                sizes = 8, 2, N, N, d, d, torch.bfloat16, torch.device("cpu"), mask, 1.0, "tf32"
                yield lambda B, sizes=sizes, **options: Problem(B, *sizes, **options)


def launches(monkeypatch, problem):
    monkeypatch.setattr(configurations, "card", lambda device: H200)
    return configurations.choose("forward", problem)[:2]


def test_the_launch_depends_on_the_batch_only_without_batch_invariance(monkeypatch):
    batches = 1, 2, 7, 64, 1000
    invariant = [{str(launches(monkeypatch, of(B, batch_invariant=True))) for B in batches} for of in kinds()]
    plain = [{str(launches(monkeypatch, of(B))) for B in batches} for of in kinds()]
    assert all(len(some) == 1 for some in invariant) and any(len(some) > 1 for some in plain)


def test_texts_of_whole_tiles_suit_every_launch():
    """OWN is a multiple of the sides of all tiles that a call with a rule as its mask may have."""
    rows = [row for table in (*MEASURED, UNMEASURED, ON_HOPPER) for row in table.rows if row.kernel == "forward"]
    for row in rows:
        if row.causal is not False and (row.extras is None or "rule" in row.extras):
            assert OWN % row.Br == OWN % row.Bc == 0, row


@pytest.mark.parametrize(
    "options, words",
    [
        ({"dropout": 0.1, "seed": 1}, "no dropout"),
        ({"kernel": "decode"}, "fixed_split"),
        ({"mask": masks.prefix(3)}, "windows"),
    ],
)
def test_what_would_depend_on_the_batch_is_refused(options, words):
    (own, *_) = drawn(0)
    with pytest.raises(ValueError, match=words):
        if "mask" in options:
            packed([own], batch_invariant=True, return_lse=True, **options)
        else:
            flash_attention(*(x.transpose(0, 1)[None] for x in own), batch_invariant=True, **options)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_batch_invariant_is_a_flag(value):
    (own, *_) = drawn(0)
    with pytest.raises(TypeError, match="batch_invariant"):
        flash_attention(*(x.transpose(0, 1)[None] for x in own), batch_invariant=value)
