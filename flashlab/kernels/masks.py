"""Masks: which queries see which keys. A mask answers three questions, and a loop over tiles asks nothing else of it.

bounds   Which keys can a tile of queries see at all? Tiles outside are never loaded.
whole    Which keys does every query of the tile see? Tiles of these need no mask.
visible  Which scores of the remaining tiles count? This is the definition.

The names and the convention are those of ``reference.masks``. Masks are aligned at the lower right: query i is at the
position i + Nk - Nq among the keys. Both ends of a window are inclusive, and a query's own key counts: Hugging Face's
"window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is ``window(left, right)``.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl

FARTHEST = 2**29  # keys: no sequence is longer, and sums of a few such numbers fit 32 bits


class Window(NamedTuple):
    """Keys from ``left`` before a query's own key to ``right`` after it, both included; None: no end."""

    left: int | None = None
    right: int | None = None

    @property
    def T(self):
        """The same mask with queries and keys exchanged, for a loop that has the keys outside."""
        return Window(self.right, self.left)


def full() -> Window:
    """Return the mask that hides nothing."""
    return Window()


def causal() -> Window:
    """Return the mask by which query i sees the keys j <= i + Nk - Nq: its own key and those before it."""
    return Window(right=0)


def window(left, right=0) -> Window:
    """Return the mask by which a query sees ``left`` keys before its own key, that key, and ``right`` keys after it.

    left, right: whole numbers from 0 on, or ``math.inf`` for no end.

    Raises:
        ValueError: an end that is neither.
    """
    return Window(_end(left), _end(right))


def _end(end):
    if isinstance(end, float) and end == math.inf:
        return None
    if isinstance(end, bool) or not hasattr(end, "__index__") or end < 0:
        raise ValueError(f"a window's ends are whole numbers from 0 on, or math.inf, got {end!r:.40}")
    return min(int(end), FARTHEST)


def either(causal_mask, mask) -> Window:
    """Return the mask that the arguments ``causal`` and ``mask`` of a call ask for.

    Raises:
        TypeError, ValueError: causal is not a bool, mask was not made here, or both are given.
    """
    if not isinstance(causal_mask, bool):
        raise TypeError(f"causal must be True or False, got {causal_mask!r:.40}")
    if mask is None:
        return causal() if causal_mask else full()
    if not isinstance(mask, Window):
        raise TypeError(f"mask must be None or made by flashlab.kernels.masks, such as causal(), got {mask!r:.40}")
    if causal_mask:
        raise ValueError("causal=True is short for mask=masks.causal(): give one of the two")
    return mask


@triton.jit
def bounds(mask, start, size: tl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the keys that some query of start .. start + size sees."""
    begin = 0
    end = Nk
    if mask.left is not None:
        begin = tl.maximum(start + Nk - Nq - mask.left, 0)
    if mask.right is not None:
        end = tl.minimum(start + size + Nk - Nq + mask.right, Nk)
    return begin, end


@triton.jit
def whole(mask, start, size: tl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the keys that every query of start .. start + size sees."""
    begin = 0
    end = Nk
    if mask.left is not None:
        begin = tl.maximum(start + size - 1 + Nk - Nq - mask.left, 0)
    if mask.right is not None:
        end = tl.minimum(start + 1 + Nk - Nq + mask.right, Nk)
    return begin, end


@triton.jit
def visible(mask, queries, keys, Nq, Nk, ragged: tl.constexpr):
    """Return which of these queries [Br] see which of these keys [Bc]: [Br, Bc], or what broadcasts to it.

    ragged: some of the keys may be past Nk. The mask limits at least one side, or this is True.
    """
    seen = keys[None, :] < Nk  # [1, Bc]
    if mask.right is not None:
        last = tl.minimum(queries + Nk - Nq + mask.right, Nk - 1)  # [Br]
        seen = keys[None, :] <= last[:, None]  # [Br, Bc]
    if mask.left is not None:
        first = queries + Nk - Nq - mask.left  # [Br]
        after = keys[None, :] >= first[:, None]  # [Br, Bc]
        seen = seen & after if mask.right is not None or ragged else after
    return seen


@triton.jit
def ranges(mask, start, size: tl.constexpr, Bc: tl.constexpr, Nq, Nk, ragged: tl.constexpr):
    """Return the four ends of the loop's three ranges of keys: masked tiles, whole tiles, masked tiles.

    Tiles of Bc keys begin at multiples of Bc. ragged: the last tile reaches past Nk and what it holds there must be
    masked, too. A range that a mask never has is empty for the compiler as well, which then drops its loop.
    """
    begin, end = bounds(mask, start, size, Nq, Nk)
    whole_begin, whole_end = whole(mask, start, size, Nq, Nk)
    if mask.left is not None:
        begin = begin // Bc * Bc
        whole_begin = tl.minimum(tl.cdiv(whole_begin, Bc) * Bc, end)
    if mask.right is not None or ragged:
        whole_end = tl.maximum(whole_end // Bc * Bc, whole_begin)
    return begin, whole_begin, whole_end, end
