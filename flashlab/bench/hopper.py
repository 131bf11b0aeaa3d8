"""Measure, on one Hopper GPU, the Hopper kernels beside the production ones, and the rungs that lead to them.

    python -m flashlab.bench.hopper --json notebooks/data/h200_hopper.json
    python -m flashlab.bench.hopper --impls rungs hopper fa3 cudnn --passes forward --json FILE

The method is that of ``flashlab.bench``: 16,384 tokens in sequences of N, 2,048 columns in heads of d, bfloat16; all
implementations take turns in one process: the Hopper kernels ("hopper"), the portable ones, cuDNN, FlashAttention-3 and
FlashAttention-4 (the package flash-attn-4, on its path for compute capability 9.0), and the ``rungs``, the third
of them with its tiles in three orders.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import torch

from flashlab.bench import record, round_robin
from flashlab.bench.competitors import NAMES, Attention, absent, implementation
from flashlab.kernels import masks, tiles
from flashlab.kernels.hopper import schedule
from flashlab.kernels.hopper.arguments import multiprocessors
from flashlab.kernels.hopper.rungs import one_consumer, persistent, two_consumers
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import Problem

Br = persistent.Br.value  # rows of a tile
PASSES = ("forward", "backward")
PRODUCTION = ("hopper", "portable", "cudnn", "fa4")


def dealt(shape, causal, device):
    """Return lists of tiles that are dealt like cards."""
    B, H, N, _ = shape
    return persistent.dealt(B * H * tiles.count(N, Br), multiprocessors(device))


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


def prepared(rung: ModuleType, lists: Callable | None = None) -> Attention:
    """Return a rung as a function that prepares a launch once per cell: its Python is not what is measured.

    lists: a function from (B, H, N, d), causal and the device to lists of tiles, for the third rung.
    """
    kept: dict[tuple, tuple] = {}

    def run(q, k, v, causal):
        key = q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape, causal
        if key in kept:
            start, tensors, o = kept[key]
            start(tensors)
            return o
        started: list = []

        def start_first(kernel, grid, tensors, numbers, warps):
            started.extend((launch(kernel, grid, tensors, numbers, warps=warps).start, tensors))

        more = {"table": rung.table_of(lists(q.shape, causal, q.device), q.device)} if lists else {}
        o, _ = rung.attend(q, k, v, causal, **more, launch=start_first)
        kept.clear()
        kept[key] = *started, o
        return o

    return run


RUNGS = {
    "rung 1": prepared(one_consumer),
    "rung 2": prepared(two_consumers),
    "rung 3": prepared(persistent, dealt),
    "rung 3, longest first": prepared(persistent, longest_first),
    "rung 3, few heads at a time": prepared(persistent, few_heads),
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

    A rival in --impls that is not installed is an error: a comparison without it is worth little.
    """
    parser = argparse.ArgumentParser("python -m flashlab.bench.hopper", description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", required=True, type=record.destination, help="file for the results and their origin")
    parser.add_argument("--impls", nargs="+", choices=(*NAMES, "rungs"), default=PRODUCTION)
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--rounds", type=record.whole, default=3)
    options = parser.parse_args(argv)
    record.need_gpu()
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
