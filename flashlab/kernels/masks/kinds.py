"""The kinds of a mask, each a ``Part`` and its function in Triton; and checks of their tensors of integers."""

import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from flashlab.kernels import tiles
from flashlab.kernels.checks import (
    RefusedInKernel,
    address_of,
    check_dense,
    check_function,
    computes_operators,
    function_at,
    kind_of,
    place_of,
)
from flashlab.kernels.masks.part import FARTHEST, Part
from flashlab.machine.arguments import check_whole

MOST_TOKENS = 2**31 - 1
INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64  # torch compares and sorts no others


class Documents(Part):
    """Keys of the query's own document."""

    shows_own_key = True
    keeps_apart = True

    def __init__(self, ids, of_offsets=False):
        integers(ids, "ids", (1, 2))
        self.tensors, self.of_offsets = (ids if ids.dim() == 2 else ids[None],), of_offsets

    def check(self, problem):
        expected = [problem.B, problem.Nk]
        (ids,) = self.tensors
        if self.of_offsets and ids.shape[1] != problem.Nk:
            keys = f"Nk = {problem.Nk}, the number of keys (of packed texts, of the longest)"
            raise ValueError(f"the offsets of masks.documents must end at {keys}, got {ids.shape[1]}")
        if ids.shape[1] != expected[1] or ids.shape[0] not in (1, expected[0]) or ids.device != problem.device:
            raise ValueError(
                f"ids must be [Nk] or [B, Nk] = {expected} on {problem.device}, a document for each key, "
                f"got {list(ids.shape)} on {ids.device}"
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

    def function(self, problem):
        ids = self.tensors[0]
        return same_document, ids, ids.stride(0) if len(ids) > 1 else 0, ids.stride(1)


def extremes(ids, size):
    """Return the least and the greatest id of each tile of this size, of the last dimension."""
    missing = -ids.shape[-1] % size
    ids = torch.cat([ids, ids[..., -1:].expand(*ids.shape[:-1], missing)], -1)  # repeats the last id
    return ids.unflatten(-1, (-1, size)).aminmax(dim=-1)


@triton.jit
def same_document(b, h, i, j, Nq, Nk, ids, batch, step):
    """Return whether query i and key j belong to the same document. A query before the first key has no document."""
    ids += tl.cast(b, tl.int64) * batch
    own = i + Nk - Nq
    return (tl.load(ids + tl.maximum(own, 0) * step) == tl.load(ids + j * step)) & (own >= 0)


class First(Part):
    """The first n keys."""

    def __init__(self, n):
        self.n = min(check_whole("n", n, 0), FARTHEST)

    def tiles(self, grid):
        return grid.j < self.n, grid.j + grid.Bc <= self.n

    def interval(self, problem):
        j = torch.arange(problem.Nk, device=problem.device)[None]  # [1, Nk]
        return 0 * j, torch.where(j < self.n, problem.Nq - 1, -1)

    def keys(self, problem):
        i = torch.arange(problem.Nq, device=problem.device)[None]  # [1, Nq]
        return 0 * i, 0 * i + self.n - 1

    def function(self, problem):
        return among_the_first, self.n


@triton.jit
def among_the_first(b, h, i, j, Nq, Nk, n):
    """Return whether key j is one of the first n."""
    return j < n


class Padding(Part):
    """The first keys of each batch, up to its length."""

    def __init__(self, lengths):
        self.tensors = (integers(lengths, "lengths", (1,)),)

    def check(self, problem):
        (lengths,) = self.tensors
        if len(lengths) != problem.B or lengths.device != problem.device:
            raise ValueError(
                f"lengths must be [B] = [{problem.B}] on {problem.device}, "
                f"got {list(lengths.shape)} on {lengths.device}"
            )
        if lengths.device.type == "cpu":  # on a GPU, the host would have to wait for the values
            outside = [length for length in lengths.tolist() if not 0 <= length <= problem.Nk]
            if outside:
                raise ValueError(f"lengths must be from 0 to Nk = {problem.Nk}, got {outside[0]}")

    def tiles(self, grid):
        lengths = self.tensors[0][:, None, None, None]  # [B, 1, 1, 1]
        return grid.j < lengths, grid.j + grid.Bc <= lengths

    def function(self, problem):
        return not_padding, self.tensors[0], self.tensors[0].stride(0)


@triton.jit
def not_padding(b, h, i, j, Nq, Nk, lengths, step):
    """Return whether key j is within the length of its text."""
    return j < tl.load(lengths + b * step)


class Pattern(Part):
    """A boolean tensor, with one element per tile of Br x Bc scores."""

    keeps_apart = True

    def __init__(self, kept, Br, Bc):
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool:
            raise TypeError(f"the tensor of masks.dense or masks.blocks must be a boolean tensor, got {kind_of(kept)}")
        if not 2 <= kept.dim() <= 4:
            shape = f"2 to 4 dimensions, the last of queries and of keys, got {list(kept.shape)}"
            raise ValueError(f"the tensor of masks.dense or masks.blocks must have {shape}")
        check_dense(**{"the tensor of masks.dense or masks.blocks": kept})
        self.tensors = (kept,)
        self.Br, self.Bc = (check_whole(name, size, 1, FARTHEST) for name, size in (("Br", Br), ("Bc", Bc)))

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

    def function(self, problem):
        (kept,) = self.tensors
        steps = (0,) * (4 - kept.dim()) + tuple(kept.stride(n) if s > 1 else 0 for n, s in enumerate(kept.shape))
        return in_pattern, kept, *steps, self.Br, self.Bc


@triton.jit
def in_pattern(b, h, i, j, Nq, Nk, kept, batch, head, row, column, Br, Bc):
    """Return whether the pattern keeps the tile of query i and key j."""
    kept += tl.cast(b, tl.int64) * batch + tl.cast(h, tl.int64) * head
    return tl.load(kept + (i // Br).to(tl.int64) * row + (j // Bc).to(tl.int64) * column) != 0


class Custom(Part):
    """A function of the user in Triton."""

    keeps_apart = True

    def __init__(self, visible, arguments):
        check_function(visible, arguments, ("b", "h", "i", "j", "Nq", "Nk"))
        self.visible, self.arguments = visible, arguments
        self.tensors = tuple(x for x in arguments if isinstance(x, torch.Tensor))

    def __reduce__(self):
        return found_again, (address_of(self.visible), self.arguments)

    def check(self, problem):
        for x in self.tensors:
            if x.device != problem.device:
                raise ValueError(f"tensors of your own mask must be on {problem.device}, got {x.device}")

    def tiles(self, grid):
        met = torch.ones_like(grid.i, dtype=torch.bool)
        return met, ~met

    def function(self, problem):
        return boolean, (self.visible, *self.arguments)


def found_again(address, arguments):
    """Return the mask of the function at an address."""
    return Custom(function_at(*address), arguments)


@triton.jit
def boolean(b, h, i, j, Nq, Nk, custom):
    """Return the booleans that a function of the user returns, or that its integers mean."""
    seen = custom[0](b, h, i, j, Nq, Nk, *custom[1:])
    return seen if returns_booleans(custom[0], seen) else seen != 0


@triton.constexpr_function
def returns_booleans(function, seen):
    """Return whether a mask of the user returned booleans, or False for the integers 0 and 1."""
    return Returned(function, seen).booleans  # a class: functions in Triton may not call Python's


class Returned:
    """The return value of a mask of the user, as the interpreter or the compiler passes it.

    Raises:
        RefusedInKernel: it is neither boolean nor, as far as the values are available, an integer 0 or 1.
    """

    def __init__(self, function, seen):
        dtype = getattr(seen, "dtype", None)  # of a block or a number in a kernel; Python's own numbers have none
        self.booleans = isinstance(seen, bool) if dtype is None else dtype.is_int1()
        if self.booleans:
            return
        found = type(seen).__name__ if dtype is None else dtype
        if isinstance(seen, int) or (dtype is not None and dtype.is_int()):
            values = getattr(getattr(seen, "handle", seen), "data", seen)  # an interpreter has an array here
            wrong = [n for n in np.unique(values) if n not in (0, 1)] if isinstance(values, (int, np.ndarray)) else []
            if not wrong:
                return
            found = wrong[0]
        expected = "a mask returns booleans, or the integers 0 and 1"
        raise RefusedInKernel(f"{place_of(function)}: {expected}, got {found}")


def integers(x: Tensor, name: str, dims: tuple[int, ...]) -> Tensor:
    """Return x, or raise TypeError or ValueError if it is not a tensor of integers with one of these ranks."""
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        *others, last = (str(dtype).removeprefix("torch.") for dtype in INTEGERS)
        raise TypeError(f"{name} must be a tensor of integers ({', '.join(others)} or {last}), got {kind_of(x)}")
    check_dense(**{name: x})
    if x.dim() not in dims:
        expected = "one dimension" if dims == (1,) else f"{' or '.join(map(str, dims))} dimensions"
        raise ValueError(f"{name} must have {expected}, got shape {list(x.shape)}")
    return x


def starts(offsets: Tensor, name: str) -> list[int]:
    """Return offsets [n + 1] of n documents or texts as a list: document t has the tokens list[t] to list[t + 1] - 1.

    Raises:
        TypeError, ValueError: offsets are not integers that begin with 0 and never decrease, or have no values.
    """
    integers(offsets, name, (1,))
    if offsets.is_meta or computes_operators(offsets):
        found = "a tensor on the meta device" if offsets.is_meta else f"a {type(offsets).__name__}"
        raise ValueError(f"{name} must have values, got {found}")
    values = offsets.tolist()
    if values and values[-1] > MOST_TOKENS:
        raise ValueError(f"{name} must end at {MOST_TOKENS} tokens at most, got {values[-1]}")
    if values[:1] != [0] or any(b < a for a, b in zip(values, values[1:], strict=False)):
        raise ValueError(f"{name} must begin with 0 and not decrease, got {str(values):.60}")
    return values


def owners(offsets: Tensor, tokens: int) -> Tensor:
    """Return the document or text of each token, [tokens]."""
    return torch.bucketize(torch.arange(tokens, device=offsets.device), offsets[1:].contiguous(), right=True)
