"""The kinds of masks. Each answers ``bounds``, ``whole`` and ``visible``, the three questions of a loop over tiles.

``rows`` and ``cols`` are slices of queries and of keys, not empty; ``shape`` is (Nq, Nk).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashlab.machine.arguments import check_arguments, shown
from flashlab.machine.numbers import whole_number
from flashlab.machine.truth import NoTruth

Shape = tuple[int, int]  # (Nq, Nk)


@check_arguments(N=0)
def count(N: int, B: int) -> int:
    """Return the number of tiles of B that cover range(N)."""
    return -(-N // B)


class Mask(NoTruth):
    """The base of all masks. A kind must define ``visible``; everything else follows from it, if slowly."""

    combine = "combine masks by & and |"
    __array_ufunc__ = None  # a numpy array on the left leaves ``&`` and ``|`` to the mask

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        """Return (start, stop): the queries in ``rows`` see no key outside. The default is all keys."""
        return 0, shape[1]

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        """Return whether every query in ``rows`` sees every key in ``cols``."""
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
        return bool(self.visible(i, j, shape).all())

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        """Return whether query i sees key j: a boolean array of the shape to which the arrays i and j broadcast."""
        raise NotImplementedError

    @property
    def T(self) -> "Mask":
        """The same mask with queries and keys exchanged, for an outer loop over keys."""
        return Transposed(self)

    def tiles(self, rows: slice, B: int, shape: Shape) -> Sequence[int]:
        """Return the numbers j, in order, of the tiles of B keys that a query in ``rows`` sees."""
        start, stop = self.bounds(rows, shape)
        numbers = range(start // B, count(stop, B))
        grids = ((j, np.ogrid[rows, tile(j, B, shape[1])]) for j in numbers)
        return [j for j, (queries, keys) in grids if self.visible(queries, keys, shape).any()]

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other)

    __rand__, __ror__ = __and__, __or__

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        """Return the tile of scores S_ij [Br, Bc] with -inf wherever a query does not see the key."""
        if self.whole(rows, cols, shape):
            return S_ij
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]   places in the whole matrix, not in the tile
        return np.where(self.visible(i, j, shape), S_ij, -np.inf)

    def dense(self, shape: Shape) -> np.ndarray:
        """Return the whole mask, boolean [Nq, Nk], True where a key is seen."""
        Nq, Nk = shape
        i, j = np.ogrid[:Nq, :Nk]  # [Nq, 1], [1, Nk]
        return np.broadcast_to(self.visible(i, j, shape), shape)


class Interval(Mask):
    """A mask whose ``bounds`` are tight: each key within them is seen by at least one query of the tile."""

    def tiles(self, rows: slice, B: int, shape: Shape) -> Sequence[int]:
        start, stop = self.bounds(rows, shape)
        return range(start // B, count(stop, B))


@dataclass(frozen=True)
class Window(Interval):
    """Keys from ``left`` before a query's own key to ``right`` after it, both inclusive."""

    left: float
    right: float

    def __post_init__(self) -> None:
        for end in (self.left, self.right):
            if not (isinstance(end, (float, np.floating)) and end == np.inf or _is_whole(end, 0)):
                ends = f"{self.left!r:.40}, {self.right!r:.40}"
                raise ValueError(f"a window's ends are whole numbers from 0 on, or inf, got {ends}")

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        Nq, Nk = shape
        start = max(rows.start + Nk - Nq - self.left, 0)  # the first key of the first query
        stop = min(rows.stop + Nk - Nq + self.right, Nk)  # one past the last key of the last query
        return start, max(stop, 0)

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        Nq, Nk = shape
        sees_first = cols.start >= rows.stop - 1 + Nk - Nq - self.left  # the last query, whose window starts last
        sees_last = cols.stop - 1 <= rows.start + Nk - Nq + self.right  # the first query, whose window ends first
        return bool(sees_first and sees_last)

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        Nq, Nk = shape
        own = i + Nk - Nq  # the key at query i's position
        return (own - self.left <= j) & (j <= own + self.right)

    @property
    def T(self) -> Mask:
        return Window(self.right, self.left)


@dataclass(frozen=True)
class Keys(Interval):
    """The first n keys, for every query."""

    n: int

    def __post_init__(self) -> None:
        if not _is_whole(self.n, 0):
            raise ValueError(f"expected a number of keys, 0 or more, got {self.n!r:.40}")

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        return 0, min(self.n, shape[1])

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        return cols.stop <= self.n

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        return np.asarray(j < self.n)


@dataclass(frozen=True, eq=False)
class Documents(Interval):
    """The keys whose document, in ``ids`` [Nk], is that of the key at the query's position."""

    ids: np.ndarray

    def __post_init__(self) -> None:
        ids = self.ids
        row = isinstance(ids, np.ndarray) and ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
        if not row or (ids[1:] < ids[:-1]).any():
            raise ValueError(
                f"ids must be whole numbers [Nk] that do not decrease, the document of each key, got {self.ids!s:.60}"
            )

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        first, last = self._own(rows.start, shape), self._own(rows.stop - 1, shape)
        if last < 0:  # all queries come before the first key
            return 0, 0
        start = np.searchsorted(self.ids, self.ids[max(first, 0)], "left")
        return int(start), int(np.searchsorted(self.ids, self.ids[last], "right"))

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        first, last = self._own(rows.start, shape), self._own(rows.stop - 1, shape)
        return bool(first >= 0 and len({*self.ids[[first, last, cols.start, cols.stop - 1]]}) == 1)

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        own = self._own(i, shape)
        return (own >= 0) & (self.ids[np.maximum(own, 0)] == self.ids[j])

    def _own(self, i: Any, shape: Shape) -> Any:
        """Return the key at the position of query i, below 0 where there is none."""
        if len(self.ids) != shape[1]:
            raise ValueError(f"expected the documents of {shape[1]} keys, got {len(self.ids)}")
        return i + shape[1] - shape[0]


