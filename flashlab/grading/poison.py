"""Fill undefined memory with NaN, to find programs that depend on it."""

import sys
from contextlib import contextmanager, nullcontext

import numpy as np


@contextmanager
def poisoned():
    """Fill unwritten memory with NaN: results of np.empty and torch.empty, and masked elements of a load."""
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
