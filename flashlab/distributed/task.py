"""What the ranks of a group are about to compute together: checked, and the same on all of them."""

import hashlib
import math
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashlab.distributed.compute import in_torch
from flashlab.distributed.wire import GroupError, Wire
from flashlab.machine.ranks import Block, Runs, blocks, length, placement_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Task(NamedTuple):
    """One call of attention over a group, as every rank knows it."""

    placement: tuple[Runs, ...]
    Hk: int  # key/value heads
    left: int | None  # of the mask: keys before the own one, None for no end
    right: int | None
    documents: tuple[int, ...] | None  # where packed texts begin, and N
    scale: float
    kernel: str | None

    @property
    def whole(self) -> Runs:
        """The runs of a rank that has all tokens, in order."""
        return (range(sum(map(length, self.placement))),)

    def blocks(self, queries: Runs, keys: Runs) -> tuple[Block, ...]:
        """Return the blocks that the queries of one rank and the keys of another have in common."""
        return blocks(queries, keys, self.left, self.right, self.documents)


def prepare(
    method: str, q: Tensor, k: Tensor, v: Tensor, wire: Wire, placement, causal, mask, documents, scale, kernel
) -> tuple[Tensor, Tensor, Tensor, Task]:
    """Check the arguments here and compare them with the other ranks'. Return q, k, v, made ready, and the task.

    Raises:
        TypeError, ValueError: an argument is not as ``ring_attention`` describes it.
        GroupError: the ranks disagree, or do not answer.
    """
    fault = None
    try:
        _check(q, k, v)
        left, right = _window(causal, mask)
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        if not math.isfinite(scale):
            raise ValueError(f"scale must be a finite number, got {scale}")
        documents = None if documents is None else tuple(_whole(place, "documents") for place in documents)
    except (TypeError, ValueError) as error:
        if not isinstance(q, Tensor):
            raise
        fault = error
    wire.check(q)
    facts = {"whether the arguments are right": fault is None}
    if fault is None:
        (B, H, _, d), (_, Hk, _, dv) = q.shape, v.shape
        texts = documents and f"{len(documents) - 1} texts {hashlib.sha1(str(documents).encode()).hexdigest()[:8]}"
        facts |= {"the method": method, "the placement": placement, "B": B, "H": H, "Hk": Hk, "d": d, "dv": dv}
        facts |= {"the dtype": str(q.dtype), "the window of the mask": [left, right], "documents": texts}
        facts |= {"the scale": scale, "the kernel": kernel}
    try:
        counts = wire.agree(facts, q.shape[2] if q.ndim == 4 else 0, q.device)
    except GroupError as error:
        raise fault or error from None
    if fault:
        raise fault
    N = sum(counts)
    runs = placement_of(placement, N, wire.size)
    if counts != [length(own) for own in runs]:
        expected = [length(own) for own in runs]
        raise ValueError(f"a {placement} placement of {N} tokens gives the ranks {expected} of them, got {counts}")
    if documents is not None and (documents[:1] != (0,) or documents[-1] != N or list(documents) != sorted(documents)):
        raise ValueError(
            f"documents are the places where texts begin, from 0 on, and at the end {N}, the number of tokens"
        )
    if scale <= 0:  # the kernels take the maximum before they scale, so their scale is positive
        q, scale = (-q, -scale) if scale < 0 else (q * 0, 1.0)
    if not in_torch(q, kernel):
        q, k, v = (_pad_rows(x) for x in (q, k, v))
    return q, k, v, Task(runs, Hk, left, right, documents, scale, kernel)


def _check(q, k, v):
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor [B, heads, n, width], got {list(getattr(x, 'shape', []))}")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise TypeError(f"q, k and v must have one floating-point dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not (q.device == k.device == v.device):
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
    (B, H, n, d), Hk = q.shape, k.shape[1]
    if k.shape != (B, Hk, n, d) or v.shape[:3] != (B, Hk, n) or Hk == 0 or H % Hk:
        raise ValueError(
            "expected q [B, H, n, d], k [B, Hk, n, d] and v [B, Hk, n, dv] of the same n tokens, H a multiple of Hk, "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )


def _window(causal, mask):
    """Return the ends (left, right) of the window that ``causal`` and ``mask`` ask for."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, got {causal!r:.40}")
    if mask is None:
        return None, 0 if causal else None
    if causal:
        raise ValueError("causal=True is short for a mask: give one of the two")
    if not (hasattr(mask, "left") and hasattr(mask, "right")):
        raise TypeError(f"mask must be None, causal() or window(...), got {mask!r:.40}")
    ends = mask.left, mask.right
    return tuple(None if end is None or end == math.inf else _whole(end, "a window's ends") for end in ends)


def _whole(number, name):
    """Return a whole number as an int, or raise TypeError."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be whole numbers, got {number!r:.40}") from None


def _pad_rows(x):
    """Append zero columns until a row is a multiple of 16 bytes, as the kernels require."""
    missing = -x.shape[-1] % (16 // x.element_size())
    return F.pad(x, (0, missing)) if missing else x