@dataclass(frozen=True)
class Pair(Mask):
    """Two masks."""

    a: Mask
    b: Mask

    def __post_init__(self) -> None:
        for mask in (self.a, self.b):
            if not isinstance(mask, Mask):
                raise TypeError(f"a mask combines with a mask, such as causal(), got {mask!r:.40}")


class And(Pair):
    """What both masks show."""

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        (start, stop), (other_start, other_stop) = self.a.bounds(rows, shape), self.b.bounds(rows, shape)
        return max(start, other_start), min(stop, other_stop)

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        return self.a.whole(rows, cols, shape) and self.b.whole(rows, cols, shape)

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        return self.a.visible(i, j, shape) & self.b.visible(i, j, shape)

    @property
    def T(self) -> Mask:
        return self.a.T & self.b.T


class Or(Pair):
    """What either mask shows."""

    def bounds(self, rows: slice, shape: Shape) -> tuple[int, int]:
        (start, stop), (other_start, other_stop) = self.a.bounds(rows, shape), self.b.bounds(rows, shape)
        return min(start, other_start), max(stop, other_stop)

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        return self.a.visible(i, j, shape) | self.b.visible(i, j, shape)

    @property
    def T(self) -> Mask:
        return self.a.T | self.b.T


@dataclass(frozen=True)
class Transposed(Mask):
    """A mask with queries and keys exchanged."""

    mask: Mask

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        return self.mask.whole(cols, rows, shape[::-1])

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        return self.mask.visible(j, i, shape[::-1])

    @property
    def T(self) -> Mask:
        return self.mask


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """The pairs for which ``seen`` [Nq, Nk] is True."""

    seen: np.ndarray

    def __post_init__(self) -> None:
        if not isinstance(self.seen, np.ndarray) or self.seen.dtype != bool or self.seen.ndim != 2:
            raise TypeError(f"seen must be a boolean array [Nq, Nk], True where a key is seen, got {shown(self.seen)}")

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        if self.seen.shape != tuple(shape):
            raise ValueError(f"expected a dense mask [Nq, Nk] = {tuple(shape)}, got {self.seen.shape}")
        return self.seen[i, j]

    @property
    def T(self) -> Mask:
        return Dense(self.seen.T)


@dataclass(frozen=True, eq=False)
class Blocks(Mask):
    """The tiles of Br x Bc scores for which ``kept`` [Tr, Tc] is True."""

    kept: np.ndarray
    Br: int
    Bc: int

    def __post_init__(self) -> None:
        if not isinstance(self.kept, np.ndarray) or self.kept.dtype != bool or self.kept.ndim != 2:
            raise TypeError(f"kept must be a boolean array [Tr, Tc], True where a tile counts, got {shown(self.kept)}")
        if not all(_is_whole(B, 1) for B in (self.Br, self.Bc)):
            sizes = f"Br = {self.Br!r:.20}, Bc = {self.Bc!r:.20}"
            raise ValueError(f"a tile has at least one row and one column, got {sizes}")

    def whole(self, rows: slice, cols: slice, shape: Shape) -> bool:
        return bool(self._part(rows, cols, shape).all())

    def visible(self, i: np.ndarray, j: np.ndarray, shape: Shape) -> np.ndarray:
        self._check(shape)
        return self.kept[i // self.Br, j // self.Bc]

    @property
    def T(self) -> Mask:
        return Blocks(self.kept.T, self.Bc, self.Br)

    def tiles(self, rows: slice, B: int, shape: Shape) -> Sequence[int]:
        cols = ((j, tile(j, B, shape[1])) for j in range(count(shape[1], B)))
        return [j for j, keys in cols if self._part(rows, keys, shape).any()]

    def _part(self, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        """Return the entries of ``kept`` that the tile ``rows`` x ``cols`` touches."""
        self._check(shape)
        return self.kept[_touched(rows, self.Br), _touched(cols, self.Bc)]

    def _check(self, shape: Shape) -> None:
        expected = count(shape[0], self.Br), count(shape[1], self.Bc)
        if self.kept.shape != expected:
            raise ValueError(f"expected blocks [Tr, Tc] = {expected}, got {self.kept.shape}")


def tile(j: int, B: int, N: int) -> slice:
    """Return the slice of tile j, of the tiles of B that cover range(N)."""
    return slice(j * B, min((j + 1) * B, N))


def _is_whole(n: object, least: int) -> bool:
    n = whole_number(n)
    return n is not None and n >= least


def _touched(part: slice, B: int) -> slice:
    """Return the slice of the tiles of B that the slice ``part`` touches."""
    return slice(part.start // B, count(part.stop, B))
