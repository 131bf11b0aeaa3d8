"""Dropout in the kernels: whether a weight is kept is a function of the seed and of the weight's place.

The bits are those of ``reference.dropout``: a call of Philox4x32-7 draws 16 bits for each of eight weights, which one
thread of a GPU holds after a product of tiles. Here each weight has its own call; the compiler merges equal calls.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab.machine.arguments import check_whole, shown

STEPS = 2**16  # a probability is a multiple of 1 / STEPS


class Dropout(NamedTuple):
    """Weights become 0 with the probability threshold / 2^16; the others are multiplied by ``factor``."""

    threshold: int
    factor: float
    seed: torch.Tensor  # int64 [1], the 64 bits of the seed

    @property
    def kernel_args(self):
        """The kernel arguments of the dropout."""
        return self.seed, self.threshold, self.factor


def dropout(p: float, seed: int | None, device: torch.device) -> Dropout | None:
    """Return the dropout with this probability and seed; None if p is 0.

    seed: 0 to 2^64 - 1; None draws one from torch's generator of the device.

    Raises:
        TypeError, ValueError: p is no probability below 1, or would be rounded to 0 or 1; or the seed is wrong.
    """
    check_probability(p)
    if seed is not None:
        seed = check_whole("seed", seed, 0, 2**64 - 1)
    if p == 0:
        return None
    threshold = round(p * STEPS)
    if seed is None:
        bits = torch.randint(-(2**63), 2**63 - 1, (1,), device=device)
    else:
        bits = torch.tensor([seed - 2**64 if seed >= 2**63 else seed], dtype=torch.int64, device=device)
    return Dropout(threshold, STEPS / (STEPS - threshold), bits)


def check_probability(p: float, name: str = "dropout") -> None:
    """Raise TypeError or ValueError unless p is 0, or a probability below 1 that is not rounded to 0 or 1.

    name: that of the argument.
    """
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(f"{name} must be a number, got {shown(p)}")
    if not 0 <= p < 1:
        raise ValueError(f"{name} must be a probability below 1, got {p}")
    if p > 0 and not 0 < round(p * STEPS) < STEPS:
        raise ValueError(f"{name} goes in steps of 2^-16, and {p} would be rounded to {round(p)}")


@triton.jit
def drop(dropout, X, b, h, i, j):
    """Return the tile X of weights, or of their gradients, with some elements 0 and the others times the factor.

    i, j: places in the whole matrix that broadcast to X.
    """
    seed, threshold, factor = dropout
    words = tl.philox(tl.load(seed), j & ~9, i & ~8, h, b, 7)  # of eight weights
    left = tl.where((i & 8) == 0, words[0], words[2])  # 2 * bit 3 of i + bit 3 of j: which word
    right = tl.where((i & 8) == 0, words[1], words[3])
    word = tl.where((j & 8) == 0, left, right)
    high = tl.where((j & 1) == 0, word << 16, word)  # the weight's 16 bits are in front: one comparison, no shift
    # A product: the compiler would move a choice of X or 0 past the narrowing, which takes five instructions more.
    return X * tl.where(high >= tl.full([], threshold, tl.uint32) << 16, factor, 0.0)
