"""Launch a kernel with tiles of several sizes, and record its shared memory, or why the launch was refused.

    python -m flashlab.bench.shared_memory --json notebooks/data/shared_memory.json

The kernel is the forward pass for one head that learners write, in float16, not causal, with N = 2048.
"""

import json
import sys

import torch

from flashlab.bench import record
from flashlab.course.exercises.triton_forward import attention_one_head
from flashlab.kernels import triton

MODULE = "flashlab.bench.shared_memory"
SHAPES = (  # Br, Bc, d, stages, warps
    (128, 64, 64, 3, 4),
    (128, 128, 64, 2, 8),
    (128, 64, 128, 2, 8),
    (128, 128, 128, 2, 8),
    (128, 128, 128, 3, 8),
    (128, 256, 128, 2, 8),
    (128, 64, 256, 2, 8),
    (128, 128, 256, 2, 8),
)


def ask(Br: int, Bc: int, d: int, stages: int, warps: int, N: int = 2048) -> dict:
    """Launch once. Return the tile with its bytes of shared memory, or with the reason for the refusal."""
    Q, K, V = (torch.randn(N, d, device="cuda", dtype=torch.float16) for _ in range(3))  # [N, d]
    O, lse = (torch.empty(*shape, dtype=torch.float32, device="cuda") for shape in ((N, d), (N,)))  # [N, d], [N]
    tile = {"Br": Br, "Bc": Bc, "d": d, "stages": stages, "warps": warps}
    sizes = (N, N, d**-0.5, d, Br, Bc, False)
    try:
        kernel = attention_one_head[(N // Br,)](Q, K, V, O, lse, *sizes, num_stages=stages, num_warps=warps)
    except triton.runtime.errors.OutOfResources as error:
        return tile | {"refused": str(error)}
    return tile | {"shared": kernel.metadata.shared}


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    options = record.parser(MODULE, __doc__).parse_args(argv)
    record.need_gpu()
    report = {"about": record.origin(MODULE, argv) | {"kernel": "attention_one_head, float16, N = 2048"}}
    report |= {"launches": [ask(*shape) for shape in SHAPES]}
    return record.conclude(report, options.json, json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
