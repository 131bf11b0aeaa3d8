"""Whole numbers among the arguments of a call."""

import operator
from typing import Any


def whole_number(n: Any) -> int | None:
    """Return n as an int; None if it is not a whole number. Neither a bool nor a tensor of booleans is one."""
    if type(n) is int:  # also true of a symbolic int under torch.compile
        return n
    if isinstance(n, bool) or "bool" in str(getattr(n, "dtype", "")):
        return None
    try:
        return operator.index(n)
    except TypeError:
        return None
