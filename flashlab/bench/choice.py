"""Time the portable and the Hopper kernels on a Hopper GPU where sequences are short or heads are few.

    python -m flashlab.bench.choice --json notebooks/data/h200_choice.json

bfloat16, both passes, with and without a causal mask. ``flashlab.kernels.configurations`` chooses between the two by a
rule. The rows of the set "grid" are for making it; those of "between" have other lengths and heads, and are for testing
it; there torch's backends are timed as well. Each call is captured in a CUDA graph: a kernel of 10 µs has ended before
Python launches the next.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from flashlab.bench import record
from flashlab.bench.competitors import implementation
from flashlab.bench.round_robin import Cell, prepare
from flashlab.machine import timing

MODULE = "flashlab.bench.choice"
OURS = "portable", "hopper"
SETS = {  # lengths, heads in all, and who is timed
    "grid": ((128, 256, 512, 1024, 2048), (8, 32, 128, 512), OURS),
    "between": ((333, 1000, 1500, 3333), (12, 40, 96), (*OURS, "cudnn", "flash")),
}
CALL_MS = 2  # per measurement: there are hundreds of short calls
MOST = 400_000  # heads * N: above, nothing is close


class Place(NamedTuple):
    """One call to time."""

    set: str
    direction: str
    d: int
    causal: bool
    N: int
    heads: int  # of all batches, up to 16 of each

    @property
    def shape(self) -> tuple[int, int, int, int]:
        H = self.heads if self.heads % 16 else 16
        return self.heads // H, H, self.N, self.d


def places() -> Iterator[Place]:
    """Yield every call."""
    for name, (lengths, heads, _) in SETS.items():
        grid = itertools.product(("forward", "backward"), (128, 64), (False, True), lengths, heads)
        yield from (Place(name, *place) for place in grid if place[-1] * place[-2] <= MOST)


def replayed(function: Callable, place: Place) -> Callable[[], None]:
    """Return a function that runs one pass of ``function`` by replaying a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        q, k, v, dO = (torch.randn(place.shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))  # [B, H, N, d]
        run = prepare(function, Cell(place.direction, place.d, place.causal, place.N), q, k, v, dO)
        replay = timing.graphed(run, stream)
    return lambda: (replay(), run)[0]  # run has the tensors, and they must outlive the graph


def row(place: Place) -> dict:
    """Return the microseconds of each implementation at a place, the better of two rounds."""
    runs = {name: replayed(implementation(name), place) for name in SETS[place.set][2]}
    us = {name: [] for name in runs}
    for name in timing.round_robin(list(runs), 2):
        us[name].append(timing.gpu_timer(runs[name], CALL_MS) * 1e3)
    B, H, N, d = place.shape
    where = {"set": place.set, "pass": place.direction, "d": d, "causal": place.causal, "N": N, "B": B, "H": H}
    return where | {name: round(min(times), 1) for name, times in us.items()}


def main(argv: list[str]) -> int:
    """Run the command line. Returns 0; 1 if the file could not be written; 2 without a GPU."""
    options = record.parser(MODULE, __doc__).parse_args(argv)
    if not record.has_gpu():
        return 2
    report = record.origin(MODULE, argv) | {"unit": "microseconds", "rows": []}
    for place in places():
        report["rows"].append(row(place))
        print(*report["rows"][-1].values(), flush=True)
    return 0 if record.keep(options.json, report) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
