"""Windows and rules: what a mask says of tiles and of queries, and how ``&`` and ``|`` combine two."""

import functools
import itertools
from typing import NamedTuple

import torch

from flashlab.kernels import tiles
from flashlab.kernels.masks.questions import Told, between, up_to

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
    what else follows from the terms, are kept for the next call, until a tensor changes in a way that torch counts:
    in place, but not through NumPy, ``.data``, a kernel of your own or a CUDA graph.
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
        read = tensors(self)
        if any(x.is_inference() for x in read):
            return make()  # such tensors do not tell when they change
        key = *key, *(x._version for x in read)
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


def tensors(mask):
    """Return the tensors that a mask reads."""
    return [x for term in mask.terms for part in term for x in getattr(part, "tensors", ())]


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
    if any(term == (Window(),) for term in terms):
        return Window()
    if len(terms) == 1 and len(terms[0]) == 1 and isinstance(terms[0][0], Window):
        return terms[0][0]
    return Rule(tuple(terms))


def _merged(parts):
    """Return the parts of a term with all windows made one, and each other part once."""
    windows = [part for part in parts if isinstance(part, Window)]
    others = list(dict.fromkeys(part for part in parts if not isinstance(part, Window)))
    narrowest = Window(
        *(min((end for end in ends if end is not None), default=None) for ends in zip(*windows, strict=True))
    ) if windows else Window()  # fmt: skip
    return tuple(others if others and narrowest == Window() else [*others, narrowest])


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
