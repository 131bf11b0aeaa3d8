"""Masks: which queries see which keys. A mask answers three questions, and a loop over tiles asks nothing else of it.

met      Which tiles does some query of a tile see? The others are never loaded.
whole    Which of them does every query see in full? These need no mask.
visible  Which scores of the remaining tiles count? This is the definition.

A ``Window`` answers by arithmetic: the keys that a tile of queries sees are one interval. Every other mask is a
``Rule``: a function in Triton decides on each pair of a query and a key, and the tiles that it meets are listed before
the launch. ``&`` and ``|`` combine masks: they combine the answers to each question by the same ``&`` and ``|``.

The names and the convention are those of ``reference.masks``. Masks are aligned at the lower right: query i is at the
position i + Nk - Nq among the keys. Both ends of a window are inclusive, and a query's own key counts: Hugging Face's
"window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is ``window(left, right)``.
"""

import functools
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from flashlab.kernels import tiles

FARTHEST = 2**29  # keys: no sequence is longer, and sums of a few such numbers fit 32 bits


class Window(NamedTuple):
    """Keys from ``left`` before a query's own key to ``right`` after it, both included; None: no end."""

    left: int | None = None
    right: int | None = None

    def __and__(self, other):
        return _both(self, other)

    def __or__(self, other):
        return _any(self, other)

    @property
    def shows_own_key(self):
        """Whether a query sees the key at its position."""
        return True

    @property
    def T(self):
        """The same mask with queries and keys exchanged."""
        return Window(self.right, self.left)

    @property
    def terms(self):
        """The mask as a union of intersections, as ``Rule`` has it."""
        return ((self,),)

    def tiles(self, grid):
        own, j = grid.i + grid.Nk - grid.Nq, grid.j  # [.., Tr, 1], [1, Tc]
        left, right = (FARTHEST if end is None else end for end in self)
        met = (j + grid.Bc > own - left) & (j <= own + grid.Br - 1 + right)  # [.., Tr, Tc]
        return met, (j >= own + grid.Br - 1 - left) & (j + grid.Bc - 1 <= own + right)

    def interval(self, problem):
        own = torch.arange(problem.Nq - problem.Nk, problem.Nq, device=problem.device)[None]  # [1, Nk]
        left, right = (FARTHEST if end is None else end for end in self)
        return own - right, own + left

    def keys(self, problem):
        own = torch.arange(problem.Nk - problem.Nq, problem.Nk, device=problem.device)[None]  # [1, Nq]
        left, right = (FARTHEST if end is None else end for end in self)
        return own - left, own + right

    def told(self, problem):
        if self.left is None:
            return up_to, FARTHEST if self.right is None else self.right
        return between, self.left, FARTHEST if self.right is None else self.right


class Grid(NamedTuple):
    """The tiles of a problem, for which a mask says what they are."""

    Nq: int
    Nk: int
    Br: int
    Bc: int
    i: torch.Tensor  # [Tr, 1]  the first query of each tile
    j: torch.Tensor  # [1, Tc]  the first key

    @classmethod
    def of(cls, problem, Br, Bc):
        i, j = (
            torch.arange(0, tiles.count(N, size) * size, size, device=problem.device)
            for N, size in ((problem.Nq, Br), (problem.Nk, Bc))
        )
        return cls(problem.Nq, problem.Nk, Br, Bc, i[:, None], j[None])


