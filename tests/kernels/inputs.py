"""Random inputs for tests of kernels: equal ones for equal seeds, in any layout in memory."""

import functools
import math

import torch

from flashlab.kernels import DEVICE


def randn(*shape, dtype=torch.float32, seed=0):
    """Return normal random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def qkv(B, H, Hk, Nq, Nk, d, dv=None, dtype=torch.float32):
    """Return q [B, H, Nq, d], k [B, Hk, Nk, d] and v [B, Hk, Nk, dv]. Without dv, v has d columns, too."""
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, d if dv is None else dv)
    return [randn(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]


in_bfloat16 = functools.partial(qkv, dtype=torch.bfloat16)


def laid_out(x, layout):
    """Return x in another layout, with NaN around it, or 1 around integers. Only "expanded" changes its numbers."""
    filler = math.nan if x.is_floating_point() else 1
    if x.dim() == 0:
        return x
    if layout == "transposed" and x.dim() < 3:
        return x.mT.contiguous().mT if x.dim() == 2 else x
    if layout == "transposed":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout in ("sliced", "columns"):
        step = 2 if layout == "columns" else 1
        around = x.new_full([*(size + 2 for size in x.shape[:-1]), step * x.shape[-1] + 16], filler)
        inside = around[tuple(slice(1, -1) for _ in x.shape[:-1])][..., 8 : 8 + step * x.shape[-1] : step]
        return inside.copy_(x)
    if layout == "rows":
        return torch.stack([x, torch.full_like(x, filler)], -2).flatten(-3, -2)[..., ::2, :]
    if layout == "offset":
        return x.new_full([x.numel() + 1], filler)[1:].view(x.shape).copy_(x)
    if layout == "expanded" and x.dim() == 4 and x.numel():
        return x[:1, :1].expand_as(x)
    return x
