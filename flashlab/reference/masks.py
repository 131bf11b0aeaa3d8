"""Masks: which keys each query sees, as small objects that answer three questions.

A tile loop asks them of every tile, and knows nothing else about a mask:

- ``bounds``: which keys can a tile of queries see at all? Tiles outside are never visited;
- ``whole``: does every query of a tile see every key of it? Such a tile needs no mask;
- ``visible``: which scores of any other tile count? This is the definition; the other two follow from it.

One convention holds in the whole tree. Masks are aligned at the lower right: query i is at the position i + Nk - Nq
among the keys, so the last query is at the last key, as in decoding. Both ends of a window are inclusive, and a
query's own key counts: Hugging Face's "window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is
``window(left, right)``, and ``causal()`` is a window without a left end.

``rows`` and ``cols`` are slices of queries and of keys, not empty; ``shape`` is (Nq, Nk).
"""

from dataclasses import dataclass
from numbers import Integral

import numpy as np


def full():
    """Return the mask that hides nothing."""
    return Window(np.inf, np.inf)


def causal():
    """Return the mask by which query i sees the keys j <= i + Nk - Nq: its own key and those before it."""
    return Window(np.inf, 0)


def window(left, right=0):
    """Return the mask by which a query sees ``left`` keys before its own key, that key, and ``right`` keys after it.

    left, right: whole numbers from 0 on, or ``np.inf`` for no end.
    """
    return Window(left, right)


def blocks(kept, Br, Bc):
    """Return the mask that keeps or hides whole tiles of Br x Bc scores (block-sparse attention).

    kept: boolean [Tr, Tc], True where the tile counts. The loop's tiles may have other sizes.

    Source: FlashAttention, section 3.3.
    """
    return Blocks(kept, Br, Bc)


def as_mask(mask):
    """Return the mask itself, or ``full()`` for None. Anything else raises TypeError."""
    if mask is None:
        return full()
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be None or made by flashlab.reference.masks, such as causal(), got {mask!r:.40}")
    return mask


def count(N, B):
    """Return the number of tiles of B that cover range(N)."""
    return -(-N // B)


class Mask:
    """The three questions, to be answered by each kind of mask, and what follows from the answers."""

    def bounds(self, rows, shape):
        """Return (start, stop): the queries in ``rows`` see no key outside. The default is all keys."""
        return 0, shape[1]

    def whole(self, rows, cols, shape):
        """Return whether every query in ``rows`` sees every key in ``cols``."""
        return bool(self.visible(*np.ogrid[rows, cols], shape).all())

    def visible(self, i, j, shape):
        """Return whether query i sees key j: a boolean array of the shape to which the arrays i and j broadcast."""
        raise NotImplementedError

    @property
    def T(self):
        """The same mask with queries and keys exchanged, for a loop that has the keys outside."""
        raise NotImplementedError

    def tiles(self, rows, B, shape):
        """Return the numbers j, in order, of the tiles of B keys that the queries in ``rows`` meet."""
        start, stop = self.bounds(rows, shape)
        return range(start // B, count(stop, B))

    def apply(self, S_ij, rows, cols, shape):
        """Return the tile of scores S_ij [Br, Bc] with -inf wherever a query does not see the key."""
        if self.whole(rows, cols, shape):
            return S_ij
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]   places in the whole matrix, not in the tile
        return np.where(self.visible(i, j, shape), S_ij, -np.inf)

    def dense(self, shape):
        """Return the whole mask, boolean [Nq, Nk], True where a key is seen."""
        Nq, Nk = shape
        return np.broadcast_to(self.visible(*np.ogrid[:Nq, :Nk], shape), shape)


@dataclass(frozen=True)
class Window(Mask):
    """Keys from ``left`` before a query's own key to ``right`` after it, both inclusive."""

    left: float
    right: float

    def __post_init__(self):
        for end in (self.left, self.right):
            if not (isinstance(end, Integral) or end == np.inf) or end < 0:
                raise ValueError(f"a window's ends are whole numbers from 0 on, or inf, got {self.left}, {self.right}")

    def bounds(self, rows, shape):
        Nq, Nk = shape
        start = max(rows.start + Nk - Nq - self.left, 0)  # the first key of the first query
        stop = min(rows.stop + Nk - Nq + self.right, Nk)  # one past the last key of the last query
        return start, max(stop, 0)

    def whole(self, rows, cols, shape):
        Nq, Nk = shape
        sees_first = cols.start >= rows.stop - 1 + Nk - Nq - self.left  # the last query, whose window starts last
        sees_last = cols.stop - 1 <= rows.start + Nk - Nq + self.right  # the first query, whose window ends first
        return bool(sees_first and sees_last)

    def visible(self, i, j, shape):
        Nq, Nk = shape
        own = i + Nk - Nq  # the key at query i's position
        return (own - self.left <= j) & (j <= own + self.right)

    @property
    def T(self):
        return Window(self.right, self.left)


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """The tiles of Br x Bc scores for which ``kept`` [Tr, Tc] is True."""

    kept: np.ndarray
    Br: int
    Bc: int

    def __post_init__(self):
        if not isinstance(self.kept, np.ndarray) or self.kept.dtype != bool or self.kept.ndim != 2:
            raise TypeError("blocks are a boolean array [Tr, Tc], True where a tile counts")
        if not all(isinstance(B, Integral) and B >= 1 for B in (self.Br, self.Bc)):
            raise ValueError(f"a tile has at least one row and one column, got Br = {self.Br}, Bc = {self.Bc}")

    def whole(self, rows, cols, shape):
        return bool(self._part(rows, cols, shape).all())

    def visible(self, i, j, shape):
        self._check(shape)
        return self.kept[i // self.Br, j // self.Bc]

    @property
    def T(self):
        return Blocks(self.kept.T, self.Bc, self.Br)

    def tiles(self, rows, B, shape):
        cols = ((j, slice(j * B, min((j + 1) * B, shape[1]))) for j in range(count(shape[1], B)))
        return [j for j, keys in cols if self._part(rows, keys, shape).any()]

    def _part(self, rows, cols, shape):
        """Return the entries of ``kept`` that the tile ``rows`` x ``cols`` touches."""
        self._check(shape)
        return self.kept[_touched(rows, self.Br), _touched(cols, self.Bc)]

    def _check(self, shape):
        expected = count(shape[0], self.Br), count(shape[1], self.Bc)
        if self.kept.shape != expected:
            raise ValueError(f"expected blocks [Tr, Tc] = {expected}, got {self.kept.shape}")


def _touched(part, B):
    """Return the slice of the tiles of B that the slice ``part`` touches."""
    return slice(part.start // B, count(part.stop, B))
