"""The tiles of queries that a tile of keys meets, in the backward kernel's order, and which of their scores count.

With keys in the outer loop, queries and keys of a mask exchange their roles. Under most masks, the queries that see a
key are an interval: that of a window is computed, that of documents is read from a table. Any other ``Rule`` has its
lists of tiles, and functions.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks
from flashlab.kernels.hopper.stages import place_of
from flashlab.kernels.masks import questions

NEVER = gl.constexpr(2**30)  # above all queries
ENDLESS = masks.Window(None, 2**28)  # its end is past all keys


class Mask(NamedTuple):
    """The kernel arguments of a mask: two ends, a table, or lists and rules."""

    left: int | None  # of a window: how many queries before its own see a key
    right: int | None  # and how many after it
    table: torch.Tensor | None  # int32 [B or 1, 2, Nk rounded up]      the first and the last query that see each key
    rules: tuple | None  # as in ``questions.KernelArgs``
    lists: torch.Tensor | None
    batch: int  # from the table or the lists of one batch to those of the next
    head: int
    length: int  # of a row of the table, or of a list


def stand_in(problem):
    """Return the mask that a kernel gets: that of the ``Problem``, or ``ENDLESS``, which hides nothing.

    ``ENDLESS`` replaces a full mask above 128 columns, and above 64 columns with many queries. Its branch keeps the
    assembler from mixing conversions with exponentials. On an H200, d = 128, this was 2 % faster at N = 4,096 and 3 %
    at 16,384; at 1,024 it was 1 % slower.
    """
    wide = max(problem.d, problem.dv)
    branch = problem.mask == masks.full() and (wide > 128 or wide > 64 and problem.Nq >= 4096)
    return ENDLESS if branch else problem.mask


def kernel_args(problem, Br, keys):
    """Return the ``Mask`` of a ``Problem`` for tiles of Br queries and this many keys."""
    mask = stand_in(problem)
    if isinstance(mask, masks.Rule):
        table = mask.cached(problem.device, ("table", keys, problem.Nq, problem.Nk), lambda: _table(problem, keys))
        if table is not None:
            return Mask(None, None, table, None, None, table.stride(0) if len(table) > 1 else 0, 0, table.shape[-1])
    left, right, *others = mask.kernel_args(problem, Br, keys, transposed=True)
    return Mask(left, right, None, *others)


def _table(problem, keys):
    interval = problem.mask.interval(problem)
    if interval is None:
        return None
    past = 0, -problem.Nk % keys  # no query sees these
    first, last = (F.pad(x, past, value=v) for x, v in zip(interval, (NEVER.value, -1), strict=True))
    return torch.stack(torch.broadcast_tensors(first, last), 1).contiguous()


class Variant(NamedTuple):
    """The values that the compiled code of a backward kernel depends on, beside its tiles."""

    ragged: bool  # some keys of a tile may be past Nk
    hides: bool  # the mask, or the end of the keys, may hide a score
    unit: float  # as in ``Problem``
    late: bool  # the second consumer leaves out the first tile of queries: see ``backward.is_late``

    @classmethod
    def of(cls, problem, mask, keys, late=False):
        """Return the ``Variant`` for tiles of this many keys. mask: of the problem, or its ``stand_in``."""
        ragged = problem.Nk % keys != 0
        return cls(ragged, ragged or mask != masks.full(), problem.unit, late)


class Work(NamedTuple):
    """The work of a turn: a tile of keys, for all query heads that share a key/value head."""

    j: gl.tensor  # the tile
    b: gl.tensor
    hk: gl.tensor
    H: gl.tensor
    begin: gl.tensor  # without a list, tiles begin .. end of the queries of each head
    end: gl.tensor
    Nq_padded: gl.tensor
    first: gl.tensor  # the place of the first query head of this turn among the heads of the sums


class Queries(NamedTuple):
    """A tile of queries."""

    h: gl.tensor
    i: gl.tensor
    tile: gl.tensor  # the same, counted over all heads of the sums
    place: gl.tensor  # in the list of a ``Rule``
    cut: gl.tensor  # the place where the tiles end that the ``Rule`` cuts
    end: gl.tensor  # the place where the list ends


class Keys(NamedTuple):
    """The keys of a warpgroup, and the intervals of queries that see them."""

    start: gl.tensor  # the first key
    since: gl.tensor  # [Bc]      the first query that sees each key
    count: gl.tensor  # how many queries after that one see the key, too; with a table, [Bc]
    by_all: gl.tensor  # the first query that sees all keys
    till: gl.tensor  # the first query after that one that does not see all keys


@gluon.jit
def work_of(turn, turns, problem, lag, keys: gl.constexpr, Br: gl.constexpr, warps: gl.constexpr = 4):
    """Return the ``Work`` of a turn, a tile of ``keys`` keys. lag: as in ``sums``. warps: how many call this."""
    g, j = place_of(turn, turns.tiles, turns.all, turns.last)
    b, hk = g // turns.heads, g % turns.heads
    begin, end = gl.to_tensor(0), gl.to_tensor(0)  # of the queries
    if problem.mask.table is not None:
        key = j * keys + gl.arange(0, keys, layout=gl.BlockedLayout([1], [32], [warps], [0]))  # [keys]
        first, last = from_table(problem, b, key)
        begin, end = gl.min(first, 0) // Br, gl.cdiv(gl.max(last, 0) + 1, Br)
    elif problem.mask.rules is None:
        begin, end = questions.bounds(problem.mask, j * keys, keys, problem.Nk, problem.Nq)
        begin, end = gl.to_tensor(begin) // Br, gl.cdiv(end, Br)
    if lag is not None:
        g = g % (2 * lag)
    return Work(j, b, hk, turns.heads * problem.group, begin, end, turns.Nq_padded, g * problem.group)


@gluon.jit
def from_table(problem, b, key):
    """Return the first and the last query that see each key [keys]."""
    at = problem.mask.table + b * problem.mask.batch + key
    return gl.load(at), gl.load(at + problem.mask.length)


@gluon.jit
def count(work, problem):
    """Return how many tiles of queries the program meets in all heads: at least 1."""
    if problem.mask.rules is None:
        return (work.end - work.begin) * problem.group
    else:
        tiles = 0
        for member in range(problem.group):
            _, end = places(work, problem, work.hk * problem.group + member)
            tiles += end
        return tiles


@gluon.jit
def places(work, problem, h):
    """Return where, in the list of head h, the tiles end that a ``Rule`` cuts, and where the list ends."""
    at = questions.listed(problem.mask, work.b, h, work.j)
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def span(work, problem, h):
    """Return the first place of head h and one past the last: in its list, or if it has none, among its tiles."""
    begin, end = work.begin, work.end
    if problem.mask.rules is not None:
        _, end = places(work, problem, h)
    return begin, end


@gluon.jit
def at(work, problem, h, place):
    """Return the tile of queries at a place of the list of head h; if there is no list, that is the place."""
    if problem.mask.rules is None:
        return place
    else:
        return gl.load(questions.listed(problem.mask, work.b, h, work.j) + 2 + place)


@gluon.jit
def first(work, problem, Br: gl.constexpr):
    """Return the first ``Queries`` that the program meets."""
    h = work.hk * problem.group
    tile = work.first * (work.Nq_padded // Br)
    if problem.mask.rules is None:
        return Queries(h, work.begin, tile + work.begin, 0, 0, 0)
    else:
        cut, end = places(work, problem, h)
        i = at(work, problem, h, 0)
        return Queries(h, i, tile + i, gl.to_tensor(0), cut, end)


@gluon.jit
def following(queries, work, problem, Br: gl.constexpr):
    """Return the ``Queries`` after these: of the same head, or the first ones of the next."""
    h, i, tile, place, cut, end = queries
    if problem.mask.rules is None:
        i += 1
        tile += 1
        if i == work.end:
            i = work.begin
            tile += work.Nq_padded // Br - (work.end - work.begin)
            h += 1
    else:
        place += 1
        if place == end:
            place, h = 0, h + 1
            cut, end = places(work, problem, h)
        i = at(work, problem, h, place)
        tile = (work.first + h - work.hk * problem.group) * (work.Nq_padded // Br) + i
    return Queries(h, i, tile, place, cut, end)


@gluon.jit
def keys_of(problem, b, start, rows: gl.constexpr, ragged: gl.constexpr, layout: gl.constexpr):
    """Return the ``Keys`` of the rows from ``start`` on. ragged: some may be past Nk, where no query sees them."""
    key = start + gl.arange(0, rows, layout=layout)  # [Bc]
    own = problem.Nq - problem.Nk
    since = gl.zeros([rows], gl.int32, layout)  # [Bc]
    by_all = gl.to_tensor(0)
    seen, till = by_all, by_all
    if problem.mask.left is not None:
        since = key + own - problem.mask.left  # [Bc]
        by_all = start + rows - 1 + own - problem.mask.left
    if problem.mask.right is not None:
        left = NEVER if problem.mask.left is None else problem.mask.left
        since = key + own - left  # [Bc]
        seen = left + problem.mask.right
        till = start + own + problem.mask.right + 1
    if problem.mask.table is not None:
        since, last = from_table(problem, b, key)
        by_all, till, seen = gl.max(since, 0), gl.min(last, 0) + 1, last - since
    elif ragged:
        since = gl.where(key < problem.Nk, since, NEVER)  # [Bc]
        by_all = gl.where(start + rows > problem.Nk, NEVER, by_all)
    return Keys(start, since, seen, by_all, till)


@gluon.jit
def are_cut(queries, keys, problem, Br: gl.constexpr):
    """Return whether some of these queries may not see some of these keys."""
    if problem.mask.rules is not None:
        return queries.place < queries.cut
    elif problem.mask.right is None and problem.mask.table is None:
        return queries.i * Br < keys.by_all
    else:
        return (queries.i * Br < keys.by_all) | (queries.i * Br + Br > keys.till)


@gluon.jit
def hide(Pt_ij, queries, keys, work, problem, ragged: gl.constexpr):
    """Return the weights Pt_ij [Bc, Br] with 0 where the query does not see the key."""
    i, j = rows_and_columns(queries, keys, Pt_ij)
    if problem.mask.rules is not None:
        seen = questions.visible(problem.mask, work.b, queries.h, i, j, problem.Nq, problem.Nk, ragged, True)
    elif problem.mask.table is not None:
        seen = (i - keys.since[:, None]).to(gl.uint32) <= keys.count.to(gl.uint32)[:, None]
    elif problem.mask.right is None:
        seen = i >= keys.since[:, None]
    else:  # one comparison for both ends: before the first query, an unsigned difference is large
        seen = (i - keys.since[:, None]).to(gl.uint32) <= keys.count.to(gl.uint32)
    return gl.where(seen, Pt_ij, 0.0)


@gluon.jit
def rows_and_columns(queries, keys, tile):
    """Return the queries [1, Br] and the keys [Bc, 1] of a tile of scores [Bc, Br]."""
    i = gl.arange(0, tile.shape[1], layout=gl.SliceLayout(0, tile.type.layout))  # [Br]
    j = gl.arange(0, tile.shape[0], layout=gl.SliceLayout(1, tile.type.layout))  # [Bc]
    return (queries.i * tile.shape[1] + i)[None, :], (keys.start + j)[:, None]
