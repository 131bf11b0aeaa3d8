"""Decide where kernels run: compiled for a GPU, or in Triton's interpreter on the CPU.

Triton decides between compiler and interpreter when it is imported, so this module decides before: without a GPU it
sets ``TRITON_INTERPRET=1``, unless the variable is set already. This is the one import of flashlab with a side effect.
The logger ``flashlab`` reports the decision.
"""

import logging
import os
import sys

import torch


def _interprets(triton):
    """Return whether this triton, once imported, interprets kernels."""
    return type(triton.language.max).__name__ == "InterpretedFunction"


def _import_triton():
    """Import triton with the choice made, or refuse if it was imported with the other choice."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    wanted = os.environ.get("TRITON_INTERPRET") == "1"
    if wanted and "triton" in sys.modules and not _interprets(sys.modules["triton"]):
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
