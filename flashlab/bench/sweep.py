"""Time the portable forward kernel with many tiles, and one call with many clocks, on a GPU.

    python -m flashlab.bench.sweep --json notebooks/data/h200_sweep.json

The sweep: bfloat16, 4 texts of N = 4096, 32 heads of d = 64, no mask. The clocks: one text of N = 1024, 4 heads of 64,
a call so short that the clock matters.
"""

import itertools
import json
import statistics
import sys
import time

import torch

from flashlab.bench import record
from flashlab.kernels import masks, triton
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.portable import forward
from flashlab.kernels.problem import Problem
from flashlab.machine.timing import gpu_timer, graphed

MODULE = "flashlab.bench.sweep"
TILES = tuple(itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3)))  # Br, Bc, warps, stages
CALLS = 200


def call(B: int, H: int, N: int, d: int, tile: tuple):
    """Return a function without arguments that computes attention of B x H heads of [N, d] with these tiles."""
    q, k, v = torch.randn(3, B, H, N, d, device="cuda", dtype=torch.bfloat16)  # [B, H, N, d] each
    o, lse = torch.empty_like(q), torch.empty(B, H, N, dtype=torch.float32, device="cuda")  # [B, H, N, d], [B, H, N]
    problem = Problem.of(q, k, v, masks.full(), d**-0.5)
    return lambda: forward.run(o, lse, q, k, v, problem, Configuration(*tile))


def sweep(B=4, H=32, N=4096, d=64) -> list[dict]:
    """Return a row per tile: its speed in TFLOP/s, or why the GPU refused it."""
    rows = []
    for tile in TILES:
        row = dict(zip(("Br", "Bc", "warps", "stages"), tile, strict=True))
        try:
            ms = gpu_timer(call(B, H, N, d, tile))
            rows.append(row | {"ms": ms, "tflops": 4 * B * H * N * N * d / ms / 1e9})
        except triton.runtime.errors.OutOfResources as refusal:
            rows.append(row | {"refused": str(refusal)})
    return rows


def clocks() -> dict[str, float]:
    """Return the microseconds of one short call, by each way of timing."""
    run = call(1, 4, 1024, 64, (64, 64, 4, 2))
    us = {"first call, with compilation": _host(run, 1)}
    torch.cuda.synchronize()
    us["host clock, nobody waits for the GPU"] = _host(run, CALLS, wait=False)
    torch.cuda.synchronize()
    us["host clock, waiting after each call"] = statistics.median(_host(run, 1) for _ in range(CALLS))
    us["host clock, waiting after all calls"] = _host(run, CALLS)
    replay = graphed(lambda: [run() for _ in range(CALLS)])
    replay()
    us["calls back to back on the GPU, warm L2"] = _events(replay) / CALLS
    us["GPU events, cold L2"] = gpu_timer(run) * 1e3
    return us


def _host(run, calls, wait=True):
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if wait:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


def _events(run):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    options = record.parser(MODULE, __doc__).parse_args(argv)
    record.need_gpu()
    report = record.origin(MODULE, argv) | {"sweep": "bfloat16, B = 4, H = 32, N = 4096, d = 64, no mask"}
    report |= {"clocks_us": clocks(), "rows": sweep()}
    return record.conclude(report, options.json, json.dumps(report, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
