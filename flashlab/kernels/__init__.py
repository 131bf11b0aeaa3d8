"""Triton kernels. On a machine without a GPU they run in Triton's interpreter, on the CPU.

``device`` makes the choice before triton is imported, so import ``triton`` and ``tl`` from here, or after this package.
"""

from flashlab.kernels.device import DEVICE, INTERPRETED, tl, triton  # isort: split

from flashlab.kernels import float8, interpreter, masks, scores
from flashlab.kernels.attention import flash_attention
from flashlab.kernels.attention_float8 import flash_attention_float8
from flashlab.kernels.configurations import configuration
from flashlab.kernels.packed import flash_attention_packed

if INTERPRETED:
    interpreter.install()

__all__ = [
    "DEVICE",
    "INTERPRETED",
    "configuration",
    "float8",
    "flash_attention",
    "flash_attention_float8",
    "flash_attention_packed",
    "masks",
    "scores",
    "tl",
    "triton",
]