class Rule:
    """A mask in terms: a query sees a key if, in at least one term, every part says so.

    Each part is a ``Window``, ``Documents``, ``First``, ``Padding``, ``Pattern`` or ``Custom``. Lists of tiles, and
    what else follows from the terms, are kept for the next call, until a tensor changes.
    """

    def __init__(self, terms):
        self.terms = terms
        self._kept = {}

    def __and__(self, other):
        return _both(self, other)

    def __or__(self, other):
        return _any(self, other)

    def __repr__(self):
        return " | ".join(" & ".join(type(part).__name__ for part in term) for term in self.terms)

    def tiles(self, grid):
        """Return which tiles are met, and which are whole: boolean, broadcastable to [B, H, Tr, Tc].

        A tile may be called met though nobody sees it, and not whole though everybody does; never the other way round.
        """
        met = whole = torch.zeros_like(grid.i, dtype=torch.bool)
        for term in self.terms:
            answers = [part.tiles(grid) for part in term]
            term_met, term_whole = (_all(answer) for answer in zip(*answers, strict=True))
            met, whole = met | term_met, whole | term_whole
        return met, whole

    def lists(self, problem, Br, Bc, transposed):
        """Return the lists of tiles, int32 [B or 1, H or 1, Tr, 2 + Tc].

        Each begins with the number of tiles that need the mask and the number of all tiles; these follow, first those
        that need it. transposed: one list per tile of keys, [B or 1, H or 1, Tc, 2 + Tr].
        """
        key = Br, Bc, transposed, problem.Nq, problem.Nk
        return self.kept(key, lambda: self._make_lists(problem, Br, Bc, transposed))

    def kept(self, key, make):
        """Return what ``make`` makes for this key, from an earlier call if no tensor has changed since."""
        tensors = [x for term in self.terms for part in term for x in getattr(part, "tensors", ())]
        key = *key, *(x._version for x in tensors)
        if key not in self._kept:
            if len(self._kept) >= 64:
                self._kept.clear()
            self._kept[key] = make()
        return self._kept[key]

    def _make_lists(self, problem, Br, Bc, transposed):
        grid = Grid.of(problem, Br, Bc)
        met, whole = self.tiles(grid)
        met = met.expand(torch.broadcast_shapes(met.shape, (len(grid.i), grid.j.shape[1])))  # [.., Tr, Tc]
        whole = whole & met & (grid.j + Bc <= grid.Nk)
        met, whole = (x[(None,) * (4 - x.dim())] for x in (met, whole))
        if transposed:
            met, whole = met.mT, whole.mT
        kinds = torch.where(met, whole.int(), 2)  # 0: cut, 1: whole, 2: not met
        order = kinds.argsort(dim=-1, stable=True)
        counts = torch.stack([(kinds < kind).sum(-1) for kind in (1, 2)], -1)  # [.., 2]
        return torch.cat([counts, order], -1).int()

    def interval(self, problem):
        """Return the first and the last query that see each key, int32 [B or 1, Nk] each; ``FARTHEST`` and -1: none.

        None: there may be others between them that do not.
        """
        return self._ends("interval", problem, problem.Nq)

    def keys(self, problem):
        """Return the first and the last key that each query sees, int32 [B or 1, Nq] each; ``FARTHEST`` and -1: none.

        None: there may be others between them that it does not see.
        """
        return self.kept(("keys", problem.Nq, problem.Nk), lambda: self._ends("keys", problem, problem.Nk))

    def _ends(self, name, problem, N):
        """Return the ends of the intervals, of N places, that a method of the parts tells; None if they are none."""
        if not all(hasattr(part, name) for term in self.terms for part in term):
            return None
        intervals = [_intersection([getattr(part, name)(problem) for part in term], N) for term in self.terms]
        union = intervals[0]
        for interval in intervals[1:]:
            union = _union(union, interval)
        return union and tuple(x.int() for x in union)

    def told(self, problem, Br, Bc, transposed):
        """Return the mask as the kernels take it."""
        lists = self.lists(problem, Br, Bc, transposed)
        batch, head = (lists.stride(dim) if lists.shape[dim] > 1 else 0 for dim in (0, 1))
        return Told(None, None, self.functions(problem), lists, batch, head, lists.shape[-1])

    def functions(self, problem):
        """Return, per term, per part, a function in Triton and its arguments."""
        return tuple(tuple(part.told(problem) for part in term) for term in self.terms)


