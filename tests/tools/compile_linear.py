"""Compile the kernel of linear attention for a GPU that is not here: ``python -m tests.tools.compile_linear 9.0``.

Print one JSON object per width and dtype. Needs TRITON_INTERPRET=0, and so a process of its own.
"""

import json
import sys
from unittest import mock

import torch

from flashlab.kernels import checks, linear_attention
from tests.tools.compile_for import SHARED, compiled_instead, resources

CASES = (64, torch.bfloat16), (128, torch.bfloat16), (128, torch.float16), (64, torch.float32)  # fmt: skip


def compile_for(capability, d, dtype):
    """Compile the kernel for heads of d columns, and return what it takes."""
    device = mock.patch.object(checks, "DEVICE", torch.device("cpu"))
    with device, compiled_instead(capability, linear_attention) as made:
        linear_attention.linear_attention(*(torch.zeros(1, 2, 1000, d, dtype=dtype) for _ in "qkv"))
    (compiled,) = made
    ptx = compiled.asm["ptx"]
    return {
        "d": d, "dtype": str(dtype), "shared": compiled.metadata.shared, "available": SHARED[capability] * 1024,
        "products": ptx.count("mma.sync") + ptx.count("wgmma.mma_async"), **resources(compiled.asm["cubin"]),
    }  # fmt: skip


if __name__ == "__main__":
    for case in CASES:
        print(json.dumps(compile_for(tuple(map(int, sys.argv[1].split("."))), *case)), flush=True)
