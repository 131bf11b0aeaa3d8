"""The merge kernel and the torch merge are one rule; gradients of a part of the keys add up to those of all."""

import math

import pytest
import torch

from flashlab.distributed.state import merge
from flashlab.kernels import DEVICE, flash_attention, masks
from flashlab.kernels.attention import gradients
from flashlab.kernels.merge import merge_into
from tests.tools.bounds import assert_as_exact_as_plain


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("first, rows, n, dv", [(0, 21, 21, 16), (5, 16, 21, 24), (20, 1, 21, 5)])
def test_merge_equals_torch(first, rows, n, dv):
    O, lse, part = randn(2, 3, n, dv), randn(2, 3, n, seed=1) * 9, slice(first, first + rows)
    O_b, lse_b = randn(2, 3, rows, dv, dtype=torch.float16, seed=2), randn(2, 3, rows, seed=3) * 9
    lse[:, 0, part], lse_b[:, 1], lse_b[:, 0, -1] = -math.inf, -math.inf, -math.inf
    O[:, 0, part], O_b[:, 1], O_b[:, 0, -1] = 0, 0, 0
    expected = [O.clone(), lse.clone()]
    expected[0][:, :, part], expected[1][:, :, part] = merge(O[:, :, part], lse[:, :, part], O_b, lse_b)
    merge_into(O, lse, O_b, lse_b, first)
    torch.testing.assert_close([O, lse], expected)


def test_gradients_of_parts_add_up_to_those_of_the_whole():
    """dQ of all keys is the sum over parts of them, given O and lse of all."""
    q, k, v, dO = (randn(1, 2, 40, 16, seed=seed) for seed in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    O, lse = flash_attention(q, k, v, return_lse=True)
    exact = torch.autograd.grad(O, (q, k, v), dO)
    with torch.no_grad():
        halves = [
            gradients(dO, q, k[:, :, part], v[:, :, part], O, lse, mask=masks.full(), scale=0.25)
            for part in (slice(0, 16), slice(16, 40))
        ]
    ours = halves[0][0] + halves[1][0], *(torch.cat(pair, 2) for pair in list(zip(*halves, strict=True))[1:])
    for x, y in zip(ours, exact, strict=True):
        assert_as_exact_as_plain(x, y, y.double(), roundings=4)