class Told(NamedTuple):
    """A mask as the kernels take it."""

    left: int | None  # of a window
    right: int | None
    rules: tuple | None = None  # of a ``Rule``: per term, per part, a function in Triton and its arguments
    lists: torch.Tensor | None = None  # of tiles, as ``Rule.lists``
    batch: int = 0  # from the lists of one batch to those of the next
    head: int = 0
    length: int = 0  # of a list


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


def documents(ids: torch.Tensor | None = None, *, offsets: torch.Tensor | None = None) -> Rule:
    """Return the mask by which a query sees the keys of its own document.

    ids: integers [Nk] or [B, Nk], the document of each key; or else offsets, integers [documents + 1]: document n has
    the keys offsets[n] to offsets[n + 1] - 1. Query i is in the document of the key at its position. Documents are
    usually combined: ``documents(ids) & causal()``.

    Raises:
        TypeError, ValueError: both or none are given, or no integers, or ones of other dimensions.
    """
    if (ids is None) == (offsets is None):
        raise TypeError("documents takes either ids or offsets")
    if ids is None:
        offsets = _integers(offsets, "offsets", (1,))
        ids = torch.bucketize(torch.arange(int(offsets[-1]), device=offsets.device), offsets[1:], right=True)  # [Nk]
    return _rule(Documents(_integers(ids, "ids", (1, 2))))


def sinks(n: int) -> Rule:
    """Return the mask by which every query sees the first n keys, and no others: to be combined by ``|`` and ``&``.

    ``causal() & (window(W - 1) | sinks(4))`` is the mask of StreamingLLM.
    """
    return _rule(First(_whole_number(n, "sinks")))


def prefix(n: int) -> Rule:
    """Return the mask of a prefix language model: all see the first n keys; otherwise it is causal."""
    return _rule(First(_whole_number(n, "the prefix"))) | causal()


def padding(lengths: torch.Tensor) -> Rule:
    """Return the mask by which the queries of batch b see the first lengths[b] keys; lengths: integers [B]."""
    return _rule(Padding(_integers(lengths, "lengths", (1,))))


def blocks(kept: torch.Tensor, Br: int, Bc: int) -> Rule:
    """Return the mask that keeps or hides whole tiles of Br x Bc scores (block-sparse attention).

    kept: boolean [.., Tr, Tc], True where the tile counts; dimensions before these are heads, and batches. The kernels'
    tiles may have other sizes.

    Source: FlashAttention, section 3.3.
    """
    if not all(isinstance(size, int) and size >= 1 for size in (Br, Bc)):
        raise ValueError(f"a tile has at least one row and one column, got Br = {Br!r:.20}, Bc = {Bc!r:.20}")
    return _rule(Pattern(_boolean(kept, "kept"), Br, Bc))


def dense(seen: torch.Tensor) -> Rule:
    """Return the mask that is written out: boolean, broadcastable to [B, H, Nq, Nk], True where a key is seen."""
    return _rule(Pattern(_boolean(seen, "a dense mask"), 1, 1))


def custom(visible, *arguments) -> Rule:
    """Return a mask of your own.

    visible: a ``@triton.jit`` function (b, h, i, j, Nq, Nk, *arguments) that returns whether query i sees key j, where
        i and j are blocks of places that broadcast, such as [Br, 1] and [1, Bc], always below Nq and Nk; b is a number,
        and so is h, but in ``decode`` h is a block as i is.
    arguments: tensors, which the function receives as pointers, and numbers.

    No tile is skipped unless another mask says so: ``custom(...) & window(100)``.
    """
    if not hasattr(visible, "fn"):
        raise TypeError(f"visible must be a @triton.jit function, got {visible!r:.40}")
    return _rule(Custom(visible, arguments))


def _rule(part):
    return Rule(((part,),))


def _both(a, b):
    """Return the intersection: of two windows a window, otherwise each term of one with each of the other."""
    if not isinstance(b, (Window, Rule)):
        return NotImplemented
    terms = [_merged(x + y) for x, y in itertools.product(a.terms, b.terms)]
    return _simplest(terms)


