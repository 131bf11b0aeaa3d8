"""Keep torch's compiler away from functions, without importing it: that takes as long as importing torch."""

from collections.abc import Callable
from functools import wraps

import torch


def stepped_around(calls: str) -> Callable[[Callable], Callable]:
    """Return a decorator: compiled code calls the function outside its graphs, as with ``torch.compiler.disable``.

    ``torch.compiler.disable`` imports the compiler; here only compiled code does.

    calls: what the function computes, for the error of torch.compile(fullgraph=True).
    """

    def decorator(function):
        disabled = None

        @wraps(function)
        def run(*args, **kwargs):
            nonlocal disabled
            if not torch.compiler.is_compiling():
                return function(*args, **kwargs)
            torch._dynamo.graph_break(msg=f"{calls} cannot be part of a graph: compile without fullgraph=True")
            disabled = disabled or torch.compiler.disable(function)
            return disabled(*args, **kwargs)

        return run

    return decorator
