"""Masks: which keys each query sees, as small objects that answer three questions.

A tile loop asks them of every tile, and knows nothing else about a mask:

- ``bounds``: which keys can a tile of queries see at all? Tiles outside are never visited;
- ``whole``: does every query of a tile see every key of it? Such a tile needs no mask;
- ``visible``: which scores of any other tile count? This is the definition; the other two follow from it.

One convention holds in the whole tree. Masks are aligned at the lower right: query i is at the position i + Nk - Nq
among the keys, so the last query is at the last key, as in decoding. Both ends of a window are inclusive, and a
query's own key counts: Hugging Face's "window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is
``window(left, right)``, and ``causal()`` is a window without a left end.

``mask & other`` shows what both show, ``mask | other`` what either shows: ``causal() & documents(ids)`` is for several
texts in one row, ``(window(1023) | sinks(4)) & causal()`` for a sliding window beside four keys that stay visible.

A mask of your own is a subclass of ``Mask`` with ``visible``. The other two questions are then answered by looking at
every score; answer them faster where the mask has a formula.

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


def documents(ids):
    """Return the mask by which a query sees the keys of its own document: several texts packed into one row.

    ids: whole numbers [Nk] that never fall, the number of the document that each key belongs to. A query belongs to
    that of the key at its position. Combine it with ``causal()``: documents alone see their own future.
    """
    return Documents(np.asarray(ids))


def padding(length):
    """Return the mask that hides the keys from ``length`` on, which only fill the row up."""
    return Keys(length)


def sinks(n):
    """Return the mask that shows the first n keys to every query, and nothing else.

    Combine it: ``(window(W - 1) | sinks(n)) & causal()``. Without ``causal()`` the first queries see their future.

    Source: Xiao et al. 2023, StreamingLLM (https://arxiv.org/abs/2309.17453).
    """
    return Keys(n)


def prefix(n):
    """Return the mask by which every query sees the first n keys, and its own key and those before it."""
    return causal() | sinks(n)


def dense(seen):
    """Return the mask of a boolean array [Nq, Nk], True where a key is seen.

    It is a tensor like any other, with bytes to read, which the tile loops of the reference do not book. Prefer a mask
    with a formula.
    """
    return Dense(seen)


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


SKIPPED, CUT, WHOLE = range(3)  # what a mask makes of a tile


def schedule(mask, shape, Br, Bc):
    """Return what ``mask`` makes of each tile of Br x Bc scores: [Tr, Tc] of SKIPPED, CUT and WHOLE."""
    mask, (Nq, Nk) = as_mask(mask), shape
    kinds = np.full((count(Nq, Br), count(Nk, Bc)), SKIPPED)  # [Tr, Tc]
    for i in range(len(kinds)):
        rows = _tile(i, Br, Nq)
        for j in mask.tiles(rows, Bc, shape):
            kinds[i, j] = WHOLE if mask.whole(rows, _tile(j, Bc, Nk), shape) else CUT
    return kinds


def pairs(mask, shape, B=128):
    """Return how many pairs of a query and a key are visible. B: the tiles in which they are counted; any will do."""
    mask, (Nq, Nk) = as_mask(mask), shape
    total = 0
    for i in range(count(Nq, B)):
        rows = _tile(i, B, Nq)
        for j in mask.tiles(rows, B, shape):
            cols = _tile(j, B, Nk)
            seen = mask.visible(*np.ogrid[rows, cols], shape)  # [Br, Bc], or what broadcasts to it
            total += int(np.broadcast_to(seen, (rows.stop - rows.start, cols.stop - cols.start)).sum())
    return total


class Mask:
    """The three questions, of which a kind of mask must answer ``visible``, and what follows from the answers."""

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
        return Transposed(self)

    def tiles(self, rows, B, shape):
        """Return the numbers j, in order, of the tiles of B keys that the queries in ``rows`` meet."""
        start, stop = self.bounds(rows, shape)
        cols = ((j, _tile(j, B, shape[1])) for j in range(start // B, count(stop, B)))
        return [j for j, keys in cols if self.visible(*np.ogrid[rows, keys], shape).any()]

    def __and__(self, other):
        return And(self, _other(other))

    def __or__(self, other):
        return Or(self, _other(other))

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


class Interval(Mask):
    """A mask by which the queries of any tile see, together, all keys within their ``bounds``."""

    def tiles(self, rows, B, shape):
        start, stop = self.bounds(rows, shape)
        return range(start // B, count(stop, B))


@dataclass(frozen=True)
class Window(Interval):
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


@dataclass(frozen=True)
class Keys(Interval):
    """The first n keys, for every query."""

    n: int

    def __post_init__(self):
        if isinstance(self.n, bool) or not isinstance(self.n, Integral) or self.n < 0:
            raise ValueError(f"expected a number of keys, 0 or more, got {self.n!r:.40}")

    def bounds(self, rows, shape):
        return 0, min(self.n, shape[1])

    def whole(self, rows, cols, shape):
        return cols.stop <= self.n

    def visible(self, i, j, shape):
        return np.asarray(j < self.n)


@dataclass(frozen=True, eq=False)
class Documents(Interval):
    """The keys whose document, in ``ids`` [Nk], is that of the key at the query's position."""

    ids: np.ndarray

    def __post_init__(self):
        if self.ids.ndim != 1 or not np.issubdtype(self.ids.dtype, np.integer) or (np.diff(self.ids) < 0).any():
            raise ValueError("documents are whole numbers [Nk] that never fall: the document of each key")

    def bounds(self, rows, shape):
        first, last = self._own(rows.start, shape), self._own(rows.stop - 1, shape)
        if last < 0:  # all queries come before the first key
            return 0, 0
        start = np.searchsorted(self.ids, self.ids[max(first, 0)], "left")
        return int(start), int(np.searchsorted(self.ids, self.ids[last], "right"))

    def whole(self, rows, cols, shape):
        first, last = self._own(rows.start, shape), self._own(rows.stop - 1, shape)
        return bool(first >= 0 and len({*self.ids[[first, last, cols.start, cols.stop - 1]]}) == 1)

    def visible(self, i, j, shape):
        own = self._own(i, shape)
        return (own >= 0) & (self.ids[np.maximum(own, 0)] == self.ids[j])

    def _own(self, i, shape):
        """Return the key at the position of query i, below 0 where there is none."""
        if len(self.ids) != shape[1]:
            raise ValueError(f"expected the documents of {shape[1]} keys, got {len(self.ids)}")
        return i + shape[1] - shape[0]


@dataclass(frozen=True)
class And(Mask):
    """What both masks show."""

    a: Mask
    b: Mask

    def bounds(self, rows, shape):
        (start, stop), (other_start, other_stop) = self.a.bounds(rows, shape), self.b.bounds(rows, shape)
        return max(start, other_start), min(stop, other_stop)

    def whole(self, rows, cols, shape):
        return self.a.whole(rows, cols, shape) and self.b.whole(rows, cols, shape)

    def visible(self, i, j, shape):
        return self.a.visible(i, j, shape) & self.b.visible(i, j, shape)

    @property
    def T(self):
        return self.a.T & self.b.T


@dataclass(frozen=True)
class Or(Mask):
    """What either mask shows."""

    a: Mask
    b: Mask

    def bounds(self, rows, shape):
        (start, stop), (other_start, other_stop) = self.a.bounds(rows, shape), self.b.bounds(rows, shape)
        return min(start, other_start), max(stop, other_stop)

    def visible(self, i, j, shape):
        return self.a.visible(i, j, shape) | self.b.visible(i, j, shape)

    @property
    def T(self):
        return self.a.T | self.b.T


@dataclass(frozen=True)
class Transposed(Mask):
    """A mask with queries and keys exchanged."""

    mask: Mask

    def whole(self, rows, cols, shape):
        return self.mask.whole(cols, rows, shape[::-1])

    def visible(self, i, j, shape):
        return self.mask.visible(j, i, shape[::-1])

    @property
    def T(self):
        return self.mask


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """The pairs for which ``seen`` [Nq, Nk] is True."""

    seen: np.ndarray

    def __post_init__(self):
        if not isinstance(self.seen, np.ndarray) or self.seen.dtype != bool or self.seen.ndim != 2:
            raise TypeError("a dense mask is a boolean array [Nq, Nk], True where a key is seen")

    def visible(self, i, j, shape):
        if self.seen.shape != tuple(shape):
            raise ValueError(f"expected a dense mask [Nq, Nk] = {tuple(shape)}, got {self.seen.shape}")
        return self.seen[i, j]

    @property
    def T(self):
        return Dense(self.seen.T)


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
        cols = ((j, _tile(j, B, shape[1])) for j in range(count(shape[1], B)))
        return [j for j, keys in cols if self._part(rows, keys, shape).any()]

    def _part(self, rows, cols, shape):
        """Return the entries of ``kept`` that the tile ``rows`` x ``cols`` touches."""
        self._check(shape)
        return self.kept[_touched(rows, self.Br), _touched(cols, self.Bc)]

    def _check(self, shape):
        expected = count(shape[0], self.Br), count(shape[1], self.Bc)
        if self.kept.shape != expected:
            raise ValueError(f"expected blocks [Tr, Tc] = {expected}, got {self.kept.shape}")


def _tile(j, B, N):
    """Return the slice of tile j, of the tiles of B that cover range(N)."""
    return slice(j * B, min((j + 1) * B, N))


def _other(mask):
    if not isinstance(mask, Mask):
        raise TypeError(f"a mask combines with a mask, such as causal(), got {mask!r:.40}")
    return mask


def _touched(part, B):
    """Return the slice of the tiles of B that the slice ``part`` touches."""
    return slice(part.start // B, count(part.stop, B))
