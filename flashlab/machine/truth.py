"""A base class of objects that combine by few operators, and raise an error for all others."""

from typing import Any


class NoTruth:
    """Base class of objects without arithmetic and truth value: with a truth value, ``a and b`` would drop a."""

    combine = ""  # for the messages: how to combine such objects

    def __bool__(self) -> bool:
        name = type(self).__name__
        raise TypeError(f"{name} objects have no truth value: {self.combine}, and compare with None by `is`")

    def __add__(self, *_: Any) -> Any:
        raise TypeError(f"{type(self).__name__} objects have no arithmetic and no order: {self.combine}")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __xor__ = __rxor__ = __invert__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = __add__
