"""Measure, on one GPU, the bytes that one forward pass moves: standard attention and flashlab's kernel.

    python -m flashlab.bench.traffic --json notebooks/data/h200_traffic.json

16 heads, N = 4096, d = 64, bfloat16, not causal. Nsight Compute (``ncu``) reads the counters of DRAM and those between
the L2 cache and the multiprocessors. The second count what programs request, the first what the L2 cache does not hold.
Beside them are the bytes that ``tiling.fa2_traffic`` predicts for the tiles of the launch, and those that the counting
memory books for the same tiles. Where ncu is missing, the exit status is 1 and nothing is written.
"""

import argparse
import json
import sys

import numpy as np
import torch

from flashlab.bench import ncu, record
from flashlab.kernels import configuration, flash_attention
from flashlab.machine.memory import Memory
from flashlab.reference import tiling

MODULE = "flashlab.bench.traffic"
H, N, d = 16, 4096, 64
COUNTERS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "written": "l1tex__m_l1tex2xbar_write_bytes.sum",
}


def standard(q, k, v) -> torch.Tensor:
    """Return softmax(scale * Q K^T) V, one operation per step."""
    return torch.softmax(q @ k.mT * d**-0.5, -1) @ v  # [1, H, N, d]


WAYS = {"standard": standard, "flashlab": flash_attention}


def inputs() -> list[torch.Tensor]:
    """Make Q, K and V, each [1, H, N, d]."""
    torch.manual_seed(0)
    return [torch.randn(1, H, N, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def once(name: str) -> None:
    """Run one pass between the marks that ``ncu.count`` looks for."""
    tensors = inputs()
    ncu.marked(lambda: WAYS[name](*tensors))


def measured(name: str) -> dict:
    """Return the bytes of one pass by counter, summed over its kernels, and the number of kernels."""
    kernels = ncu.count(MODULE, ["--once", name], COUNTERS)
    totals = {counter: sum(kernel[counter] for kernel in kernels) for counter in COUNTERS}
    return totals | {"kernels": len(kernels)}


def predicted(Br: int, Bc: int, H: int = H, N: int = N, d: int = d) -> dict:
    """Return the bytes of H heads by the closed form and by the counting memory, in numbers of two bytes."""
    formula = tiling.fa2_traffic(N, N, d, Br, Bc, dtype=np.float16)  # two bytes, as bfloat16
    memory = Memory(record=False)
    Q, K, V = np.random.default_rng(0).normal(size=(3, N, d)).astype(np.float16)  # [N, d] each
    tiling.fa2_forward(Q, K, V, Br, Bc, memory=memory)
    return {
        way: {side: H * sum(n for (kind, _), n in bill.items() if kind == side) for side in ("load", "store")}
        for way, bill in {"formula": formula, "counting_memory": memory.bytes}.items()
    }


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``; 1 if ncu counts nothing, too."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--once", choices=WAYS, help=argparse.SUPPRESS)  # for ncu to watch
    options = parser.parse_args(argv)
    record.need_gpu()
    if options.once:
        once(options.once)
        return 0
    try:
        counted = {name: measured(name) for name in WAYS}
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    c = configuration("forward", *inputs(), kernel="portable").launches["forward"]
    shape = {"H": H, "N": N, "d": d, "dtype": "bfloat16", "causal": False, "Br": c.Br, "Bc": c.Bc}
    report = record.origin(MODULE, argv) | {"configuration": shape, "predicted": predicted(c.Br, c.Bc)}
    report |= {"measured": counted}
    return record.conclude(report, options.json, json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
