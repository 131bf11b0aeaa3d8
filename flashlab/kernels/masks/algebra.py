"""Windows and rules, and how ``&`` and ``|`` combine them."""

import functools
import itertools
from typing import NamedTuple

import torch

from flashlab.kernels.device import stepped_around
from flashlab.kernels.masks.part import FARTHEST, Grid, Part
from flashlab.kernels.masks.questions import KernelArgs, between, up_to
from flashlab.machine.arguments import shown
from flashlab.machine.truth import NoTruth

EXPECTED = "a mask of flashlab.kernels.masks, such as causal(), or dense(seen) for a boolean tensor"
outside_graphs = stepped_around("a mask other than a window")  # its checks and lists depend on tensors


class Mask(NoTruth, Part):
    """A ``Window`` or a ``Rule``: a union of intersections of parts."""

    combine = "combine masks by & and |"
    __array_ufunc__ = None  # a numpy array on the left leaves ``&`` and ``|`` to the mask
    terms: tuple[tuple[Part, ...], ...]

    def __and__(self, other):
        return _both(self, other)

    def __or__(self, other):
        return _any(self, other)

    __rand__, __ror__ = __and__, __or__

    @property
    def parts(self):
        """All parts of the mask, and those of the masks inside packed texts."""
        own = [*itertools.chain(*self.terms)]
        return [*own, *(inner for part in own if part.mask is not None for inner in part.mask.parts)]

    @property
    def keeps_apart(self):
        """Return whether queries side by side may belong to different texts."""
        return any(part.keeps_apart for part in self.parts if part is not self)

    def hides_keys(self, problem) -> bool:
        """Return whether there may be a key that no query sees."""
        return not (problem.Nq >= problem.Nk and self.shows_own_key)  # else every key is the own key of some query

    def functions(self, problem):
        """Return, per term, per part, a function in Triton and its arguments."""
        return tuple(tuple(part.function(problem) for part in term) for term in self.terms)


class _Ends(NamedTuple):
    left: int | None = None
    right: int | None = None


class Window(Mask, _Ends):
    """Keys from ``left`` before a query's own key to ``right`` after it, both included; None: no end.

    ``check``, not the constructor, refuses other ends: Triton makes windows whose ends are types, and kernels make
    windows whose ends are variables.
    """

    _fields = _Ends._fields  # Triton looks for the names of fields in the class itself, not in its bases

    @property
    def shows_own_key(self):
        """Return whether every query that has a key at its position sees it."""
        return all(end is None or end >= 0 for end in self)

    def check(self, problem):
        """Raise ValueError if an end is neither a whole number from 0 on nor None."""
        if not all(end is None or (type(end) is int and end >= 0) for end in self):
            ends = f"left = {self.left!r:.40}, right = {self.right!r:.40}"
            raise ValueError(f"a window's ends are whole numbers from 0 on, or None, got {ends}")

    @property
    def T(self):
        """The same mask with queries and keys exchanged."""
        return Window(self.right, self.left)

    @property
    def terms(self):
        """The window as the one part of one term."""
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

    def hides_keys(self, problem):
        """Return whether there may be a key that no query sees."""
        return not (self.left is None and self.shows_own_key) and super().hides_keys(problem)

    def function(self, problem):
        if self.left is None:
            return up_to, FARTHEST if self.right is None else self.right
        return between, self.left, FARTHEST if self.right is None else self.right

    def kernel_args(self, problem, Br, Bc, transposed=False) -> KernelArgs:
        """Return the kernel arguments of the mask for tiles Br x Bc.

        transposed: for a kernel with keys in its outer loop, where queries and keys exchange their roles.
        """
        return KernelArgs(*(self.T if transposed else self))


class Shifted(Window):
    """A window in one block of a larger matrix of scores. It may be beside the diagonal: one end may be negative."""

    _fields = _Ends._fields

    def check(self, problem):
        """Accept all ends: they come from a division of the scores into blocks."""