def _any(a, b):
    """Return the union."""
    if not isinstance(b, (Window, Rule)):
        return NotImplemented
    return _simplest([*a.terms, *b.terms])


def _simplest(terms):
    """Return the mask of these terms: a ``Window`` if it is one."""
    if any(term == (full(),) for term in terms):
        return full()
    if len(terms) == 1 and len(terms[0]) == 1 and isinstance(terms[0][0], Window):
        return terms[0][0]
    return Rule(tuple(terms))


def _merged(parts):
    """Return the parts of a term with all windows made one, and each other part once."""
    windows = [part for part in parts if isinstance(part, Window)]
    others = list(dict.fromkeys(part for part in parts if not isinstance(part, Window)))
    narrowest = Window(
        *(min((end for end in ends if end is not None), default=None) for ends in zip(*windows, strict=True))
    ) if windows else full()  # fmt: skip
    return tuple(others if others and narrowest == full() else [*others, narrowest])


def _intersection(intervals, N):
    """Return the first and the last of N places that all intervals have; ``FARTHEST`` and -1: none. None if one is."""
    if None in intervals:
        return None
    firsts, lasts = zip(*intervals, strict=True)
    first = functools.reduce(torch.maximum, firsts).clamp(min=0)
    last = functools.reduce(torch.minimum, lasts).clamp(max=N - 1)
    none = first > last
    return first.masked_fill(none, FARTHEST), last.masked_fill(none, -1)


def _union(a, b):
    """Return the union of such intervals; None if either is, or if places between two belong to neither."""
    if a is None or b is None:
        return None
    apart = torch.maximum(a[0], b[0]) > torch.minimum(a[1], b[1]) + 1
    if (apart & (a[1] >= 0) & (b[1] >= 0)).any():
        return None
    return torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1])


def _all(answers):
    """Return the conjunction of tensors that broadcast."""
    result = answers[0]
    for answer in answers[1:]:
        result = result & answer
    return result


def _end(end):
    if isinstance(end, float) and end == math.inf:
        return None
    if isinstance(end, bool) or not hasattr(end, "__index__") or end < 0:
        raise ValueError(f"a window's ends are whole numbers from 0 on, or math.inf, got {end!r:.40}")
    return min(int(end), FARTHEST)


def _whole_number(n, name):
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 0:
        raise ValueError(f"{name}: expected a whole number of keys from 0 on, got {n!r:.40}")
    return min(int(n), FARTHEST)


def _integers(x, name, dims):
    if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of integers, got {getattr(x, 'dtype', type(x).__name__)}")
    if x.dim() not in dims:
        raise ValueError(f"{name} must have {' or '.join(map(str, dims))} dimensions, got shape {list(x.shape)}")
    return x


