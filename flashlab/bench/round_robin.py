"""Measure attention on this GPU: ``python -m flashlab.bench`` compares ours with torch's.

A card under load lowers its clock, which favours the implementation that is timed first after a pause. So all are timed
in one process and in several rounds: in each round every implementation has its turn after an idle gap, and the next
round begins with another one. The reported time is the median over the rounds of the median over single calls, each
with a cold L2 cache. An implementation whose results differ from those of the first is not timed.
"""

import argparse
import functools
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from flashlab.bench import calls, record
from flashlab.bench.competitors import NAMES, USUAL, Attention, implementation
from flashlab.machine import costs, timing

TOLERANCE = 0.02  # relative difference between the results of two implementations: a few roundings of bfloat16


class Cell(NamedTuple):
    """One place of the grid: which pass, over tokens // N sequences of N, in width // d heads."""

    direction: str  # "forward" or "backward"
    d: int
    causal: bool
    N: int
    tokens: int = 16384
    width: int = 2048

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return max(self.tokens // self.N, 1), self.width // self.d, self.N, self.d  # B, H, N, d

    @property
    def flops(self) -> float:
        """FLOPs of the matrix products that are needed, however often a kernel repeats them."""
        B, H, N, d = self.shape
        products = costs.flops(N, N, d)
        if self.direction == "backward":
            products = costs.flops(N, N, d, training=True, rebuilt=True) - products  # without those of the forward pass
        return B * H * products * (0.5 if self.causal else 1)

    def __str__(self):
        return f"{self.direction} d={self.d} {'causal' if self.causal else 'full'} N={self.N}"


class Measured(NamedTuple):
    """The times of one cell, and the functions without a time."""

    rows: list[dict]  # one per implementation: "ms", "tflops", "rounds_ms", "first_s", and the cell that it belongs to
    left_out: dict[str, str]  # "cell: name" to the reason why it was not timed


def measure(
    cell: Cell,
    functions: Mapping[str, Attention],
    *,
    rounds: int = 3,
    gap: float = 0.3,
    timer: Callable[[Callable], float] = timing.gpu_timer,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    tolerance: float = TOLERANCE,
    tell: Callable[[int, int, str], object] = lambda *_: None,
) -> Measured:
    """Time every function on one cell.

    Args:
        functions: the competitors by name. The results of the first that runs are the standard for the others.
        rounds: number of turns of each. gap: idle seconds before each turn.
        timer: the function from a callable to the milliseconds of one call. device, dtype: of the tensors.
        tolerance: relative difference of results above which they count as wrong.
        tell: called with (turns done, turns in all, what comes next).

    Returns:
        ``Measured``. "first_s" are the seconds from the first call to its result, with compilation if it was not
        cached. A function that raises an exception, or whose results differ, is left out with the reason.

    Raises:
        ValueError: fewer than one round, or a negative gap.
    """
    if rounds < 1 or not 0 <= gap < math.inf:
        raise ValueError(f"expected at least one round and a gap of 0 s or more, got rounds={rounds}, gap={gap}")
    turns = len(functions) * rounds
    tensors = _inputs(cell, device, dtype)
    runs, first_s, left_out, standard = {}, {}, {}, None
    for name, function in functions.items():
        tell(0, turns, f"{cell}: first call of {name}")
        start = time.perf_counter()
        try:
            run = prepare(function, cell, *tensors)
            results = run()
            _synchronize(device)
        except Exception as failure:  # a competitor may raise any exception; the others are still timed
            left_out[name] = record.reason(failure)
            continue
        first_s[name] = time.perf_counter() - start
        if standard is None and all(x.isfinite().all() for x in results):
            standard = name, results
        if why := doubt(results, standard, tolerance):
            left_out[name] = why
        else:
            runs[name] = run
    del standard
    rounds_ms = {name: [] for name in runs}
    for turn, name in enumerate(timing.round_robin(list(runs), rounds)):
        tell(turn, turns, f"{cell}: {name}")
        if name in left_out:
            continue
        _synchronize(device)
        time.sleep(gap)
        try:
            rounds_ms[name].append(timer(runs[name]))
        except Exception as failure:
            left_out[name] = record.reason(failure)
    tell(turns, turns, f"{cell}: done")
    rows = [_row(cell, name, rounds_ms[name], first_s[name]) for name in runs if name not in left_out]
    return Measured(rows, {f"{cell}: {name}": why for name, why in left_out.items()})


def _inputs(cell, device, dtype):
    """Make Q, K, V and dO, the same for every competitor: each [B, H, N, d]."""
    generator = torch.Generator(device).manual_seed(cell.N + cell.d)
    return [torch.randn(cell.shape, generator=generator, device=device, dtype=dtype) for _ in range(4)]


def prepare(function: Attention, cell: Cell, q, k, v, dO) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return what is timed: a callable without arguments that runs one pass and returns its results."""
    if cell.direction == "forward":
        return torch.no_grad()(lambda: (function(q, k, v, cell.causal),))
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    O = function(*inputs, cell.causal)  # [B, H, N, d]
    return lambda: torch.autograd.grad(O, inputs, dO, retain_graph=True)


def doubt(results, standard, tolerance: float = TOLERANCE) -> str | None:
    """Say why these results are not to be trusted; None if they are. standard: a name and its results, or None."""
    if not all(x.isfinite().all() for x in results):
        return "results are not finite"
    name, expected = standard
    difference = max(
        costs.error(x.detach().float().cpu(), y.detach().float().cpu()) for x, y in zip(results, expected, strict=True)
    )
    return None if difference <= tolerance else f"results differ by {difference:.2g} from {name}'s"


def _row(cell, name, rounds_ms, first_s):
    ms = statistics.median(rounds_ms)
    place = {"pass": cell.direction, "impl": name, "d": cell.d, "causal": cell.causal, "N": cell.N}
    return place | {"ms": ms, "tflops": cell.flops / ms / 1e9, "rounds_ms": rounds_ms, "first_s": first_s}


def _synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def table(rows: list[dict]) -> str:
    """Return the rows as text: TFLOP/s by cell and implementation, and our rate, the first one, relative to cuDNN's."""
    names = list(dict.fromkeys(row["impl"] for row in rows))
    lines = ["TFLOP/s".ljust(34) + "".join(name.rjust(11) for name in names) + "ours/cudnn".rjust(12)]
    cells = itertools.groupby(rows, lambda row: (row["pass"], row["d"], row["causal"], row["N"]))
    for (direction, d, causal, N), group in cells:
        speed = {row["impl"]: row["tflops"] for row in group}
        ratio = f"{speed[names[0]] / speed['cudnn']:.2f}" if {names[0], "cudnn"} <= speed.keys() else ""
        numbers = "".join((f"{speed[name]:.0f}" if name in speed else "–").rjust(11) for name in names)
        lines.append(f"{direction:9} d={d:<4} {'causal' if causal else 'full':7} N={N:<8}" + numbers + ratio.rjust(12))
    return "\n".join(lines)


def collect(jobs: Iterable[tuple[Cell, Mapping[str, Attention]]], report: dict, path: Path | None, **options) -> int:
    """Measure one cell after another, print the table, and store the report. Return the exit status.

    Args:
        jobs: cells, each with its competitors. options: as for ``measure``.
        report: the origin of the measurement. It gets "rows" and "launch_us", and what ``record.run`` adds.
        path: the file of the report, written anew after each cell; none if None.
    """
    jobs = list(jobs)
    everyone = {name: function for _, functions in jobs for name, function in functions.items()}
    report |= {"rows": [], "launch_us": {}}

    def add(done, cell, functions):
        rows, left_out = measure(cell, functions, tell=_progress(done, len(jobs)), **options)
        report["rows"] += rows
        report["left_out"] |= left_out

    some = [(job[0], functools.partial(add, done, *job)) for done, job in enumerate(jobs)]
    record.run([*some, ("calls", lambda: report.update(launch_us=calls.overhead(everyone)))], report, path)
    if missing := everyone.keys() - {row.get("impl") for row in report["rows"]}:
        print(f"not timed in any cell: {', '.join(sorted(missing))}", file=sys.stderr)
    origin = ", ".join(f"{key} {report[key]}" for key in ("device", "driver", "date"))
    of_calls = [calls.table(report["launch_us"])] if report["launch_us"] else []
    return record.conclude(report, path, origin, table(report["rows"]), *of_calls)


def _progress(done, cells):
    """Return ``tell`` for ``measure``: it shows the progress in a line on standard error, if that is a terminal."""

    def tell(turn, turns, what):
        if sys.stderr.isatty():
            end = "\n" if (done + 1, turn) == (cells, turns) else ""
            share = (done * turns + turn) / (cells * turns)
            print(f"\r\033[K{share:4.0%} cell {done + 1} of {cells}, {what}", end=end, file=sys.stderr, flush=True)

    return tell


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line. Exits with status 2 and a sentence if it is wrong, with 0 for ``--help``."""
    parser = record.parser("flashlab.bench", __doc__)
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward"), default=["forward", "backward"])
    parser.add_argument("--impls", nargs="+", choices=NAMES, default=USUAL)
    parser.add_argument("--d", nargs="+", type=record.whole, default=[64, 128], help="head dimensions")
    parser.add_argument("--N", nargs="+", type=record.whole, default=[1024, 4096, 16384], help="sequence lengths")
    parser.add_argument("--masks", nargs="+", choices=("full", "causal"), default=["full", "causal"])
    parser.add_argument("--tokens", type=record.whole, default=16384, help="sequences times their length")
    parser.add_argument("--width", type=record.whole, default=2048, help="heads times their dimension")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--rounds", type=record.whole, default=3)
    parser.add_argument("--gap", type=record.pause, default=0.3, help="idle seconds before each turn")
    options = parser.parse_args(argv)
    if options.width < max(options.d):
        parser.error(f"--width {options.width} is less than one head of {max(options.d)} columns")
    return options


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    options = arguments(argv)
    record.need_gpu()
    functions = {name: implementation(name) for name in options.impls}
    grid = itertools.product(options.passes, options.d, (mask == "causal" for mask in options.masks), options.N)
    jobs = [(Cell(*place, options.tokens, options.width), functions) for place in grid]
    report = record.origin("flashlab.bench", argv)
    return collect(
        jobs, report, options.json, rounds=options.rounds, gap=options.gap, dtype=getattr(torch, options.dtype)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
