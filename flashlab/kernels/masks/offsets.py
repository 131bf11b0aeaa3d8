"""Tensors of integers: offsets of documents and texts, ids and lengths."""

import torch
from torch import Tensor

INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64  # torch compares and sorts no others


def integers(x: Tensor, name: str, dims: tuple[int, ...]) -> Tensor:
    """Return x, or raise TypeError or ValueError if it is not a tensor of integers with one of these ranks."""
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        *others, last = (str(dtype).removeprefix("torch.") for dtype in INTEGERS)
        found = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name} must be a tensor of integers ({', '.join(others)} or {last}), got {found}")
    if x.dim() not in dims:
        raise ValueError(f"{name} must have {' or '.join(map(str, dims))} dimensions, got shape {list(x.shape)}")
    return x


def starts(offsets: Tensor, name: str) -> list[int]:
    """Return offsets [n + 1] of n documents or texts as a list: document t has the tokens list[t] to list[t + 1] - 1.

    Raises:
        TypeError, ValueError: they are not integers that begin with 0 and never fall, or cannot be read.
    """
    integers(offsets, name, (1,))
    if offsets.is_meta:
        raise ValueError(f"{name} must have values, got a tensor on the meta device")
    values = offsets.tolist()
    if values[:1] != [0] or any(b < a for a, b in zip(values, values[1:], strict=False)):
        raise ValueError(f"{name} must begin with 0 and never fall, got {str(values):.60}")
    return values


def owners(offsets: Tensor, tokens: int) -> Tensor:
    """Return the document or text of each token [tokens]."""
    return torch.bucketize(torch.arange(tokens, device=offsets.device), offsets[1:].contiguous(), right=True)
