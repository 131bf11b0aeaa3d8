"""The merge kernel equals the merge in torch; the gradients of parts of the keys add up to those of all keys."""

import math

import pytest
import torch

from flashlab.distributed.compute import merge
from flashlab.distributed.kernel_gradients import KernelGradients
from flashlab.kernels import flash_attention, shared_prefix
from flashlab.kernels.merge import merge_into
from flashlab.machine.ranks import Block
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain


@pytest.mark.parametrize("before, after", [("float32", "float32"), ("float16", "float32"), ("float32", "float16")])
@pytest.mark.parametrize("first, rows, n, dv", [(0, 21, 21, 16), (5, 16, 21, 24), (20, 1, 21, 5)])
def test_merge_equals_torch(first, rows, n, dv, before, after):
    """In place, or from one dtype into another: then rows outside the block are copied."""
    before, after = getattr(torch, before), getattr(torch, after)
    O, lse, part = randn(2, 3, n, dv, dtype=before), randn(2, 3, n, seed=1) * 9, slice(first, first + rows)
    O_b, lse_b = randn(2, 3, rows, dv, dtype=torch.float16, seed=2), randn(2, 3, rows, seed=3) * 9
    lse[:, 0, part], lse_b[:, 1], lse_b[:, 0, -1] = -math.inf, -math.inf, -math.inf
    O[:, 0, part], O_b[:, 1], O_b[:, 0, -1] = 0, 0, 0
    expected = O.float().clone(), lse.clone()
    expected[0][:, :, part], expected[1][:, :, part] = merge(*(x[:, :, part] for x in expected), O_b, lse_b)
    result = merge_into(O, lse, O_b, lse_b, first, after)
    assert result.dtype == after and (result is O) == (before == after)
    rounding = {} if after == torch.float32 else {"rtol": 2**-10, "atol": 2**-24}
    torch.testing.assert_close(result.float(), expected[0], **rounding)
    torch.testing.assert_close(lse, expected[1])


def test_gradients_of_parts_add_up_to_those_of_the_whole():
    """Early keys meet all queries, late keys the late ones; O and lse are those of all keys."""
    q, k, v, dO = (randn(1, heads, 40, 16, seed=seed) for seed, heads in enumerate((4, 2, 2, 4)))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    O, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    exact = torch.autograd.grad(O, (q, k, v), dO)
    with torch.no_grad():
        shares = KernelGradients(dO, q, O, lse, 0.25)
        early = shares.of_block(k[:, :, :16], v[:, :, :16], Block((0, 40), (0, 16), None, 24))
        late = shares.of_block(k[:, :, 16:], v[:, :, 16:], Block((16, 40), (16, 40), None, 0))
    ours = shares.finish(), *(torch.cat(pair, 2) for pair in zip(early, late, strict=True))
    for x, y in zip(ours, exact, strict=True):
        assert_as_exact_as_plain(x, y, y.double(), roundings=4)


STATE = {"O": randn(1, 2, 8, 16), "lse": randn(1, 2, 8)}
WRONG = {
    "a list": {"O": [1.0]},
    "three dimensions": {"O": randn(2, 8, 16)},
    "another length": {"lse": randn(1, 2, 7)},
    "lse in half precision": {"lse": randn(1, 2, 8).half()},
    "strides": {"O": randn(1, 8, 2, 16).transpose(1, 2)},
}


@pytest.mark.parametrize("wrong", [
    *WRONG.values(), {"O_b": randn(1, 2, 4, 8)}, {"O_b": randn(1, 1, 4, 16)},
    {"lse_b": randn(1, 2, 3)}, {"O_b": randn(1, 2, 9, 16), "lse_b": randn(1, 2, 9)},
    {"first": 5}, {"first": -1}, {"first": "0"}, {"dtype": "half"},
])  # fmt: skip
def test_what_cannot_be_merged_is_refused(wrong):
    right = {"O_b": randn(1, 2, 4, 16), "lse_b": randn(1, 2, 4), "first": 0, "dtype": torch.float32}
    with pytest.raises((TypeError, ValueError), match="got"):
        merge_into(**STATE | right | wrong)


@pytest.mark.parametrize("wrong", [
    *WRONG.values(), {"O": randn(1, 2, 8, 16).half()}, {"O_p": randn(1, 2, 7, 16)}, {"lse_p": randn(1, 2, 7)},
    {"O_p": randn(1, 3, 8, 16)}, {"texts": [0]}, {"texts": torch.tensor([0])},
    {"texts": torch.tensor([1], dtype=torch.int32)},
])  # fmt: skip
def test_a_prefix_that_cannot_be_merged_is_refused(wrong):
    right = {"O_p": randn(1, 2, 8, 16), "lse_p": randn(1, 2, 8)}
    with pytest.raises((TypeError, ValueError), match="got"):
        shared_prefix.merge(**STATE | right | wrong)
