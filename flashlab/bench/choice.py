"""Time the portable and the Hopper kernels on a Hopper GPU where sequences are short or heads are few.

    python -m flashlab.bench.choice --json notebooks/data/h200_choice.json

bfloat16, both passes, with and without a causal mask. ``flashlab.kernels.configurations`` chooses between the two by a
rule. The sets "grid" and "wide" are for making the rule; "between", with other lengths and heads, is for testing it.
"widths" has other widths of heads, and "groups" has query heads that share keys. In "between", "widths" and "groups"
torch's backends are timed as well. Each call is captured in a CUDA graph: a kernel of 10 µs has ended before Python
launches the next.
"""

import contextlib
import functools
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch

from flashlab.bench import record
from flashlab.bench.competitors import implementation
from flashlab.bench.round_robin import Cell, prepare
from flashlab.machine import timing

MODULE = "flashlab.bench.choice"
OURS = "portable", "hopper"
ALL = (*OURS, "cudnn", "flash")
SETS = {  # widths, query heads per key/value head, lengths, query heads in all, and who is timed
    "between": ((128, 64), (1,), (333, 1000, 3333), (12, 40, 96), ALL),
    "widths": ((32, 96, 192, 256), (1,), (1000, 4096), (32,), ALL),
    "groups": ((128,), (8,), (400, 1500), (48,), ALL),
    "grid": ((128, 64), (1,), (128, 256, 512, 1024, 2048), (8, 32, 128, 512), OURS),
    "wide": ((192, 256), (1,), (128, 256, 512, 1024), (8, 32, 128), OURS),
}
CALL_MS = 2  # total time of a measurement, which repeats its call: there are hundreds of calls
MOST = 400_000  # heads * N; above it the choice is clear


class Place(NamedTuple):
    """One call to time."""

    set: str
    direction: str
    d: int
    causal: bool
    group: int  # query heads per key/value head
    N: int
    heads: int  # of all texts: 16 per text if 16 divides the number, otherwise all in one text

    @property
    def shape(self) -> tuple[int, int, int, int]:
        H = self.heads if self.heads % 16 else 16
        return self.heads // H, H, self.N, self.d


def places(names: Iterable[str] = SETS) -> Iterator[Place]:
    """Yield the calls of these sets, without those whose heads * N is above ``MOST``."""
    for name in names:
        widths, groups, lengths, heads, _ = SETS[name]
        grid = itertools.product(("forward", "backward"), widths, (False, True), groups, lengths, heads)
        yield from (Place(name, *place) for place in grid if place[-1] * place[-2] <= MOST)


def prepared(function: Callable, place: Place) -> Callable:
    """Return a function that runs one pass of ``function``, after two runs to warm up."""
    q, dO = (torch.randn(place.shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))  # [B, H, N, d]
    k, v = (torch.randn_like(q[:, : q.shape[1] // place.group]) for _ in range(2))  # [B, Hk, N, d]
    run = prepare(function, Cell(place.direction, place.d, place.causal, place.N), q, k, v, dO)
    run(), run()
    return run


def compile_ahead(workers: int, calls: Iterable[Place]) -> None:
    """Compile our kernels for some calls, side by side: Triton keeps them on disk."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, calls))


def _compile(place):
    for name in OURS:
        with contextlib.suppress(ValueError):
            prepared(implementation(name), place)


def replayed(function: Callable, place: Place) -> Callable[[], None]:
    """Return a function that runs one pass of ``function`` by replaying a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run = prepared(function, place)
        replay = timing.graphed(run, stream)
    return lambda: (replay(), run)[0]  # run has the tensors, and they must outlive the graph


def row(place: Place) -> dict:
    """Return the microseconds of each implementation at a place, the better of two rounds.

    An implementation that cannot compute the call has none.
    """
    runs = {}
    for name in SETS[place.set][-1]:
        with contextlib.suppress(ValueError, RuntimeError):  # of ours, of torch's backends
            runs[name] = replayed(implementation(name), place)
    us = {name: [] for name in runs}
    for name in timing.round_robin(list(runs), 2):
        us[name].append(timing.gpu_timer(runs[name], CALL_MS) * 1e3)
    B, H, N, d = place.shape
    where = {"set": place.set, "pass": place.direction, "d": d, "causal": place.causal, "N": N, "B": B, "H": H}
    where["Hk"] = H // place.group
    return where | {name: round(min(times), 1) for name, times in us.items()}


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--workers", type=int, default=8, help="processes that compile (default: 8)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, help="which sets to time (default: all)")
    options = parser.parse_args(argv)
    record.need_gpu()
    compile_ahead(options.workers, places(options.sets))
    report = record.origin(MODULE, argv) | {"unit": "microseconds", "rows": []}

    def add(place):
        report["rows"].append(row(place))
        print(*report["rows"][-1].values(), flush=True)

    record.run(((place, functools.partial(add, place)) for place in places(options.sets)), report, options.json)
    return record.conclude(report, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