class Rule(Mask):
    """A mask in terms: a query sees a key if, in at least one term, every part says so.

    Each part is a ``Window``, ``Documents``, ``First``, ``Padding``, ``Pattern`` or ``Custom``. Lists of tiles, and
    other results of the terms, are cached until a tensor changes in a way that torch counts: in place, but not through
    NumPy, ``.data``, a kernel of your own or a CUDA graph.
    """

    def __init__(self, terms):
        lists = isinstance(terms, tuple) and terms and all(isinstance(term, tuple) and term for term in terms)
        if not lists or not all(isinstance(part, Part) for part in itertools.chain(*terms)):
            raise TypeError(f"a rule has at least one term, a tuple of parts of a mask, got {shown(terms)}")
        self.terms = terms
        self._cached = {}

    def __reduce__(self):
        return Rule, (self.terms,)  # without the cache: tensors of a copy begin with new counts of changes

    @property
    def tensors(self):
        """The tensors of all parts."""
        return [x for term in self.terms for part in term for x in part.tensors]

    @property
    def shows_own_key(self):
        """Return whether every query that has a key at its position sees it."""
        return any(all(part.shows_own_key for part in term) for term in self.terms)

    def check(self, problem):
        """Raise ValueError if a tensor of a part does not fit the problem."""
        for part in itertools.chain(*self.terms):
            part.check(problem)

    def __repr__(self):
        return " | ".join(" & ".join(type(part).__name__ for part in term) for term in self.terms)

    def tiles(self, grid):
        met = whole = torch.zeros_like(grid.i, dtype=torch.bool)
        for term in self.terms:
            answers = [part.tiles(grid) for part in term]
            term_met, term_whole = (_all(answer) for answer in zip(*answers, strict=True))
            met, whole = met | term_met, whole | term_whole
        return met, whole

    def lists(self, problem, Br, Bc, transposed):
        """Return the lists of tiles, int32 [B or 1, H or 1, Tr, 2 + Tc].

        Each begins with the number of tiles that need the mask and the number of all tiles that are met. These follow,
        first those that need the mask; then the other tiles, which no kernel reads. transposed: one list per tile of
        keys, [B or 1, H or 1, Tc, 2 + Tr].
        """
        key = Br, Bc, transposed, problem.Nq, problem.Nk
        return self.cached(problem.device, key, lambda: self._make_lists(problem, Br, Bc, transposed))

    def cached(self, device, key, make):
        """Return ``make()``, or its result in an earlier call with this key if no tensor has changed since.

        device: that of the result. key: all else that it depends on beside the mask's tensors.
        """
        if any(x.is_inference() for x in self.tensors):
            return make()  # torch does not count the changes of such tensors
        key = device, *key, *(x._version for x in self.tensors)
        if key not in self._cached:
            if len(self._cached) >= 64:
                self._cached.clear()
            self._cached[key] = make()
        return self._cached[key]

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
        """Return int32 tensors as ``Part.interval``; ``FARTHEST`` and -1 for none."""
        return self._ends("interval", problem, problem.Nq)

    def keys(self, problem):
        """Return int32 tensors as ``Part.keys``; ``FARTHEST`` and -1 for none."""
        key = "keys", problem.Nq, problem.Nk
        return self.cached(problem.device, key, lambda: self._ends("keys", problem, problem.Nk))

    def _ends(self, name, problem, N):
        """Return the ends of intervals among N places, by this method of the parts; None if they are no intervals."""
        unions = []
        for term in self.terms:
            intervals = []
            for part in term:
                if (interval := getattr(part, name)(problem)) is None:
                    return None
                intervals.append(interval)
            unions.append(_intersection(intervals, N))
        union = functools.reduce(_union, unions)
        return union and tuple(x.int() for x in union)

    def kernel_args(self, problem, Br, Bc, transposed=False) -> KernelArgs:
        """Return the kernel arguments of the mask, as ``Window.kernel_args``."""
        lists = self.lists(problem, Br, Bc, transposed)
        batch, head = (lists.stride(dim) if lists.shape[dim] > 1 else 0 for dim in (0, 1))
        return KernelArgs(None, None, self.functions(problem), lists, batch, head, lists.shape[-1])


def _both(a, b):
    """Return the intersection: of two windows a window, otherwise each term of one with each of the other."""
    _check_mask(b)
    return _narrowest((a, b)) if isinstance(a, Window) and isinstance(b, Window) else _product(a, b)


@outside_graphs
def _product(a, b):
    """Return the intersection of two masks, not both windows."""
    return _simplest([_merged(x + y) for x, y in itertools.product(a.terms, b.terms)])


@outside_graphs
def _any(a, b):
    """Return the union."""
    _check_mask(b)
    return _simplest([*a.terms, *b.terms])


def _check_mask(x):
    """Raise TypeError if x is no mask of this package."""
    if not isinstance(x, Mask):
        raise TypeError(f"a mask combines with {EXPECTED}, got {shown(x)}")


def _simplest(terms):
    """Return the mask of these terms: a ``Window`` if it is one."""
    if any(term == (Window(),) for term in terms):
        return Window()
    if len(terms) == 1 and len(terms[0]) == 1 and isinstance(terms[0][0], Window):
        return terms[0][0]
    return Rule(tuple(terms))


def _narrowest(windows):
    """Return the intersection of windows."""
    lefts, rights = ([w[n] for w in windows if w[n] is not None] for n in (0, 1))
    return Window(min(lefts) if lefts else None, min(rights) if rights else None)


def _merged(parts):
    """Return the parts of a term with all windows merged into one, and each other part once."""
    windows = [part for part in parts if isinstance(part, Window)]
    others = list(dict.fromkeys(part for part in parts if not isinstance(part, Window)))
    narrowest = _narrowest(windows)
    return tuple(others if others and narrowest == Window() else [*others, narrowest])


def _intersection(intervals, N):
    """Return the first and the last of N places that are in all intervals; ``FARTHEST`` and -1: none."""
    firsts, lasts = zip(*intervals, strict=True)
    first = functools.reduce(torch.maximum, firsts).clamp(min=0)
    last = functools.reduce(torch.minimum, lasts).clamp(max=N - 1)
    none = first > last
    return first.masked_fill(none, FARTHEST), last.masked_fill(none, -1)


def _union(a, b):
    """Return the union of such intervals; None if ``a`` is None, or if places between the two belong to neither."""
    if a is None:
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
