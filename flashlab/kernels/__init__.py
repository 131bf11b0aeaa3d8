"""Triton kernels. On a machine without a GPU they run in Triton's interpreter, on the CPU.

Triton decides at its own import whether kernels are compiled or interpreted, so the choice is made here, before it:
without a GPU, ``TRITON_INTERPRET=1`` is set, unless the variable says otherwise already. This is the one import of
flashlab with a side effect. ``INTERPRETED`` and ``DEVICE`` tell what was decided, and the logger ``flashlab`` says so.
"""

import logging
import os
import sys

import torch

if "triton" not in sys.modules:
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
elif not torch.cuda.is_available() and type(sys.modules["triton"].language.max).__name__ != "InterpretedFunction":
    raise ImportError(
        "There is no GPU, and triton was imported before flashlab.kernels could ask for its interpreter: import "
        "flashlab.kernels first, or set the environment variable TRITON_INTERPRET=1 before Python starts."
    )

import triton.language  # noqa: E402

INTERPRETED = type(triton.language.max).__name__ == "InterpretedFunction"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
logging.getLogger("flashlab").info(
    "kernels run in Triton's interpreter, on the CPU" if INTERPRETED else "kernels are compiled for the GPU"
)

from flashlab.kernels.attention import flash_attention  # noqa: E402

__all__ = ["DEVICE", "INTERPRETED", "flash_attention"]
