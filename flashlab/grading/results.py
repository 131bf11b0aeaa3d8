"""The leaves of what functions take and return, which may be nested tuples."""

from collections.abc import Callable
from typing import Any

import numpy as np

DEEPEST = 8  # levels of tuples; a tuple below them counts as a leaf


def mapped(function: Callable, tree: Any) -> Any:
    """Return nested tuples of the same kinds, with each leaf replaced by ``function(leaf)``."""
    if isinstance(tree, tuple):
        branches = [mapped(function, branch) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    return function(tree)


def result_leaves(returned: Any) -> list:
    """Return the leaves of what a function returned. A list of results counts as a tuple."""
    return leaves(tuple(returned) if type(returned) is list else returned)


def leaves(tree: Any, depth: int = DEEPEST) -> list:
    """Return the leaves of nested tuples."""
    if not isinstance(tree, tuple) or depth == 0:
        return [tree]
    return [leaf for branch in tree for leaf in leaves(branch, depth - 1)]


def largest(difference: np.ndarray) -> float:
    """Return the largest absolute value; 0 for an empty array."""
    return np.abs(difference).max(initial=0)
