"""Keys and values in 8 bits: numbers rounded to float8 (e4m3) or int8, with a scale for each token and head.

A scale cures a wrong range, and e4m3 keeps 3 bits of mantissa in any range: its error is about four times that of int8,
whose 255 steps are even. ``decode`` widens both to float16, which holds every code exactly.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


def rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x [..., d] as 8-bit codes [..., d], and the scale [...] in float32 by which a code must be multiplied.

    Raises KeyError for a dtype other than float8_e4m3fn and int8.
    """
    x = x.float()
    scale = (x.abs().amax(-1) / LARGEST[dtype]).clamp(min=torch.finfo(torch.float32).tiny)  # [...]
    x = x / scale[..., None]
    return (x.round() if dtype == torch.int8 else x).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scale


def widened(codes: Tensor, scale: Tensor) -> Tensor:
    """Return codes [..., d] times their scales [...], in float32."""
    return codes.float() * scale[..., None]
