"""Count the elements that a function in numpy uses of its arguments, for laws on tiles, passes and bytes.

    reads = Reads()
    inside(Q_i, reads.watch("K", K), V, Bc)
    if reads.largest("K") > Bc * d: ...

A watched array behaves like the original. Slices, transposes and copies of it are watched too; results of computations
are plain. Slicing, moving and inspecting the shape are not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


class Reads:
    """A record of computations with watched arrays: ``log`` has (name, operand) for each operand."""

    def __init__(self):
        self.log: list[tuple[str, np.ndarray]] = []

    def watch(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return a copy of the array whose use is booked under a name."""
        watched = array.copy().view(_Watched)
        watched.name, watched.reads = name, self
        return watched

    @contextmanager
    def through_copies(self) -> Iterator[None]:
        """Keep copies and conversions by numpy watched, which numpy would return as plain arrays."""
        names = "array", "asarray", "ascontiguousarray"
        originals = [getattr(np, name) for name in names]

        def watched(original):
            def convert(it, *args, **kwargs):
                copy = original(it, *args, **kwargs)
                return it._like(copy) if isinstance(it, _Watched) else copy

            return convert

        for name, original in zip(names, originals, strict=True):
            setattr(np, name, watched(original))
        try:
            yield
        finally:
            for name, original in zip(names, originals, strict=True):
                setattr(np, name, original)

    def largest(self, name: str) -> int:
        """Return the largest number of elements of an array that were used at once."""
        return max((operand.size for owner, operand in self.log if owner == name), default=0)

    def loaded(self, name: str) -> int:
        """Return the number of loaded elements of an array: a tile stays loaded until another of the array is used."""
        elements, at_hand = 0, None
        for owner, operand in self.log:
            place = operand.ctypes.data, operand.size
            if owner == name and place != at_hand:
                elements, at_hand = elements + operand.size, place
        return elements


DESCRIBE = {
    np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.zeros_like, np.ones_like, np.empty_like, np.full_like,
    np.may_share_memory, np.shares_memory,
}  # fmt: skip
MOVE = {
    np.split, np.array_split, np.vsplit, np.hsplit, np.take, np.copy, np.reshape, np.ravel, np.transpose, np.swapaxes,
    np.moveaxis, np.expand_dims, np.squeeze, np.atleast_2d, np.flip, np.roll, np.broadcast_to, np.pad, np.append,
    np.concatenate, np.vstack, np.hstack, np.stack,
}  # fmt: skip


class _Watched(np.ndarray):
    """An array that books its use."""

    def __array_finalize__(self, base):
        self.name, self.reads = getattr(base, "name", ""), getattr(base, "reads", None)

    def _like(self, array):
        watched = array.view(_Watched)
        watched.name, watched.reads = self.name, self.reads
        return watched

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        if out:
            kwargs["out"] = tuple(map(_plain, out))
        return getattr(ufunc, method)(*map(_booked, inputs), **kwargs)

    def __array_function__(self, function, types, args, kwargs):
        if function in DESCRIBE | MOVE:
            result = function(*_within(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
            return result if function in DESCRIBE else _within(self._like, [result])[0]
        return function(*_within(_booked, args), **{name: _booked(value) for name, value in kwargs.items()})

    def item(self, *args):
        return _booked(self).item(*args)

    def tolist(self):
        return _booked(self).tolist()


def _plain(array):
    return array.view(np.ndarray) if isinstance(array, _Watched) else array


def _booked(operand):
    if isinstance(operand, _Watched) and operand.reads is not None:
        operand.reads.log.append((operand.name, _plain(operand)))
    return _plain(operand)


def _within(do, values):
    """Apply ``do`` to values, and to those in a list: an argument of np.concatenate, a result of np.split."""
    return [type(it)(map(do, it)) if type(it) in (list, tuple) else do(it) for it in values]