def _boolean(x, name):
    if not isinstance(x, torch.Tensor) or x.dtype != torch.bool:
        raise TypeError(f"{name} must be a boolean tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    if not 2 <= x.dim() <= 4:
        raise ValueError(f"{name} must have 2 to 4 dimensions, the last of queries and of keys, got {list(x.shape)}")
    return x


def either(causal_mask, mask) -> Window | Rule:
    """Return the mask that the arguments ``causal`` and ``mask`` of a call ask for.

    Raises:
        TypeError, ValueError: causal is not a bool, mask was not made here, or both are given.
    """
    if not isinstance(causal_mask, bool):
        raise TypeError(f"causal must be True or False, got {causal_mask!r:.40}")
    if mask is None:
        return causal() if causal_mask else full()
    if not isinstance(mask, (Window, Rule)):
        raise TypeError(f"mask must be None or made by flashlab.kernels.masks, such as causal(), got {mask!r:.40}")
    if causal_mask:
        raise ValueError("causal=True is short for mask=masks.causal(): give one of the two, or masks.causal() & mask")
    return mask


def parts(mask):
    """Return all parts of a mask, and those of the mask inside packed texts."""
    own = [*itertools.chain(*mask.terms)]
    return [*own, *(part for x in own if hasattr(x, "mask") for part in parts(x.mask))]


def shows_own_key(mask) -> bool:
    """Return whether every query that has a key at its position sees it."""
    return any(all(getattr(part, "shows_own_key", False) for part in term) for term in mask.terms)


def hides_keys(mask, problem) -> bool:
    """Return whether there may be keys that no query sees."""
    if problem.Nq >= problem.Nk and shows_own_key(mask):  # and every key is some query's own
        return False
    return isinstance(mask, Rule) or mask.left is not None


def check(mask, problem):
    """Raise ValueError if a tensor of the mask does not fit the problem."""
    for part in itertools.chain(*mask.terms):
        if hasattr(part, "check"):
            part.check(problem)


def launches(problem, *options):
    """Return a dict for the launches of a problem with these options, which lasts as long as its ``Rule``.

    None: there is no rule, or more that changes scores or weights.
    """
    if isinstance(problem.mask, Window):
        return None
    rest = problem._replace(mask=full(), texts=None)
    return problem.mask.kept(("launches", rest, *options), dict) if rest.plain else None


def told(mask, problem, Br, Bc, transposed=False):
    """Return a mask as the kernels take it, for tiles of this size.

    transposed: for a loop with the keys outside, which asks with queries and keys exchanged.
    """
    if isinstance(mask, Window):
        return Told(*(mask.T if transposed else mask))
    return mask.told(problem, Br, Bc, transposed)


# The parts of a rule. Each has the tiles that it meets, and a function in Triton that says what is visible.


class Documents:
    """Keys of the query's own document."""

    shows_own_key = True

    def __init__(self, ids):
        self.tensors = (ids if ids.dim() == 2 else ids[None],)

    def check(self, problem):
        expected = [problem.B, problem.Nk]
        (ids,) = self.tensors
        if ids.shape[1] != expected[1] or ids.shape[0] not in (1, expected[0]) or ids.device != problem.device:
            raise ValueError(
                f"ids must be [Nk] or [B, Nk] = {expected} on {problem.device}, got {list(ids.shape)} on {ids.device}"
            )

    def tiles(self, grid):
        keys = self.tensors[0][:, None, None]  # [B or 1, 1, 1, Nk]
        own = torch.arange(grid.Nk - grid.Nq, grid.Nk, device=keys.device).clamp(0)  # [Nq]
        queries = keys[..., own]  # [B or 1, 1, 1, Nq]
        low, high = (x.mT for x in extremes(queries, grid.Br))  # [B or 1, 1, Tr, 1] each
        first, last = extremes(keys, grid.Bc)  # [B or 1, 1, 1, Tc] each
        one = (low == high) & (first == last) & (low == first)
        return (low <= last) & (first <= high), one & (grid.i + grid.Nk - grid.Nq >= 0)

    def interval(self, problem):
        ends = self._ends()
        return ends and tuple(end + problem.Nq - problem.Nk for end in ends)

    def keys(self, problem):
        own = torch.arange(problem.Nk - problem.Nq, problem.Nk, device=problem.device)  # [Nq]
        if ends := self._ends():
            first, last = (end[:, own.clamp(0)] for end in ends)
            return first.masked_fill(own < 0, FARTHEST), last
        return None

    def _ends(self):
        """Return the first and the last key of each key's document, [B or 1, Nk] each; None if one is in pieces."""
        ids = self.tensors[0]  # [B or 1, Nk]
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        changes = (ids.diff() != 0).int()  # [B or 1, Nk - 1]
        if not torch.equal(changes.sum(-1), (ids.sort(-1)[0].diff() != 0).sum(-1)):
            return None  # a document in two pieces
        number = F.pad(changes.cumsum(-1), (1, 0))  # [B or 1, Nk]      of each key's document
        first = torch.full_like(places, ids.shape[1]).scatter_reduce(1, number, places, "amin").gather(1, number)
        last = torch.zeros_like(places).scatter_reduce(1, number, places, "amax").gather(1, number)
        return first, last

    def told(self, problem):
        ids = self.tensors[0]
        return same_document, ids, ids.stride(0) if len(ids) > 1 else 0, ids.stride(1)


def extremes(ids, size):
    """Return the least and the greatest id of each tile of this size, of the last dimension."""
    missing = -ids.shape[-1] % size
    ids = torch.cat([ids, ids[..., -1:].expand(*ids.shape[:-1], missing)], -1)  # the last one again
    return ids.unflatten(-1, (-1, size)).aminmax(dim=-1)


class First:
    """The first n keys."""

    def __init__(self, n):
        self.n = n

    def tiles(self, grid):
        return grid.j < self.n, grid.j + grid.Bc <= self.n

    def interval(self, problem):
        j = torch.arange(problem.Nk, device=problem.device)[None]  # [1, Nk]
        return 0 * j, torch.where(j < self.n, problem.Nq - 1, -1)

    def keys(self, problem):
        i = torch.arange(problem.Nq, device=problem.device)[None]  # [1, Nq]
        return 0 * i, 0 * i + self.n - 1

    def told(self, problem):
        return among_the_first, self.n


class Padding:
    """The first keys, as many as each batch has."""

    def __init__(self, lengths):
        self.tensors = (lengths,)

    def check(self, problem):
        (lengths,) = self.tensors
        if len(lengths) != problem.B or lengths.device != problem.device:
            raise ValueError(
                f"lengths must be [B] = [{problem.B}] on {problem.device}, "
                f"got {list(lengths.shape)} on {lengths.device}"
            )

    def tiles(self, grid):
        lengths = self.tensors[0][:, None, None, None]  # [B, 1, 1, 1]
        return grid.j < lengths, grid.j + grid.Bc <= lengths

    def told(self, problem):
        return not_padding, self.tensors[0], self.tensors[0].stride(0)


class Pattern:
    """A boolean tensor, with one element per tile of Br x Bc scores."""

    def __init__(self, kept, Br, Bc):
        self.tensors, self.Br, self.Bc = (kept,), Br, Bc

    def check(self, problem):
        (kept,) = self.tensors
        expected = problem.B, problem.H, tiles.count(problem.Nq, self.Br), tiles.count(problem.Nk, self.Bc)
        fits = all(size in (1, whole) for size, whole in zip(kept.shape[::-1], expected[::-1], strict=False))
        if not fits or kept.device != problem.device:
            raise ValueError(
                f"the mask must be broadcastable to {list(expected)} on {problem.device}, "
                f"got {list(kept.shape)} on {kept.device}"
            )

    def tiles(self, grid):
        (kept,) = self.tensors
        starts, ends, sizes = [], [], (self.Br, self.Bc)  # per dimension, of the elements that each tile touches
        for first, N, B, size in zip((grid.i, grid.j.mT), (grid.Nq, grid.Nk), (grid.Br, grid.Bc), sizes, strict=True):
            starts.append(first // size)  # [tiles, 1]
            ends.append(tiles.count((first + B).clamp(max=N), size))
        kept = kept.expand(*kept.shape[:-2], *map(tiles.count, (grid.Nq, grid.Nk), sizes))
        sums = F.pad(kept.cumsum(-1).cumsum(-2), (1, 0, 1, 0))  # [.., rows + 1, columns + 1]
        (r0, c0), (r1, c1) = ((rows, columns.mT) for rows, columns in (starts, ends))
        count = sums[..., r1, c1] - sums[..., r0, c1] - sums[..., r1, c0] + sums[..., r0, c0]  # [.., Tr, Tc]
        return count > 0, count == (r1 - r0) * (c1 - c0)

    def told(self, problem):
        (kept,) = self.tensors
        steps = (0,) * (4 - kept.dim()) + tuple(kept.stride(n) if s > 1 else 0 for n, s in enumerate(kept.shape))
        return in_pattern, kept, *steps, self.Br, self.Bc


class Custom:
    """A function in Triton of the user's."""

    def __init__(self, visible, arguments):
        self.visible, self.arguments = visible, arguments
        self.tensors = tuple(x for x in arguments if isinstance(x, torch.Tensor))

    def tiles(self, grid):
        met = torch.ones_like(grid.i, dtype=torch.bool)
        return met, ~met

    def told(self, problem):
        return self.visible, *self.arguments


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
def same_document(b, h, i, j, Nq, Nk, ids, batch, step):
    """Return whether query i and key j belong to the same document. A query before the first key has none."""
    ids += tl.cast(b, tl.int64) * batch
    own = i + Nk - Nq
    return (tl.load(ids + tl.maximum(own, 0) * step) == tl.load(ids + j * step)) & (own >= 0)


@triton.jit
def among_the_first(b, h, i, j, Nq, Nk, n):
    """Return whether key j is one of the first n."""
    return j < n


@triton.jit
def not_padding(b, h, i, j, Nq, Nk, lengths, step):
    """Return whether key j is within the length of its text."""
    return j < tl.load(lengths + b * step)


@triton.jit
def in_pattern(b, h, i, j, Nq, Nk, kept, batch, head, row, column, Br, Bc):
    """Return whether the pattern keeps the tile of query i and key j."""
    kept += tl.cast(b, tl.int64) * batch + tl.cast(h, tl.int64) * head
    return tl.load(kept + (i // Br).to(tl.int64) * row + (j // Bc).to(tl.int64) * column) != 0


# The questions, in Triton


@triton.jit
def bounds(mask, start, size: tl.constexpr, Nq, Nk):
    """Return begin and end (excluded) of the keys that some query of start .. start + size sees, in a window."""
    begin = 0
    end = Nk
    if mask.left is not None:
        begin = tl.maximum(start + Nk - Nq - mask.left, 0)
    if mask.right is not None:
        end = tl.minimum(start + size + Nk - Nq + mask.right, Nk)
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
    """Return which of the queries i see which of the keys j: [Br, Bc], or what broadcasts to it.

    i and j: places in the whole matrix, [Br, 1] and [1, Bc]; transposed: [1, Br] and [Bc, 1], with a window whose ends
    are exchanged. ragged: some of the keys may be past Nk. The mask hides something, or this is True.
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
def forget(X_j, seen):
    """Return a tile of keys or values [Bc, ..] with 0 for those that no query sees: 0 * NaN would be NaN."""
    some = tl.max(tl.broadcast_to(seen, [seen.shape[0], X_j.shape[0]]).to(tl.int32), 0)  # [Bc]
    return tl.where(some[:, None] != 0, X_j, 0.0).to(X_j.dtype)


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


@triton.jit
def ranges(mask, b, h, start, size: tl.constexpr, Bc: tl.constexpr, Nq, Nk, ragged: tl.constexpr):
    """Return the four ends of the loop's three ranges: tiles that need the mask, whole ones, some that need it.

    Of a window they are ends of keys, and tiles of Bc keys begin at multiples of Bc. Of a ``Rule`` they are places in
    a list. ragged: the last tile reaches past Nk and what it holds there must be masked, too. A range that a mask never
    has is empty for the compiler as well, which then drops its loop.
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
        if mask.right is not None or ragged:
            whole_end = tl.maximum(whole_end // Bc * Bc, whole_begin)
        return begin, whole_begin, whole_end, end


@triton.jit
def listed(mask, b, h, n):
    """Return a pointer to the list of tile n."""
    return mask.lists + tl.cast(b, tl.int64) * mask.batch + tl.cast(h, tl.int64) * mask.head + n * mask.length


@triton.jit
def first_of(mask, b, h, n, place, Bc: tl.constexpr):
    """Return where the tile at this place of a range begins; n: the tile whose loop it is."""
    if mask.rules is not None:
        return tl.load(listed(mask, b, h, n) + place) * Bc
    else:
        return place


@triton.jit
def step(mask, Bc: tl.constexpr):
    """Return the distance between two places of a range."""
    return Bc if mask.rules is None else 1
