"""Masks: which keys each query sees, as small objects that answer three questions.

A tile loop asks them of every tile and needs nothing else of a mask:

- ``bounds``: which keys can a tile of queries see at all? Tiles outside are skipped.
- ``whole``: does every query of a tile see every key of it? Such a tile needs no mask.
- ``visible``: which scores of any other tile count? This is the definition; the other two follow from it.

One convention holds in the whole tree. Masks are aligned at the lower right: query i is at position i + Nk - Nq among
the keys, so the last query is at the last key, as in decoding. Both ends of a window are inclusive, and a query's own
key counts: Hugging Face's "window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is
``window(left, right)``, and ``causal()`` is a window without a left end.

``mask & other`` shows what both show, ``mask | other`` what either shows: ``causal() & documents(ids)`` is for several
texts in one row, ``(window(1023) | sinks(4)) & causal()`` for a sliding window with four keys that stay visible.

To write a mask, subclass ``Mask`` and define ``visible``. The other two questions are then answered from all scores of
the tile; define them too if the mask has a formula.
"""

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.reference.mask_kinds import Blocks, Dense, Documents, Keys, Mask, Shape, Window, count, tile


def full() -> Mask:
    """Return the mask that hides nothing."""
    return Window(np.inf, np.inf)


def causal() -> Mask:
    """Return the mask by which query i sees the keys j <= i + Nk - Nq: its own key and those before it."""
    return Window(np.inf, 0)


def window(left: float, right: float = 0) -> Mask:
    """Return the mask by which a query sees ``left`` keys before its own key, that key, and ``right`` keys after it.

    left, right: whole numbers from 0 on, or ``np.inf`` for no end.
    """
    return Window(left, right)


def blocks(kept: np.ndarray, Br: int, Bc: int) -> Mask:
    """Return the mask that keeps or hides whole tiles of Br x Bc scores (block-sparse attention).

    kept: boolean [Tr, Tc], True where the tile counts. The loop's tiles may have other sizes.

    Source: FlashAttention, section 3.3.
    """
    return Blocks(kept, Br, Bc)


def documents(ids: np.ndarray) -> Mask:
    """Return the mask by which a query sees the keys of its own document: several texts packed into one row.

    ids: whole numbers [Nk] that do not decrease, the document of each key. A query belongs to that of the key at its
    position. Combine it with ``causal()``: alone it also shows later keys of the document.
    """
    return Documents(np.asarray(ids))


def padding(length: int) -> Mask:
    """Return the mask that hides the keys from ``length`` on, which only fill the row up."""
    return Keys(length)


def sinks(n: int) -> Mask:
    """Return the mask that shows the first n keys to every query, and nothing else.

    Combine it: ``(window(W - 1) | sinks(n)) & causal()``. Without ``causal()`` the first queries see their future.

    Source: Xiao et al. 2023, StreamingLLM (https://arxiv.org/abs/2309.17453).
    """
    return Keys(n)


def prefix(n: int) -> Mask:
    """Return the mask by which every query sees the first n keys, and its own key and those before it."""
    return causal() | sinks(n)


def dense(seen: np.ndarray) -> Mask:
    """Return the mask of a boolean array [Nq, Nk], True where a key is seen.

    Its bytes must be read, like those of any tensor, but the tile loops of the reference do not book them. Prefer a
    mask with a formula.
    """
    return Dense(seen)


def as_mask(mask: Mask | None) -> Mask:
    """Return the mask itself, or ``full()`` for None. Anything else raises TypeError."""
    if mask is None:
        return full()
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be None or made by flashlab.reference.masks, such as causal(), got {mask!r:.40}")
    return mask


SKIPPED, CUT, WHOLE = range(3)  # what a mask makes of a tile


@check_arguments()
def schedule(mask: Mask | None, shape: Shape, Br: int, Bc: int) -> np.ndarray:
    """Return what ``mask`` makes of each tile of Br x Bc scores: [Tr, Tc] of SKIPPED, CUT and WHOLE."""
    mask, (Nq, Nk) = as_mask(mask), shape
    kinds = np.full((count(Nq, Br), count(Nk, Bc)), SKIPPED)  # [Tr, Tc]
    for i in range(len(kinds)):
        rows = tile(i, Br, Nq)
        for j in mask.tiles(rows, Bc, shape):
            kinds[i, j] = WHOLE if mask.whole(rows, tile(j, Bc, Nk), shape) else CUT
    return kinds


@check_arguments()
def pairs(mask: Mask | None, shape: Shape, B: int = 128) -> int:
    """Return how many pairs of a query and a key are visible. B: the tiles in which they are counted; any will do."""
    mask, (Nq, Nk) = as_mask(mask), shape
    total = 0
    for i in range(count(Nq, B)):
        rows = tile(i, B, Nq)
        for j in mask.tiles(rows, B, shape):
            cols = tile(j, B, Nk)
            queries, keys = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
            seen = mask.visible(queries, keys, shape)  # [Br, Bc], or what broadcasts to it
            total += int(np.broadcast_to(seen, (rows.stop - rows.start, cols.stop - cols.start)).sum())
    return total
