"""Timing on a GPU: one call with a cold L2 cache, and the order in which competitors take turns."""

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

CALL_MS = 40  # how long single calls are repeated to take their median
FLUSH_BYTES = 256 * 2**20  # written between calls: more than any L2 cache holds


def gpu_timer(run: Callable[[], object], ms: float | None = None) -> float:
    """Return the milliseconds of one call of ``run`` on the GPU: the median over calls, each with a cold L2 cache.

    ms: total measuring time (default ``CALL_MS``); at least five calls.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def timed(calls: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in events:
            flush.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)

    return timed(max(5, round((CALL_MS if ms is None else ms) / timed(3))))


def graphed(run: Callable[[], object], stream: torch.cuda.Stream | None = None) -> Callable[[], object]:
    """Record one call as a CUDA graph and return a function that replays it: host time is excluded.

    The function returns the call's result. The tensors that the call reads must live as long as the function.

    stream: the stream to record on, one of torch's own if None. Autograd runs a backward pass on the stream of its
    forward pass, so a backward pass is recorded on that one.
    """
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = run()

    def replay() -> object:
        graph.replay()
        return result

    return replay


def round_robin(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield the names in turn: each name once per round, and each round starts one name later than the last.

    A card under load lowers its clock, so the function that runs first after a pause has an advantage; rotating the
    order gives it to each in turn.
    """
    for r in range(rounds):
        for place in range(len(names)):
            yield names[(place + r) % len(names)]
