"""The keys and values of the past for the kernels of decoding: pages, a table of pages, lengths, scales.

In 8 bits, they are rounded to float8 (e4m3) or int8, with a scale for each token and head. Scaled numbers fit the range
of both types, but e4m3 has only 3 bits of mantissa: its error is about four times that of int8, whose 255 steps are
even.
``decode`` widens both to float16, which holds every code exactly.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from flashlab.kernels.checks import check_dense
from flashlab.kernels.problem import WIDEST
from flashlab.machine.arguments import shown

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


class Cache(NamedTuple):
    """Keys and values of B texts. Key j of text b is row j % page of page table[b, j // page].

    Without a table, text b is page b: K and V are ordinary tensors [B, Hk, N, d]. Where V is a view of the first
    columns of K (``K[..., :dv]``), as in latent attention, they are read once for both.
    """

    K: Tensor  # [pages, Hk, page, d]
    V: Tensor  # [pages, Hk, page, dv]
    table: Tensor | None = None  # [B, T] int32; entries past a text's last page are never read
    lengths: Tensor | None = None  # [B] int32: keys of each text, at most T * page; None: all that the pages hold
    scales: Tensor | None = None  # [2, pages, Hk, page] float32: of each key and of each value of 8 bits

    @classmethod
    def of(cls, cache, lengths=None) -> "Cache":
        """Return a ``Cache``, or a pair (K, V) as one, with these lengths, if it has none.

        Raises:
            TypeError: anything else. ValueError: lengths twice.
        """
        if not isinstance(cache, cls):
            if not isinstance(cache, (tuple, list)) or len(cache) != 2:
                found = f"{shown(cache)}; of a PagedCache, pass cache.view(texts)"
                raise TypeError(f"a cache must be a Cache or a pair (K, V), got {found}")
            cache = cls(*cache)
        if lengths is None:
            return cache
        if cache.lengths is not None:
            raise ValueError("the cache has lengths of its own: give lengths once")
        return cache._replace(lengths=lengths)

    @property
    def most(self) -> int:
        """The largest number of keys of a text."""
        page = self.K.shape[2]
        return page if self.table is None else page * self.table.shape[1]

    @property
    def latent(self) -> bool:
        """Whether V is the first columns of K."""
        same = self.K.data_ptr() == self.V.data_ptr() and self.K.stride() == self.V.stride()
        return same and self.K.shape[3] >= self.V.shape[3]


def check_widths(d: int, dv: int, latent: bool) -> None:
    """Raise ValueError unless there are kernels for keys of d columns and values of dv; latent: in the keys."""
    more = 0, 16, 32, 64
    plain = max(d, dv) <= WIDEST
    if min(d, dv) < 1 or not plain and not (latent and dv <= 512 and d - dv in more):
        raise ValueError(f"heads have 1 to {WIDEST} columns, latents 512 and 0 to 64 more, got d = {d} and dv = {dv}")
    if latent and d - dv not in more:
        raise ValueError(f"keys may have 0, 16, 32 or 64 columns more than the values they hold, got {d - dv}")


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x [..., d] as 8-bit codes [..., d], and the scale [...] in float32 by which a code must be multiplied.

    NaN or an infinity in a row makes its scale NaN or infinite.

    Raises TypeError for a dtype other than float8_e4m3fn and int8, and for an x that has no floating-point columns.
    """
    check_dense(x=x)
    if not x.is_floating_point() or x.ndim == 0 or x.shape[-1] == 0:
        raise TypeError(f"x must be a floating-point tensor [..., d], got {x.dtype} {list(x.shape)}")
    if dtype not in LARGEST:
        raise TypeError(f"a cache of 8 bits has the dtype float8_e4m3fn or int8, got {shown(dtype)}")
    x = x.float()
    scale = (x.abs().amax(-1) / LARGEST[dtype]).clamp(min=torch.finfo(torch.float32).tiny)  # [...]
    x = x / scale[..., None]
    return (x.round() if dtype == torch.int8 else x).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scale


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    """Return codes [..., d] times their scales [...], in float32."""
    check_dense(codes=codes, scale=scale)
    if scale.shape != codes.shape[:-1]:
        raise ValueError(f"expected codes [..., d] and scale [...], got {list(codes.shape)} and {list(scale.shape)}")
    return codes.float() * scale[..., None]
