"""Compile the kernel of linear attention for a GPU that is not here: ``python -m tests.tools.compile_linear 9.0``.

Print one JSON object per width and dtype. Needs TRITON_INTERPRET=0, and so a process of its own.
"""

from unittest import mock

import torch

from flashlab.kernels import checks, linear_attention
from tests.tools.compile_for import SHARED, compiled_instead, print_reports, resources

CASES = (64, torch.bfloat16), (128, torch.bfloat16), (128, torch.float16), (64, torch.float32)  # fmt: skip


def compile_for(capability, case):
    """Compile the kernel for one case (columns of a head, dtype). Yields a dict: its resources."""
    d, dtype = case
    device = mock.patch.object(checks, "DEVICE", torch.device("cpu"))
    with device, compiled_instead(capability, linear_attention) as kernels:
        linear_attention.linear_attention(*(torch.zeros(1, 2, 1000, d, dtype=dtype) for _ in "qkv"))
    (compiled,) = kernels
    ptx = compiled.asm["ptx"]
    yield {
        "d": d, "dtype": str(dtype), "shared": compiled.metadata.shared, "available": SHARED[capability] * 1024,
        "products": ptx.count("mma.sync") + ptx.count("wgmma.mma_async"), **resources(compiled.asm["cubin"]),
    }  # fmt: skip


if __name__ == "__main__":
    print_reports(lambda capability: CASES, compile_for)
