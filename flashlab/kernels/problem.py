"""One call of attention, described once: what tables, schedules and kernels need to know of it beside its tensors."""

import math
from typing import NamedTuple

import torch
import triton.language as tl

from flashlab.kernels import tiles
from flashlab.kernels.masks import Window

LOG2_E = tl.constexpr(math.log2(math.e))  # e^x = 2^(LOG2_E * x)


class Problem(NamedTuple):
    """Sizes, dtype, device and options of one call. Made where the arguments are checked, and never changed."""

    B: int  # batches
    H: int  # query heads
    Hk: int  # key/value heads
    Nq: int  # queries
    Nk: int  # keys
    d: int  # columns of Q and K, padded to rows of 16 bytes
    dv: int  # columns of V and O, padded likewise
    dtype: torch.dtype
    device: torch.device
    mask: Window
    scale: float  # factor on the scores, above 0
    precision: str  # of float32 products: "ieee", or "tf32"

    @classmethod
    def of(cls, q, k, v, mask, scale):
        """Describe attention over q [B, H, Nq, d], k [B, Hk, Nk, d] and v [B, Hk, Nk, dv]."""
        B, H, Nq, d = q.shape
        _, Hk, Nk, dv = v.shape
        return cls(B, H, Hk, Nq, Nk, d, dv, q.dtype, q.device, mask, scale, tiles.precision_of(q))

    @property
    def group(self):
        """Query heads per key/value head."""
        return self.H // self.Hk

    @property
    def scale_log2(self):
        """Factor that turns scores into powers of two: e^(scale * x) = 2^(scale_log2 * x)."""
        return self.scale * LOG2_E.value

    @property
    def widths(self):
        """Columns of tiles of Q and K, and of tiles of V and O."""
        return tiles.width_of(self.d), tiles.width_of(self.dv)
