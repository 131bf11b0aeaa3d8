"""Measure, on one Hopper GPU, the Hopper kernels beside the production ones.

    python -m flashlab.bench.hopper --json notebooks/data/h200_hopper.json

Forward and backward, as ``flashlab.bench`` does it: 16,384 tokens in sequences of N, 2,048 columns in heads of d,
bfloat16; all implementations take turns in one process: the Hopper kernels ("hopper"), the portable ones, cuDNN and
FlashAttention-3 and FlashAttention-4 (the package flash-attn-4, on its path for compute capability 9.0); at d = 128,
forward, also the ``rungs`` that lead to the kernel, and the kernel with ping-pong. A rung has the two names of what
changes in it: "rung 2" with and without turns, "rung 3" with tiles dealt like cards and longest first.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping

import torch

from flashlab.bench import record, round_robin
from flashlab.bench.competitors import NAMES, Attention, absent, implementation
from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import on_hopper
from flashlab.kernels.hopper import schedule
from flashlab.kernels.hopper.arguments import multiprocessors
from flashlab.kernels.problem import Problem

PRODUCTION = ("hopper", "portable", "cudnn", "fa3", "fa4")


def rung_1(q, k, v, causal):
    """Run rung 1, [B, H, N, d] to [B, H, N, d]."""
    from flashlab.kernels.hopper.rungs import one_consumer

    return one_consumer.attend(q, k, v, causal)[0]


def rung_2(q, k, v, causal, turns=True):
    """Run rung 2."""
    from flashlab.kernels.hopper.rungs import two_consumers

    return two_consumers.attend(q, k, v, causal, turns)[0]


def rung_3(q, k, v, causal, longest_first=False):
    """Run rung 3: its tiles dealt like cards, or longest first, each to the program that has least to do."""
    from flashlab.kernels.hopper.rungs import persistent

    return persistent.attend(q, k, v, causal, _table(q.shape, causal, longest_first, q.device))[0]


@functools.cache
def _table(shape, causal, longest_first, device):
    """Return the table of tiles for rung 3, made once: it is not what is measured."""
    from flashlab.kernels.hopper.rungs import persistent

    B, H, N, _ = shape
    Tr, programs = tiles.count(N, persistent.Br.value), multiprocessors(device)
    order = list(range(B * H * Tr))
    if not longest_first:
        return persistent.table_of(persistent.dealt(len(order), programs), device)
    blocks = [n % Tr + 1 if causal else Tr for n in order]
    order.sort(key=lambda n: -blocks[n])
    lists = [[] for _ in range(programs)]
    for n, program in zip(order, schedule.assign([blocks[n] for n in order], programs), strict=True):
        lists[program].append(n)
    return persistent.table_of(lists, device)


def pingpong(q, k, v, causal):
    """Run the forward pass as it is configured, but with consumers that take turns."""
    from flashlab.kernels.hopper import forward

    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)  # [B, H, N, d], [B, H, N]
    problem = Problem.of(q, k, v, masks.either(causal, None), q.shape[3] ** -0.5)
    forward.run(o, lse, q, k, v, problem, on_hopper("forward", problem), pingpong=True)
    return o


RUNGS = {
    "rung 1": rung_1,
    "rung 2": rung_2,
    "rung 2, no turns": functools.partial(rung_2, turns=False),
    "rung 3": rung_3,
    "rung 3, longest first": functools.partial(rung_3, longest_first=True),
    "ping-pong": pingpong,
}


def jobs(production: Mapping[str, Attention]) -> Iterator[tuple[round_robin.Cell, Mapping[str, Attention]]]:
    """Yield each cell of the grid with its competitors."""
    grid = itertools.product(("forward", "backward"), (64, 128), (False, True), (1024, 4096, 16384))
    for direction, d, causal, N in grid:
        more = RUNGS if (direction, d) == ("forward", 128) else {}
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
