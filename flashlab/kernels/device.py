"""Decide where kernels run: compiled for a GPU, or in Triton's interpreter on the CPU.

Triton decides between compiler and interpreter when it is imported, so this module decides before: without a GPU it
sets ``TRITON_INTERPRET=1``, unless the variable is set already. This is the one import of flashlab that changes the
environment. The logger ``flashlab`` reports the decision.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import wraps

import torch


def _interprets(triton):
    """Return whether this triton, once imported, interprets kernels."""
    return type(triton.language.max).__name__ == "InterpretedFunction"


def _import_triton():
    """Import triton with the choice made. Refuse to interpret if it was imported to compile."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted and "triton" in sys.modules and not _interprets(sys.modules["triton"]):
        raise ImportError(
            "triton was imported before flashlab.kernels could choose its interpreter, which a machine without a GPU "
            "needs: import flashlab.kernels first, or set the variable TRITON_INTERPRET=1 before Python starts."
        )
    import triton

    return triton


triton = _import_triton()
tl = triton.language

INTERPRETED = _interprets(triton)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
logging.getLogger("flashlab").info(
    "kernels run in Triton's interpreter, on the CPU" if INTERPRETED else "kernels are compiled for the GPU"
)


def run_compiled(module: str, name: str, names: tuple[str, ...]) -> dict:
    """Run ``python -m module name`` in a process whose Triton compiles, and return the JSON of its last line.

    The compiler and the interpreter cannot share a process.

    Raises:
        ValueError: a name that is not one of ``names``. subprocess.CalledProcessError: the process failed.
    """
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}, got {name!r}")
    command, environment = [sys.executable, "-m", module, name], os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def stepped_around(calls: str) -> Callable[[Callable], Callable]:
    """Return a decorator: compiled code calls the function outside its graphs, as with ``torch.compiler.disable``.

    ``torch.compiler.disable`` imports torch's compiler at once, which takes as long as importing torch. This decorator
    imports it only when compiled code calls the function.

    calls: the subject of the error of torch.compile(fullgraph=True), "... cannot be part of a graph".
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
