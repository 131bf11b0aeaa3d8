"""Dropout without a stored mask: the seed and the position of a weight decide whether the weight is kept.

The random number of weight (i, j) of head h in batch b has 16 bits. Philox4x32-7 makes them for eight weights at once:
those at the places (i, j), (i, j + 1), (i, j + 8), (i, j + 9) and the same with i + 8. The counter is the place of the
first, (j, i, h, b), the key is the seed. Bit 3 of i and bit 3 of j choose the word, bit 0 of j its lower or upper half.
Any tile of the mask can be computed from the seed at any time, in any order, so the mask is never stored.

These eight are weights that one thread of a GPU holds after a product of tiles (the accumulator of wgmma and of
mma.m16n8), wherever the tile begins at a multiple of 16. A kernel may then write this definition one weight at a time:
the compiler finds the calls that eight weights have in common. In machine code for compute capability 9.0 (Triton
3.7.1) a weight costs 9 instructions, and 13 where the tile is transposed and a thread holds four of the eight. One
call of ten rounds per weight costs 46. A product of tiles at d = 128 leaves time for about 16
instructions per weight.

With 16 bits, p goes in steps of 2^-16. The kept weights are divided by 1 - p with p as rounded, so the mean of
the factors is 1. Seven rounds are the fewest with which the source's Philox4x32 passes BigCrush; its default is ten.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; FlashAttention, Algorithms 2 and 4, which
save the generator's state for the same purpose.
"""

from dataclasses import dataclass

import numpy as np

from flashlab.machine.arguments import check_arguments, check_fields

STEPS = 2**16  # p is a multiple of 1 / STEPS


@dataclass(frozen=True)
class Dropout:
    """Weights become 0 with probability ``p``, rounded to a multiple of 2^-16; the others are divided by 1 - p.

    seed: 0 to 2^64 - 1. h, b: the head and the batch; each has a mask of its own.
    """

    p: float
    seed: int
    h: int = 0
    b: int = 0

    def __post_init__(self) -> None:
        check_fields(self, p=0, seed=(0, 2**64 - 1), h=0, b=0)
        if self.p >= 1:
            raise ValueError(f"dropout must be a probability below 1, got p = {self.p}")
        if self.p > 0 and not 0 < self.threshold < STEPS:
            raise ValueError(f"dropout goes in steps of 2^-16, and p = {self.p} would be rounded to {round(self.p)}")

    @property
    def threshold(self) -> int:
        """Return the smallest random number of a kept weight: p * 2^16, rounded."""
        return round(self.p * STEPS)

    @property
    def factor(self) -> float:
        """Return the factor of a kept weight: 1 / (1 - p), with p as rounded."""
        return STEPS / (STEPS - self.threshold)

    def tile(self, rows: slice, cols: slice, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return the factors Z_ij [Br, Bc] of the weights in these slices of the whole matrix: 0 or ``factor``."""
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
        return np.where(self.random(i, j) >= self.threshold, dtype(self.factor), dtype(0))

    def random(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the random numbers [Br, Bc], 0 to 2^16 - 1, of the weights in rows i [Br, 1] and columns j [1, Bc]."""
        first_rows, row = np.unique(i & ~8, return_inverse=True)  # where patches of eight weights begin
        first_cols, col = np.unique(j & ~9, return_inverse=True)
        counter = first_cols, first_rows[:, None], self.h, self.b
        words = np.stack(philox(counter, (self.seed & 0xFFFFFFFF, self.seed >> 32)))  # [4, patches down, across]
        word = words[2 * (i >> 3 & 1) + (j >> 3 & 1), row.reshape(i.shape), col.reshape(j.shape)]  # [Br, Bc]
        return word >> (16 * (j & 1)).astype(np.uint64) & np.uint64(0xFFFF)


@check_arguments(rounds=0)
def philox(
    counter: tuple, key: tuple[int, int], rounds: int = 7
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return four random words of 32 bits (Philox4x32), as uint64, from a counter of four words and a key of two.

    The words of the counter may be arrays that broadcast against each other.
    """
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(rounds):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0), second & low
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1), first & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
