"""Triton kernels. On a machine without a GPU they run in Triton's interpreter, on the CPU.

Triton decides at its own import whether kernels are compiled or interpreted, so the choice is made here, before it:
without a GPU, ``TRITON_INTERPRET=1`` is set, unless the variable says otherwise already. This is the one import of
flashlab with a side effect. ``INTERPRETED`` and ``DEVICE`` tell what was decided, and the logger ``flashlab`` says so.
"""

import logging
import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
    if type(sys.modules["triton"].language.max).__name__ != "InterpretedFunction":
        raise ImportError(
            "triton was imported before its interpreter was asked for, which without a GPU flashlab.kernels does: "
            "import flashlab.kernels first, or set the environment variable TRITON_INTERPRET=1 before Python starts."
        )

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

INTERPRETED = type(tl.max).__name__ == "InterpretedFunction"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
logging.getLogger("flashlab").info(
    "kernels run in Triton's interpreter, on the CPU" if INTERPRETED else "kernels are compiled for the GPU"
)

from flashlab.kernels import interpreter  # noqa: E402
from flashlab.kernels.attention import flash_attention  # noqa: E402
from flashlab.kernels.configurations import configuration  # noqa: E402

if INTERPRETED:
    interpreter.install()

# triton from here comes decided
__all__ = ["DEVICE", "INTERPRETED", "configuration", "flash_attention", "tl", "triton"]
