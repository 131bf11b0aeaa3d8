"""Time the Python part of a call of attention on a GPU, for a shape that was called before.

    python -m flashlab.bench.calls --impls portable hopper cudnn flash

This is the time from the call to its return, for inputs so small that Python never waits for the GPU: one head of
[64, 64], bfloat16. "recorded" is a forward pass that autograd records for a backward pass, and "both" is both passes.
torch runs a backward pass in a thread of its own; in "one thread" both passes run in the thread of the caller. "graph"
replays both passes as a CUDA graph. All take turns, round after round, and the median over the rounds is reported.
"""

import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch

from flashlab.bench import record
from flashlab.bench.competitors import NAMES, Attention, implementation
from flashlab.machine.timing import graphed, round_robin

MODULE = "flashlab.bench.calls"
USUAL = ("flashlab", "portable", "hopper", "cudnn", "flash", "fa4")
ROUNDS, CALLS = 5, 200


def passes(function: Attention, device: str = "cuda") -> dict[str, Callable]:
    """Return what is timed of an implementation, by name: callables without arguments."""
    q, k, v, dO = (torch.randn(1, 1, 64, 64, device=device, dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    O = function(*inputs, False)  # [1, 1, 64, 64]

    def both(inputs=inputs):
        return torch.autograd.grad(function(*inputs, False), inputs, dO)

    def one_thread():
        with torch.autograd.set_multithreading_enabled(False):
            return both()

    runs = {
        "forward": torch.no_grad()(lambda: function(q, k, v, False)),
        "recorded": lambda: function(*inputs, False),
        "backward": lambda: torch.autograd.grad(O, inputs, dO, retain_graph=True),
        "both": both,
        "one thread": one_thread,
    }
    return runs if device == "cpu" else runs | {"graph": _graph_of(both, q, k, v)}


def _graph_of(both, q, k, v):
    """Return a function that replays both passes of copies of these inputs; its first call records them."""

    @functools.cache
    def recorded():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # with inputs made elsewhere, autograd would use a second stream
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            return graphed(lambda: both(inputs), stream), inputs  # they must live as long as the graph

    return lambda: recorded()[0]()


def overhead(functions: Mapping[str, Attention], device: str = "cuda") -> dict[str, dict[str, float]]:
    """Return the microseconds of each pass of each implementation.

    Where a pass fails, it and the later passes of the implementation are left out.
    """
    runs = {}
    for name, function in functions.items():
        with contextlib.suppress(Exception):  # a competitor may raise any exception
            for which, run in passes(function, device).items():
                host(run, 20, device)  # to warm up
                runs[name, which] = run
    found = {place: [] for place in runs}
    for place in round_robin(list(runs), ROUNDS):
        found[place].append(host(runs[place], CALLS, device))
    return {
        name: {which: statistics.median(us) for (whose, which), us in found.items() if whose == name}
        for name in dict.fromkeys(name for name, _ in runs)
    }


def host(run: Callable[[], object], calls: int, device: str) -> float:
    """Return the microseconds until a call of ``run`` returns, the mean over these calls in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls * 1e6


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the microseconds as text, a line per implementation."""
    lines = [
        name.ljust(11) + "".join(f"{which} {us:.0f}".rjust(15) for which, us in row.items())
        for name, row in found.items()
    ]
    return "\n".join(["a call in Python, µs", *lines])


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--impls", nargs="+", choices=NAMES, default=USUAL)
    options = parser.parse_args(argv)
    record.need_gpu()
    report = record.origin(MODULE, argv)
    report["launch_us"] = overhead({name: implementation(name) for name in options.impls})
    return record.conclude(report, options.json, table(report["launch_us"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
