"""Keep torch's compiler away from functions, without importing it: that takes as long as importing torch."""

from collections.abc import Callable
from functools import wraps

import torch


def stepped_around(function: Callable) -> Callable:
    """Return a function that compiled code calls as it is, as ``torch.compiler.disable``, which imports the compiler.

    Here only compiled code does.
    """
    disabled = None

    @wraps(function)
    def run(*args, **kwargs):
        nonlocal disabled
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        disabled = disabled or torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return run
