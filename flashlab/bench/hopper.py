"""Measure, on one Hopper GPU, the Hopper kernels beside the production ones.

    python -m flashlab.bench.hopper --json notebooks/data/h200_hopper.json

Forward and backward, as ``flashlab.bench`` does it: 16,384 tokens in sequences of N, 2,048 columns in heads of d,
bfloat16; all implementations take turns in one process: the Hopper kernels ("hopper"), the portable ones, cuDNN and
FlashAttention-4 (the package flash-attn-4, on its path for compute capability 9.0); at d = 128, forward, also
the rungs 1 to 4 of the ladder that leads to the kernel, and the kernel with ping-pong.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping

import torch

from flashlab.bench import record, round_robin
from flashlab.bench.competitors import NAMES, Attention, absent, implementation
from flashlab.kernels import masks
from flashlab.kernels.configurations import on_hopper
from flashlab.kernels.problem import Problem

PRODUCTION = ("hopper", "portable", "cudnn", "fa4")


def rung(number: int, q, k, v, causal):
    """Run one rung of the ladder, [B, H, N, d] to [B, H, N, d]."""
    from flashlab.kernels.hopper import ladder

    return ladder.attend(number, q, k, v, causal)


def pingpong(q, k, v, causal):
    """Run the forward pass as it is configured, but with consumers that take turns."""
    from flashlab.kernels.hopper import forward

    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)  # [B, H, N, d], [B, H, N]
    problem = Problem.of(q, k, v, masks.either(causal, None), q.shape[3] ** -0.5)
    forward.run(o, lse, q, k, v, problem, on_hopper("forward", problem), pingpong=True)
    return o


LADDER = {f"rung {number}": functools.partial(rung, number) for number in (1, 2, 3, 4)} | {"ping-pong": pingpong}


def jobs(production: Mapping[str, Attention]) -> Iterator[tuple[round_robin.Cell, Mapping[str, Attention]]]:
    """Yield each cell of the grid with its competitors."""
    grid = itertools.product(("forward", "backward"), (64, 128), (False, True), (1024, 4096, 16384))
    for direction, d, causal, N in grid:
        more = LADDER if (direction, d) == ("forward", 128) else {}
        yield round_robin.Cell(direction, d, causal, N), {**production, **more}


def main(argv: list[str]) -> int:
    """Run the command line. Return the exit status, as ``round_robin.main``.

    A round without a rival that it was to have is worth little, so one that is not installed is an error.
    """
    parser = argparse.ArgumentParser("python -m flashlab.bench.hopper", description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", required=True, type=record.destination, help="file for the results and their origin")
    parser.add_argument("--impls", nargs="+", choices=NAMES, default=PRODUCTION)
    parser.add_argument("--rounds", type=round_robin.whole, default=3)
    options = parser.parse_args(argv)
    if not record.has_gpu():
        return 2
    for name in options.impls:
        if lacks := absent(name):
            parser.error(f"{lacks}. To measure without it, leave {name} out of --impls.")
    report = record.origin("flashlab.bench.hopper", argv)
    production = {name: implementation(name) for name in options.impls}
    return round_robin.collect(jobs(production), report, options.json, rounds=options.rounds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
