"""Only -inf hides a key: every finite float32 number is a score, in all kernels and both passes.

Scores near 1e30 are equal or far apart, because float32 rounds the sum of a score and a bias. The references round it
in the same way, also in float64.
"""

import math

import pytest
import torch

from flashlab.kernels import DEVICE, flash_attention, masks, scores
from flashlab.kernels.decode import decode
from flashlab.kernels.shared_prefix import Prefix, decode_shared
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long_except

LEAST, MOST = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
NUMBERS = long_except((LEAST, MOST), [LEAST, -2.5e38, -1e30, -1e9, 1e9, 2.5e38, MOST])
B, H, N, d = 1, 2, 70, 16


def written_out(q, k, v, added, scale=1.0, sinks=None):
    """Return O and lse of the scores scale * Q K^T + ``added``. Sums with a large ``added`` are rounded to float32."""
    wide = torch.promote_types(q.dtype, torch.float32)  # of scores
    S = (scale * (q @ k.mT)).to(wide)  # [B, H, Nq, Nk]
    rounded = (S.detach().float() + added).to(wide)  # [B, H, Nq, Nk]
    S = torch.where(added.abs() > 1e6, S + (rounded - S.detach()), S + added)
    if sinks is not None:
        S = torch.cat([S, sinks.to(wide)[None, :, None, None].expand(*S.shape[:3], 1)], 3)  # [B, H, Nq, Nk + 1]
    m = S.detach().amax(3, keepdim=True)  # [B, H, Nq, 1]
    P = torch.exp(S - m)  # as S
    l = P.sum(3, keepdim=True)  # [B, H, Nq, 1]
    P = (P / l)[..., : k.shape[2]]  # [B, H, Nq, Nk]
    return P.to(v) @ v, (m + l.log())[..., 0]


def assert_right(dtype, added, kernel, sinks=None, scale=0.25, score=None, results=5):
    """Compare the first ``results`` of O, lse, dQ, dK, dV with ``written_out``, in the same dtype and in float64."""
    x = [randn(B, H, N, d, seed=seed, dtype=dtype) for seed in range(3)]
    do = randn(B, H, N, d, seed=3, dtype=dtype)

    def of(attend, dtype):
        q, k, v = (it.to(dtype).requires_grad_() for it in x)
        o, lse = attend(q, k, v)
        return o, lse, *torch.autograd.grad(o, (q, k, v), do.to(o))

    options = {"score": scores.bias(added) if score is None else score, "sinks": sinks, "scale": scale}
    ours = of(lambda *qkv: flash_attention(*qkv, **options, return_lse=True, kernel=kernel), dtype)
    plain = of(lambda *qkv: written_out(*qkv, added, scale, sinks), dtype)
    exact = of(lambda *qkv: written_out(*qkv, added, scale, sinks), torch.float64)
    for one, other, truth in list(zip(ours, plain, exact, strict=True))[:results]:
        assert_as_exact_as_plain(one, other, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", NUMBERS)
def test_every_finite_bias_is_a_number(number, dtype, kernel):
    added = torch.full((N, N), number, device=DEVICE)
    added[3] = 0  # one row has scores of the usual size
    added[5, 4:] = -math.inf  # and one sees few keys
    assert_right(dtype, added, None)
    assert_right(dtype, added, "decode")


@pytest.mark.parametrize("number", NUMBERS)
def test_every_finite_sink_is_a_number(number, kernel):
    added = torch.zeros(N, N, device=DEVICE)
    added[0] = -math.inf  # this row sees only the sink
    sinks = torch.tensor([number, 0.5], device=DEVICE)
    for which in (None, "decode"):
        assert_right(torch.float32, added, which, sinks)
        assert_right(torch.bfloat16, added, which, sinks)


def test_finite_scores_of_other_sizes_are_ordered(kernel):
    """Keys with -2.5e38 count, and those with -3e38 do not. Large slopes and scales give such scores, too.

    With these, each query has one key of weight 1: its gradients are 0, up to rounding.
    """
    added = torch.full((N, N), -3e38, device=DEVICE)
    added[:, 7:9] = -2.5e38
    assert_right(torch.bfloat16, added, None)
    slopes = torch.tensor([1e34, 3e35], device=DEVICE)
    distance = (torch.arange(N, device=DEVICE)[:, None] - torch.arange(N, device=DEVICE)).abs()
    assert_right(torch.bfloat16, -slopes[:, None, None] * distance, None, score=scores.alibi(slopes), results=2)
    assert_right(torch.float32, torch.zeros(N, N, device=DEVICE), None, scale=2.0**120, score=(), results=2)


@pytest.mark.parametrize("number", NUMBERS)
def test_decoding_in_parts_takes_every_finite_number(number):
    """The parts have different numbers of keys. An lse near 1e30, rounded to float32, does not show their shares."""
    q, k, v = (randn(1, H, length, d, seed=seed) for seed, length in enumerate((2, 400, 400)))
    added = torch.full((2, 400), number, device=DEVICE)
    o, lse = decode(q, (k, v), score=scores.bias(added), mask=masks.full(), fixed_split=128, scale=1.0, return_lse=True)
    plain = written_out(q, k, v, added)
    exact = written_out(q.double(), k.double(), v.double(), added)
    for one, other, truth in zip((o, lse), plain, exact, strict=True):
        assert_as_exact_as_plain(one, other, truth)


def test_a_prefix_of_large_scores_merges():
    q = torch.full((1, H, 1, d), 1e18, device=DEVICE)
    k, v = torch.full((1, H, 300, d), -1e18, device=DEVICE), randn(1, H, 300, d, seed=2)
    prefix = Prefix((k[:, :, :100].contiguous(), v[:, :, :100].contiguous()))
    rest = k[:, :, 100:].contiguous(), v[:, :, 100:].contiguous()
    o = decode_shared(q, [prefix], rest, scale=1.0)
    assert torch.isfinite(o).all() and (o != 0).any()
