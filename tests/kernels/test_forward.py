"""The second rung computes what the first one does; and what is too long for a grid comes in parts."""

import pytest
import torch

from flashlab.kernels import DEVICE, INTERPRETED, attention, flash_attention
from flashlab.kernels.configurations import Configuration


def inputs(B, H, Hk, Nq, Nk, d, dv=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, d if dv is None else dv)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


@pytest.mark.skipif(not INTERPRETED, reason="compiled, it is for float16 and bfloat16 on compute capability 9.0")
@pytest.mark.parametrize("shape", [(1, 2, 1, 64, 64, 32), (1, 2, 2, 70, 45, 16, 24), (1, 1, 1, 33, 90, 16)])
@pytest.mark.parametrize("causal", [False, True])
def test_specialized_equals_plain(shape, causal, monkeypatch):
    q, k, v = inputs(*shape)
    O, lse = flash_attention(q, k, v, causal=causal, return_lse=True)
    monkeypatch.setattr(attention, "configuration", lambda *_, **__: Configuration(32, 32, 4, 1, specialized=True))
    O2, lse2 = flash_attention(q, k, v, causal=causal, return_lse=True)
    assert ((O2 - O).abs() <= 1e-6 * O.abs().max()).all() and torch.equal(O2 == 0, O == 0)
    assert torch.allclose(lse2, lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dim, Hk", [(0, 3), (1, 6), (1, 3)])
def test_parts_equal_the_whole(dim, Hk, monkeypatch):
    tensors = [x.requires_grad_() for x in inputs(7, 6, Hk, 9, 12, 16)]

    def run():
        O, lse = flash_attention(*tensors, causal=True, return_lse=True)
        return O, lse, *torch.autograd.grad((O**2).sum() + lse.sum(), tensors)

    whole = run()
    monkeypatch.setattr(attention, "LONGEST", 6 if dim == 0 else 5)  # 7 batches; or 6 heads, in groups of 1 or 2
    for part, expected in zip(run(), whole, strict=True):
        assert torch.equal(part, expected)


def test_gradients_have_no_derivative_of_their_own():
    q, k, v = (x.requires_grad_() for x in inputs(1, 1, 1, 4, 4, 16))
    (dQ,) = torch.autograd.grad((flash_attention(q, k, v) ** 2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dQ.sum().backward()
