"""The work of a program of the forward kernels: its tiles, the blocks of keys each meets, and which scores count."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels.hopper import scores
from flashlab.kernels.hopper.arguments import Request
from flashlab.kernels.hopper.scores import LATER, blocks, end_of, hide, hide_before, hide_outside


class Work(NamedTuple):
    """The work of a program: its lines of the table of ``schedule``, and the sizes of the problem."""

    table: gl.tensor
    first: gl.tensor
    count: gl.tensor
    H: gl.tensor
    Nq: gl.tensor
    Nk: gl.tensor
    Tr: gl.tensor  # tiles of a head
    factor: gl.tensor  # as in ``Problem``; after a score function, that of ``scores.factors``
    request: Request


class Tile(NamedTuple):
    """Rows of Q, of a whole tile or of one warpgroup, and the keys that they meet."""

    start: gl.tensor  # the first row
    end: gl.tensor  # one past the last row of the whole tile
    b: gl.tensor
    h: gl.tensor
    hk: gl.tensor
    blocks: gl.tensor  # of keys: how many
    first: gl.tensor  # the leftmost of them
    since: gl.tensor  # with a table of intervals: the first key that all queries of the whole tile see
    till: gl.tensor  # and the last one


@gluon.jit
def lines_of(starts):
    """Return the first of this program's lines in the table, and how many there are."""
    first = gl.load(starts + gl.program_id(0))
    return first, gl.load(starts + gl.program_id(0) + 1) - first


@gluon.jit
def tile_of(work, t, Br: gl.constexpr, Bc: gl.constexpr, variant: gl.constexpr):
    """Return the program's t-th ``Tile``.

    If windows have a right end, tiles are aligned at the last row: then the incomplete tile of a head is the first one,
    which has the least work. Otherwise tiles are aligned at the first row.
    """
    columns: gl.constexpr = 4 if work.request.intervals is None else 8
    line = work.table + (work.first + t) * columns
    i, b, h, hk = gl.load(line), gl.load(line + 1), gl.load(line + 2), gl.load(line + 3)
    start = i * Br
    end = work.Nq
    if variant.mask.right is not None:
        end = work.Nq - (work.Tr - 1 - i) * Br
        start = end - Br
    if work.request.intervals is not None:
        first, count, since, till = gl.load(line + 4), gl.load(line + 5), gl.load(line + 6), gl.load(line + 7)
        return Tile(start, end, b, h, hk, count, first, since, till)
    else:
        first, last = blocks(variant, work.request.mask, start, Br, Bc, work.Nq, work.Nk)
        if variant.mask.right is not None:
            start = gl.maximum(start, 0)
        return Tile(start, end, b, h, hk, last - first, first, gl.to_tensor(0), gl.to_tensor(0))


@gluon.jit
def part_of(tile, work, shared, w: gl.constexpr, variant: gl.constexpr):
    """Return the part of a ``Tile`` for warpgroup w, and the number of blocks that it skips on the right: 0 or 1.

    Causal: it skips a block that only the rows of later warpgroups see.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    gl.static_assert(Bc >= (consumers - 1) * rows, "more than one block could be skipped")
    n = tile.blocks
    if variant.mask.right is not None and w < consumers - 1:
        end = gl.minimum(tile.start + (w + 1) * rows, tile.end)
        _, last = blocks(variant, work.request.mask, end - rows, rows, Bc, work.Nq, work.Nk)
        n = last - tile.first
    part = Tile(tile.start + w * rows, tile.end, tile.b, tile.h, tile.hk, n, tile.first, tile.since, tile.till)
    return part, tile.blocks - n


@gluon.jit
def start_of(tile, j, Bc: gl.constexpr):
    """Return the first key of a tile's j-th block. Blocks are counted from the right."""
    return (tile.first + tile.blocks - 1 - j) * Bc


@gluon.jit
def limit_of(tile, start, work, variant: gl.constexpr):
    """Return the last key that the tile's first row may see, counted from ``start``, the first key of a block."""
    last = work.Nk - 1
    if variant.mask.right is not None:
        last = tile.start + (work.Nk - work.Nq) + end_of(variant.mask.right, work.request.mask.right)
    return last - start


@gluon.jit
def shown(S_ij, tile, j, work, variant: gl.constexpr, first: gl.constexpr = False):
    """Return the scores of a tile's j-th block after the score function, and -inf where they are hidden.

    first: j is 0. The first block is the one in which the keys end, or the window of the tile's last row.
    """
    Bc: gl.constexpr = S_ij.shape[1]
    start = start_of(tile, j, Bc)
    if work.request.score is not None:
        S_ij = S_ij * work.request.scale
        S_ij = scores.apply(work.request.score, S_ij, tile.b, tile.h, tile.start, start, work.Nq, work.Nk)
    if work.request.intervals is not None:
        if first:
            S_ij = hide_outside(S_ij, work.request.intervals, tile, start, work.Nq)
        else:
            if (start < tile.since) | (start + Bc - 1 > tile.till):
                S_ij = hide_outside(S_ij, work.request.intervals, tile, start, work.Nq)
        return S_ij
    limit = limit_of(tile, start, work, variant)
    if first:
        if variant.mask.right is not None or variant.ragged:
            S_ij = hide(S_ij, limit, variant.mask.right is not None)
        if variant.mask.right == LATER and variant.ragged:
            S_ij = hide(S_ij, work.Nk - 1 - start, False)
    elif variant.crossed:
        if limit < Bc - 1:
            S_ij = hide(S_ij, limit, True)
    if variant.mask.left is not None:
        left = tile.start + (work.Nk - work.Nq) - end_of(variant.mask.left, work.request.mask.left) - start
        if left + S_ij.shape[0] > 1:  # the last row does not see the block's first key
            S_ij = hide_before(S_ij, left)
    return S_ij
