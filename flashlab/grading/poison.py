"""Undefined memory reads NaN, so that a program that depends on it shows."""

import sys
from contextlib import contextmanager, nullcontext

import numpy as np


@contextmanager
def poisoned():
    """Let memory hold NaN until it is written: results of np.empty and torch.empty, and what a masked load skips."""
    torch, interpreter = sys.modules.get("torch"), sys.modules.get("flashlab.kernels.interpreter")
    patches = [(np, name, _full_of_nan) for name in ("empty", "empty_like")]
    if torch is not None:
        patches += [(torch, "empty", _full_of_nan), (torch, "empty_like", _full_of_nan)]
        patches += [(torch.Tensor, "new_empty", _full_of_nan)]
    originals = [getattr(owner, name) for owner, name, _ in patches]
    for (owner, name, patch), original in zip(patches, originals, strict=True):
        setattr(owner, name, patch(original))
    try:
        with nullcontext() if interpreter is None else interpreter.masked_loads_read_nan():
            yield
    finally:
        for (owner, name, _), original in zip(patches, originals, strict=True):
            setattr(owner, name, original)


def _full_of_nan(make):
    def empty(*args, **kwargs):
        array = make(*args, **kwargs)
        if isinstance(array, np.ndarray):
            return _fill(array) if array.dtype.kind in "fc" else array
        return array.fill_(np.nan) if array.dtype.is_floating_point else array

    return empty


def _fill(array):
    array.fill(np.nan)
    return array
