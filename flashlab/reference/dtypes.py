"""All arrays of a call have one floating dtype: with integers, the results and even the scale would be rounded."""

import numpy as np


def one_dtype(**arrays: np.ndarray) -> None:
    """Raise TypeError if these, by their names, are not numpy arrays of one floating dtype."""
    for name, x in arrays.items():
        if not isinstance(x, (np.ndarray, np.generic)):
            raise TypeError(f"{name} must be a numpy array, got {type(x).__name__}")
        if not np.issubdtype(x.dtype, np.floating):
            raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype}")
    if len({x.dtype for x in arrays.values()}) > 1:
        found = ", ".join(f"{name} {x.dtype}" for name, x in arrays.items())
        raise TypeError(f"{', '.join(arrays)} must have one dtype, got {found}")
