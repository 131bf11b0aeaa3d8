"""Dropout that remembers nothing: whether a weight is kept is a function of the seed and of the weight's place.

The random number of weight (i, j) is word 0 of Philox4x32-10 with counter (j, i, 0, 0) and the seed as its key. Any
tile of the mask can be made at any time, in any order, by anyone who knows the seed, so nobody has to store it.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; FlashAttention, Algorithms 2 and 4, which
save the generator's state for the same purpose.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dropout:
    """Weights become 0 with probability ``p``; the others are divided by 1 - p. ``seed``: 0 to 2^64 - 1."""

    p: float
    seed: int

    def __post_init__(self):
        if not 0 <= self.p < 1:
            raise ValueError(f"dropout must be a probability below 1, got p = {self.p}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"a seed is a number from 0 to 2^64 - 1, got {self.seed}")

    def tile(self, rows, cols, dtype=np.float32):
        """Return the factors Z_ij [Br, Bc] of the weights in these slices of the whole matrix: 0 or 1 / (1 - p)."""
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
        random = philox((j, i, 0, 0), (self.seed & 0xFFFFFFFF, self.seed >> 32))[0]  # [Br, Bc]
        return np.where(random >= round(self.p * 2**32), dtype(1 / (1 - self.p)), dtype(0))


def philox(counter, key):
    """Return four random words of 32 bits (Philox4x32-10), as uint64, from a counter of four words and a key of two.

    The words of the counter may be arrays that broadcast against each other.
    """
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0), second & low
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1), first & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
