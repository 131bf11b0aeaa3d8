"""The three questions in Triton: the tiles of a loop, the tiles that need the mask, and the scores that count."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class KernelArgs(NamedTuple):
    """The kernel arguments of a mask."""

    left: int | None  # of a window
    right: int | None
    rules: tuple | None = None  # of a ``Rule``: per term, per part, a function in Triton and its arguments
    lists: torch.Tensor | None = None  # of tiles, as ``Rule.lists``
    batch: int = 0  # from the lists of one batch to those of the next
    head: int = 0
    length: int = 0  # of a list


@triton.jit
def bounds(mask, start, size: tl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the keys that some query of start .. start + size sees, in a window.

    Neither is negative, even for queries before all keys: of negative numbers, ``//`` truncates on a GPU and floors in
    numpy.
    """
    begin = 0
    end = Nk
    if mask.left is not None:
        begin = tl.maximum(start + Nk - Nq - mask.left, 0)
    if mask.right is not None:
        end = tl.maximum(tl.minimum(start + size + Nk - Nq + mask.right, Nk), 0)
    return begin, end


@triton.jit
def whole(mask, start, size: tl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the keys that every query of start .. start + size sees, in a window."""
    begin = 0
    end = Nk
    if mask.left is not None:
        begin = tl.maximum(start + size - 1 + Nk - Nq - mask.left, 0)
    if mask.right is not None:
        end = tl.minimum(start + 1 + Nk - Nq + mask.right, Nk)
    return begin, end


@triton.jit
def visible(mask, b, h, i, j, Nq, Nk, ragged: tl.constexpr, transposed: tl.constexpr = False):
    """Return which of the queries i see which of the keys j: [Br, Bc], or a shape that broadcasts to it.

    i and j: places in the whole matrix, [Br, 1] and [1, Bc]; transposed: [1, Br] and [Bc, 1], with the ends of the
    window exchanged. ragged: keys may be past Nk. Call this only if the mask hides something, or with ragged.
    """
    if mask.rules is not None:
        seen = obeyed(mask.rules, b, h, tl.minimum(i, Nq - 1), tl.minimum(j, Nk - 1), Nq, Nk)  # [Br, Bc]
        return seen & (j < Nk) if ragged else seen
    elif transposed:
        return inside(mask, j, i, Nk, Nq, ragged)
    else:
        return inside(mask, i, j, Nq, Nk, ragged)


@triton.jit
def inside(window, i, j, Nq, Nk, ragged: tl.constexpr):
    """Return which of the queries i [Br, 1] see which of the keys j [1, Bc] in a window."""
    seen = j < Nk  # [1, Bc]
    if window.right is not None:
        last = tl.minimum(i + Nk - Nq + window.right, Nk - 1)  # [Br, 1]
        seen = j <= last  # [Br, Bc]
    if window.left is not None:
        first = i + Nk - Nq - window.left  # [Br, 1]
        after = j >= first  # [Br, Bc]
        seen = seen & after if window.right is not None or ragged else after
    return seen


@triton.jit
def up_to(b, h, i, j, Nq, Nk, right):
    """Return whether key j is at most ``right`` keys after the place of query i."""
    return j <= i + Nk - Nq + right


@triton.jit
def between(b, h, i, j, Nq, Nk, left, right):
    """Return whether key j is at most ``left`` keys before the place of query i and at most ``right`` after it."""
    own = i + Nk - Nq
    return (j >= own - left) & (j <= own + right)


@triton.jit
def obeyed(rules, b, h, i, j, Nq, Nk):
    """Return whether, in some term of a ``Rule``, every part shows key j to query i: [Br, Bc]."""
    seen = False
    for term in tl.static_range(len(rules)):
        every = True
        for part in tl.static_range(len(rules[term])):
            every = every & rules[term][part][0](b, h, i, j, Nq, Nk, *rules[term][part][1:])
        seen = seen | every
    return seen


# A hidden pair adds nothing, whatever its query and its key hold. For scores, ``where`` is enough. A product of weights
# multiplies a hidden key by 0, and 0 * NaN is NaN. ``forget`` is enough where the queries of a tile belong to one text:
# then only keys that no query sees may hold anything. Where they may belong to several (``Part.keeps_apart``), a key
# that one query sees is hidden from another. There, kernels run as usual, NaN spreads over a tile of results, and a
# second launch computes such tiles again, each pair on its own: ``finite``. Registers do not suffice to do so in every
# tile.


@triton.jit
def forget(X_j, seen):
    """Return a tile of keys or values [Bc, ..] with 0 in place of keys that no query sees: 0 * NaN would be NaN."""
    some = tl.max(tl.broadcast_to(seen, [seen.shape[0], X_j.shape[0]]).to(tl.int32), 0)  # [Bc]
    return tl.where(some[:, None] != 0, X_j, 0.0).to(X_j.dtype)


@triton.jit
def finite(sums, X_j, seen):
    """Return sums [Br, ..] and a tile X_j [Bc, ..] for sums + P X_j, to which only pairs that are seen add NaN.

    The tile gets 0 in place of NaN and infinities, and the sums NaN where their row sees one.
    """
    wrong = tl.where(tl.abs(X_j.to(tl.float32)) < float("inf"), 0.0, 1.0)  # [Bc, ..]
    pairs = tl.broadcast_to(seen, [sums.shape[0], X_j.shape[0]]).to(tl.float16)  # [Br, Bc]
    count = tl.dot(pairs, wrong.to(tl.float16), out_dtype=tl.float16)  # [Br, ..]      at most Bc, which float16 holds
    return tl.where(count > 0, float("nan"), sums), tl.where(wrong > 0, 0.0, X_j).to(X_j.dtype)


@triton.jit
def ranges(mask, b, h, start, size: tl.constexpr, Bc: tl.constexpr, Nq, Nk, ragged: tl.constexpr):
    """Return the four ends of the three ranges of a loop: tiles that need the mask, whole tiles, tiles that need it.

    For a window these are ends of keys, and tiles of Bc keys begin at multiples of Bc. For a ``Rule`` they are places
    in a list. ragged: the last tile reaches past Nk, so it needs the mask, too. The compiler drops the loop of a range
    that is empty for every launch of such a mask.
    """
    if mask.rules is not None:
        at = listed(mask, b, h, start // size)
        some = tl.load(at) + 2
        every = tl.load(at + 1) + 2
        return 2, some, every, every
    else:
        begin, end = bounds(mask, start, size, Nq, Nk)
        whole_begin, whole_end = whole(mask, start, size, Nq, Nk)
        if mask.left is not None:
            begin = begin // Bc * Bc
            whole_begin = tl.minimum(tl.cdiv(whole_begin, Bc) * Bc, end)
        if mask.right is not None or ragged:  # whole_end may be negative; whole_begin is not, and wins
            whole_end = tl.maximum(whole_end // Bc * Bc, whole_begin)
        return begin, whole_begin, whole_end, end


@triton.jit
def listed(mask, b, h, n):
    """Return a pointer to the list of tile n."""
    return mask.lists + tl.cast(b, tl.int64) * mask.batch + tl.cast(h, tl.int64) * mask.head + n * mask.length


@triton.jit
def first_of(mask, b, h, n, place, Bc: tl.constexpr):
    """Return the start of the tile at this place of a range, in the loop of tile n."""
    if mask.rules is not None:
        return tl.load(listed(mask, b, h, n) + place) * Bc
    else:
        return place


@triton.jit
def step(mask, Bc: tl.constexpr):
    """Return the distance between two places of a range."""
    return Bc if mask.rules is None else 1
