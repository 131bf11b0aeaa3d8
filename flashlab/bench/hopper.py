"""Measure, on one Hopper GPU, the Hopper kernels beside the production ones, and the rungs that lead to them.

    python -m flashlab.bench.hopper --json notebooks/data/h200_hopper.json
  python -m flashlab.bench.hopper --impls rungs hopper fa3 cudnn --passes forward --json notebooks/data/h200_rungs.json

As ``flashlab.bench`` does it: 16,384 tokens in sequences of N, 2,048 columns in heads of d, bfloat16; all
implementations take turns in one process: the Hopper kernels ("hopper"), the portable ones, cuDNN, FlashAttention-3 and
FlashAttention-4 (the package flash-attn-4, on its path for compute capability 9.0), and the ``rungs``, the third
of them with its tiles in three orders.
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
from flashlab.kernels.hopper import schedule
from flashlab.kernels.hopper.arguments import multiprocessors
from flashlab.kernels.problem import Problem

Br = 128  # rows of a tile of rung 3
PASSES = ("forward", "backward")
PRODUCTION = ("hopper", "portable", "cudnn", "fa4")


def dealt(shape, causal, device):
    """Return lists of tiles that are dealt like cards."""
    B, H, N, _ = shape
    programs = multiprocessors(device)
    return [list(range(program, B * H * tiles.count(N, Br), programs)) for program in range(programs)]


def longest_first(shape, causal, device):
    """Return lists of tiles, the longest of all heads first, each for the program that has the fewest blocks."""
    B, H, N, _ = shape
    Tr = tiles.count(N, Br)
    order = sorted(range(B * H * Tr), key=lambda n: -(n % Tr) if causal else 0)
    blocks = [n % Tr + 1 if causal else Tr for n in order]
    lists: list[list[int]] = [[] for _ in range(multiprocessors(device))]
    for n, program in zip(order, schedule.assign(blocks, len(lists)), strict=True):
        lists[program].append(n)
    return lists


def few_heads(shape, causal, device):
    """Return lists of tiles in the order of the production kernel: longest first, a few heads at a time."""
    B, H, N, d = shape
    mask = masks.either(causal, None)
    problem = Problem(B, H, H, N, N, d, d, torch.bfloat16, device, mask, d**-0.5, "ieee")
    table, starts, _ = schedule.table(problem, Br, Br, multiprocessors(device))
    numbers = [(b * H + h) * tiles.count(N, Br) + i for i, b, h, _ in table.tolist()]
    return [numbers[begin:end] for begin, end in itertools.pairwise(starts.tolist())]


def rung_1(q, k, v, causal):
    """Run rung 1, [B, H, N, d] to [B, H, N, d]."""
    from flashlab.kernels.hopper.rungs import one_consumer

    return one_consumer.attend(q, k, v, causal)[0]


def rung_2(q, k, v, causal):
    """Run rung 2."""
    from flashlab.kernels.hopper.rungs import two_consumers

    return two_consumers.attend(q, k, v, causal)[0]


def rung_3(q, k, v, causal, order=dealt):
    """Run rung 3 with its tiles in an order: a function from (B, H, N, d), causal and the device to lists of tiles."""
    from flashlab.kernels.hopper.rungs import persistent

    return persistent.attend(q, k, v, causal, _table(q.shape, causal, order, q.device))[0]


@functools.cache
def _table(shape, causal, order, device):
    """Return the table of tiles for rung 3, made once: it is not what is measured."""
    from flashlab.kernels.hopper.rungs import persistent

    return persistent.table_of(order(shape, causal, device), device)


RUNGS = {
    "rung 1": rung_1,
    "rung 2": rung_2,
    "rung 3": rung_3,
    "rung 3, longest first": functools.partial(rung_3, order=longest_first),
    "rung 3, few heads at a time": functools.partial(rung_3, order=few_heads),
}


def jobs(
    passes: tuple[str, ...], functions: Mapping[str, Attention]
) -> Iterator[tuple[round_robin.Cell, Mapping[str, Attention]]]:
    """Yield each cell of the grid with its competitors. Rungs have no backward pass."""
    both = {name: function for name, function in functions.items() if name not in RUNGS}
    for direction, d, causal, N in itertools.product(passes, (64, 128), (False, True), (1024, 4096, 16384)):
        yield round_robin.Cell(direction, d, causal, N), functions if direction == "forward" else both


def main(argv: list[str]) -> int:
    """Run the command line. Return the exit status, as ``round_robin.main``.

    A round without a rival that it was to have is worth little, so one that is not installed is an error.
    """
    parser = argparse.ArgumentParser("python -m flashlab.bench.hopper", description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", required=True, type=record.destination, help="file for the results and their origin")
    parser.add_argument("--impls", nargs="+", choices=(*NAMES, "rungs"), default=PRODUCTION)
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--rounds", type=round_robin.whole, default=3)
    options = parser.parse_args(argv)
    if not record.has_gpu():
        return 2
    for name in options.impls:
        if name != "rungs" and (lacks := absent(name)):
            parser.error(f"{lacks}. To measure without it, leave {name} out of --impls.")
    report = record.origin("flashlab.bench.hopper", argv)
    functions: dict[str, Attention] = {}
    for name in options.impls:
        functions |= RUNGS if name == "rungs" else {name: implementation(name)}
    return round_robin.collect(jobs(tuple(options.passes), functions), report, options.json, rounds=options.rounds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
