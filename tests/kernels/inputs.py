"""Random inputs for tests of kernels: equal ones for equal seeds."""

import functools

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
