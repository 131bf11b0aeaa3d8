"""Tensors in 8 bits, and the reference's attention on the same codes."""

import numpy as np
import torch

from flashlab.kernels.float8 import quantise
from flashlab.reference import eight_bits


def in_eight_bits(q, k, v, signs=None):
    """Return q, k and v as ``Quantised``. signs: those of a rotation of q and k."""
    return quantise(q, signs=signs), quantise(k, signs=signs), quantise(v, per="head", transposed=True)


def per_row(x):
    """Return the scale of each row of a ``Quantised``, [B, H, N, 1], in float64."""
    block = torch.arange(x.codes.shape[2], device=x.codes.device) // 128
    return x.scale.double()[:, :, block.clamp(max=x.scale.shape[2] - 1), None]


def widened(x):
    """Return the numbers that the codes of a ``Quantised`` stand for, in float64."""
    return x.codes.double() * per_row(x)


def in_exact_arithmetic(eight, mask=None, scale=None, Bc=64):
    """Return O and lse of the reference on the same codes, in float64.

    Bc: keys of a tile. The maximum so far decides how weights are rounded, so tiles of other sizes round differently.
    """
    numbers, rows = zip(*((x.codes.cpu().double().numpy(), per_row(x).cpu().numpy()) for x in eight), strict=True)
    (B, H, Nq, _), group = numbers[0].shape, numbers[0].shape[1] // numbers[1].shape[1]
    O, lse = np.empty((B, H, Nq, numbers[2].shape[3])), np.empty((B, H, Nq))
    for b, h in np.ndindex(B, H):
        heads = zip(numbers, rows, (h, h // group, h // group), strict=True)
        three = [eight_bits.Quantised(x[b, at], s[b, at]) for x, s, at in heads]
        O[b, h], lse[b, h] = eight_bits.attention(*three, mask=mask, scale=scale, Bc=Bc)
    return torch.tensor(O, device=eight[0].codes.device), torch.tensor(lse, device=eight[0].codes.device)


def error(x, exact):
    """Return the relative error of x as a whole."""
    return ((x.double() - exact).norm() / exact.norm()).item()
