"""A tensor too long for a grid is computed in parts, and its gradients are computed once."""

import pytest
import torch

from flashlab.kernels import DEVICE, attention, flash_attention


def inputs(B, H, Hk, Nq, Nk, d, dv=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, d if dv is None else dv)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


@pytest.mark.parametrize(
    "dim, Hk",
    [pytest.param(0, 3, marks=pytest.mark.exhaustive), pytest.param(1, 6, marks=pytest.mark.exhaustive), (1, 3)],
)
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
