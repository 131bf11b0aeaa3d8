"""Measure attention over several GPUs of one host: rings in three placements, gather, all-to-all, and torch's own.

    python -m flashlab.bench.ring --json notebooks/data/h200_ring.json

Causal attention, bfloat16, H = 32, Hk = 8, d = 128, B = 1, with 8K to 128K tokens per GPU, on 1, 2, 4, … of the GPUs: a
forward pass, and forward and backward together. Every cell runs in processes that are ended if they do not answer, the
most important cells come first, and the file is written anew after each of them. Before a way is timed, its output and
gradients are compared with those of one GPU. The time of "one GPU" is that of ``flash_attention`` on as many tokens
while the others rest, the mean over the GPUs. In "apart" all GPUs do the same at the same time, each for itself.

"share" is the rate per GPU, divided by the rate of one GPU that works alone. ``--device cpu --tiny`` runs the same
code in seconds, with gloo.
"""

import contextlib
import functools
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashlab.bench import record
from flashlab.bench.record import reason, whole
from flashlab.bench.round_robin import TOLERANCE
from flashlab.distributed import Team, attention, plan, shard
from flashlab.distributed.wire import GroupError
from flashlab.machine import costs, ranks

FLASHLAB = {
    "zigzag": functools.partial(attention, placement="zigzag"),
    "contiguous": functools.partial(attention, placement="contiguous"),
    "striped": functools.partial(attention, placement="striped"),
    "all-to-all": functools.partial(attention, way="all-to-all", placement="contiguous"),
    "gather": functools.partial(attention, way="gather", placement="zigzag"),
}
TORCH = {  # torch's context_parallel: (backend, how K and V are sent)
    "torch cudnn": (SDPBackend.CUDNN_ATTENTION, "allgather"),
    "torch cudnn alltoall": (SDPBackend.CUDNN_ATTENTION, "alltoall"),
    "torch flash": (SDPBackend.FLASH_ATTENTION, "allgather"),
}
REPEATED = ", K and V repeated"  # for torch's ways that cannot share key/value heads
ONE = "one GPU"
APART = "apart"  # every GPU for itself: shows what it loses because the others work, too
START = 90.0  # seconds that the first cell of a team may take: processes start, kernels compile
LONG_MS = 1000.0  # a pass that takes longer is timed once
PAUSE = 0.1  # seconds of rest before each round: the cards are power-capped
GPU_MS = {"forward": 150.0, "both": 400.0}  # milliseconds of a round, which repeats a pass


class Shape(NamedTuple):
    """The heads and the dtype of the inputs."""

    H: int = 32
    Hk: int = 8
    d: int = 128
    dtype: torch.dtype = torch.bfloat16

    def flops(self, N, direction):
        """Return the FLOPs of the products of a causal pass over N tokens: 2 forward, 5 more backward."""
        products = costs.flops(N, N, self.d, training=direction == "both", rebuilt=True)
        return self.H * products / 2


class Cell(NamedTuple):
    """One place of the grid."""

    way: str  # of FLASHLAB or TORCH, or ONE or APART
    P: int
    tokens: int  # per GPU
    direction: str  # "forward", or "both": forward and backward

    def __str__(self):
        return f"{self.way}, {self.P} GPU{'s' * (self.P > 1)}, {self.tokens} tokens per GPU, {self.direction}"


def cells(sizes: list[int], groups: list[int]) -> Iterator[Cell]:
    """Yield the grid, the most important cells first. sizes: tokens per GPU, the first the most important."""
    seen = set()

    def some(ways, many, tokens):
        for P in many:
            for way in ways:
                for direction in ("forward", "both"):
                    cell = Cell(way, P, tokens, direction)
                    if cell not in seen:
                        seen.add(cell)
                        yield cell

    many, first = [P for P in reversed(groups) if P > 1], sizes[0]
    rings, others = ["zigzag", "contiguous", APART], ["torch cudnn", *FLASHLAB]
    parts = [(rings, many, first), (others, many[:1], first)]
    parts += [(rings, many, tokens) for tokens in sizes[1:]]
    parts += [(others, many, tokens) for tokens in sizes] + [(TORCH, many, first)]
    for ways, group, tokens in parts:
        yield from some([ONE], [1], tokens)
        yield from some(ways, group, tokens)


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, … up to ``most``."""
    return [1 << n for n in range(most.bit_length())]


# What each process of the team runs.

_groups = {}


class Failed(NamedTuple):
    """The reason why a process could not do what it was asked to do."""

    reason: str


def guarded(function, *args):
    """Return what a function returns, or ``Failed`` with the first line of its exception."""
    try:
        return function(*args)
    except GroupError:
        raise  # the others wait for this process, or have ended
    except Exception as error:
        return Failed(reason(error))


def _group(P):
    """Return the group of the first P processes; every process must call this."""
    if P not in _groups:
        _groups[P] = dist.new_group(list(range(P)))
    return _groups[P]


def _inputs(N, shape, device, seed=0):
    """Make Q, K, V and dO of N tokens, the same in every process."""
    generator = torch.Generator(device).manual_seed(seed)
    sizes = (1, shape.H, N, shape.d), *[(1, shape.Hk, N, shape.d)] * 2, (1, shape.H, N, shape.d)
    return [torch.randn(size, generator=generator, device=device, dtype=shape.dtype) for size in sizes]


def _alone(q, k, v):
    """Return attention by one processor."""
    if q.is_cuda:
        from flashlab.kernels import flash_attention

        return flash_attention(q, k, v, causal=True)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@contextlib.contextmanager
def _prepared(way, P, N, shape, device):
    """Yield (attention, q, k, v, dO) of this process for N tokens over the first P: what is then timed."""
    if way in (ONE, APART):
        yield _alone, *_inputs(N // P, shape, device)
    elif way in FLASHLAB:
        group = _group(P)
        placement = FLASHLAB[way].keywords["placement"]
        own = [shard(x, group=group, placement=placement) for x in _inputs(N, shape, device)]
        yield functools.partial(FLASHLAB[way], group=group, causal=True), *own
    else:
        with _torchs(way, P, N, shape, device) as prepared:
            yield prepared


@contextlib.contextmanager
def _torchs(way, P, N, shape, device):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.experimental import _attention, context_parallel

    backend, rotation = TORCH[way.removesuffix(REPEATED)]
    _attention.set_rotate_method(rotation)
    mesh = DeviceMesh.from_group(_group(P), torch.device(device).type)
    q, k, v, dO = _inputs(N, shape, device)
    if way.endswith(REPEATED):
        k, v = (x.repeat_interleave(shape.H // shape.Hk, 1) for x in (k, v))

    def attend(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    buffers = [q, k, v, dO]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
        yield attend, *buffers


def _pass(attention, q, k, v, dO, direction):
    """Return what runs one pass: a callable without arguments that returns the results."""
    if direction == "forward":
        return torch.no_grad()(lambda: (attention(q, k, v),))
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def both():
        O = attention(q, k, v)
        return O.detach(), *torch.autograd.grad(O, (q, k, v), dO)

    return both


def check(way: str, P: int, tokens: int, shape: Shape, device: str) -> float | None:
    """Return how much output and gradients differ from one processor's, at the worst; None outside of the group."""
    _group(P)
    if dist.get_rank() >= P:
        return None
    N = tokens * P
    with _prepared(way, P, N, shape, _device(device)) as (attention, *tensors):
        found = _pass(attention, *tensors, "both")()
    expected = _pass(_alone, *_inputs(N, shape, _device(device)), "both")()
    if way.endswith(REPEATED):  # the gradients of repeated heads add up
        found = *found[:2], *(x.unflatten(1, (shape.Hk, -1)).float().sum(2) for x in found[2:])
    placement = FLASHLAB[way].keywords["placement"] if way in FLASHLAB else "zigzag"
    own = [shard(x, group=_group(P), placement=placement) for x in expected]
    return max(costs.error(x.float().cpu(), y.float().cpu()) for x, y in zip(found, own, strict=True))


def timed(cell: Cell, shape: Shape, device: str, rounds: int) -> dict | None:
    """Return the milliseconds of each round, and the most memory beside the inputs; None outside of the group.

    Passes follow one another without a pause, as layers do. On a GPU a round has as many as fill ``GPU_MS``.
    """
    way, P, tokens, direction = cell
    if way != ONE:
        _group(P)
        if dist.get_rank() >= P:
            return None
    with _prepared(way, P, tokens * P, shape, _device(device)) as (attention, *tensors):
        run = _pass(attention, *tensors, direction)
        if way != ONE:
            return _rounds(run, direction, _group(P), device == "cuda", rounds)
        for rank in range(dist.get_world_size()):  # one after the other; the others rest
            _meet(None, device == "cuda")
            if rank == dist.get_rank():
                answers = _rounds(run, direction, None, device == "cuda", rounds)
        return answers


def _rounds(run, direction, group, on_gpu, rounds):
    """Return what ``timed`` does. group: the processes that do this together; None if this one works alone."""
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    _clocked(run, 1, on_gpu)
    first = _clocked(run, 1, on_gpu)
    extra = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    if group is not None:  # all repeat equally often
        everyone = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, first, group)
        first = max(everyone)
    if first > LONG_MS:
        return {"rounds_ms": [first], "extra_bytes": extra}
    calls = max(1, round(GPU_MS[direction] / first)) if on_gpu else 1
    times = []
    for _ in range(rounds):
        if on_gpu:
            time.sleep(PAUSE)
        if group is not None:
            _meet(group, on_gpu)
        times.append(_clocked(run, calls, on_gpu))
    return {"rounds_ms": times, "extra_bytes": extra}


def _meet(group, on_gpu):
    """Wait until every process of the group is here: each on its own GPU, which NCCL would otherwise guess."""
    dist.barrier(group, device_ids=[torch.cuda.current_device()] if on_gpu else None)


def _clocked(run, calls, on_gpu):
    """Return the milliseconds per call, over so many calls."""
    if not on_gpu:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def _device(kind):
    return f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else kind


# What the main process does.


class Measurement:
    """A team, started anew when one was lost, and what the checks of each way found."""

    def __init__(self, P, device, shape, rounds, limit):
        self.P, self.device, self.shape, self.rounds, self.limit = P, device, shape, rounds, limit
        self.team, self.fresh, self.checked = None, True, {}

    def ask(self, function, *args):
        """Run a function in all processes. Raises GroupError with the reason if one failed.

        Processes that do not answer, or have lost one another, are ended; the next call starts others.
        """
        if self.team is None:
            backend = "nccl" if self.device == "cuda" else "gloo"
            self.team, self.fresh = Team(self.P, backend=backend, timeout=START), True
        try:
            answers = self.team.run(guarded, function, *args, timeout=START if self.fresh else self.limit)
        except GroupError:
            self.team = None
            raise
        self.fresh = False
        for answer in answers:
            if isinstance(answer, Failed):
                raise GroupError(answer.reason)
        return [answer for answer in answers if answer is not None]

    def variant(self, way: str, P: int) -> tuple[str, float]:
        """Return the way, or a variant of it, that computes what one GPU computes, and its largest difference."""
        few = 2048 if self.device == "cuda" else 16  # tokens per GPU
        for name in (way, way + REPEATED) if way in TORCH else (way,):
            try:
                error = max(self.ask(check, name, P, few, self.shape, self.device))
            except GroupError as fault:
                reason = fault
            else:
                if error <= TOLERANCE:
                    return name, error
                reason = GroupError(f"results differ by {error:.2g} from one GPU's")
        raise reason

    def row(self, cell: Cell) -> dict:
        """Measure one cell. Raises GroupError with the reason if that is impossible."""
        key = cell.way, cell.P
        if cell.way in (ONE, APART):  # what the others are compared with
            self.checked[key] = cell.way, 0.0
        if key not in self.checked:
            try:
                self.checked[key] = self.variant(*key)
            except GroupError as fault:
                self.checked[key] = fault
        if isinstance(self.checked[key], GroupError):
            raise self.checked[key]
        variant, error = self.checked[key]
        answers = self.ask(timed, cell._replace(way=variant), self.shape, self.device, self.rounds)
        of_all = statistics.mean if cell.way == ONE else max  # together, the slowest rank counts
        rounds = [of_all(times) for times in zip(*(one["rounds_ms"] for one in answers), strict=True)]
        ms = statistics.median(rounds)
        texts = cell.P if cell.way == APART else 1
        flops = texts * self.shape.flops(cell.P * cell.tokens // texts, cell.direction)
        rate = flops / cell.P / ms / 1e9
        row = cell._asdict() | {"variant": variant, "ms": ms, "tflops": rate, "rounds_ms": rounds, "error": error}
        return row | {"extra_bytes": max(one["extra_bytes"] for one in answers)} | self.predicted(cell)

    def predicted(self, cell: Cell) -> dict:
        """Return what the plan says of our ways: bytes sent by the busiest rank, and the share that is possible."""
        method = "ring" if cell.way in ranks.PLACEMENTS else cell.way
        names = {"ring": cell.way, "gather": "zigzag", "all-to-all": "contiguous"}
        if method not in names:
            return {}
        H, Hk, d, dtype = self.shape
        found = plan.costs(cell.P * cell.tokens, cell.P, H=H, Hk=Hk, d=d, itemsize=dtype.itemsize)
        cost = next(it for it in found if (it.method, it.placement) == (method, names[method]))
        sent = [s + (b if cell.direction == "both" else 0) for s, b in zip(cost.sent, cost.sent_backward, strict=True)]
        return {"sent_bytes": max(sent), "predicted_share": cost.efficiency}


def measure(cell: Cell, measurement: Measurement, report: dict) -> None:
    """Measure a cell, print it, and add it to the report. Raises GroupError with the reason if that is impossible."""
    row = measurement.row(cell)
    report["rows"].append(row)
    alone = {(it["tokens"], it["direction"]): it["tflops"] for it in report["rows"] if it["way"] == ONE}
    if rate := alone.get((cell.tokens, cell.direction)):
        row["share"] = row["tflops"] / rate
    share = f", {row['share']:.1%} of one GPU" if "share" in row else ""
    print(f"{cell}: {row['ms']:.2f} ms, {row['tflops']:.0f} TFLOP/s per GPU{share}", flush=True)


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``; 2 without two GPUs."""
    parser = record.parser("flashlab.bench.ring", __doc__)
    parser.add_argument("--groups", nargs="+", type=whole, help="numbers of GPUs, ascending (default: 1, 2, 4, …)")
    parser.add_argument("--tokens", nargs="+", type=whole, help="tokens per GPU, the most important first")
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--seconds", type=float, default=190.0, help="after which no cell begins")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds after which a cell is given up")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    options = parser.parse_args(argv)
    on_gpu = options.device == "cuda"
    if on_gpu:
        record.need_gpu()
    available = torch.cuda.device_count() if on_gpu else 4
    groups = options.groups or powers(available)
    if on_gpu and not 1 < max(groups) <= available:
        print(f"expected groups of 2 to {available} GPUs, the GPUs here, got {max(groups)}", file=sys.stderr)
        return 2
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # NVLink multicast stays off
    shape = Shape(H=4, Hk=4, d=16, dtype=torch.float32) if options.tiny else Shape()
    sizes = options.tokens or ([32] if options.tiny else [32768, 8192, 131072])
    report = record.origin("flashlab.bench.ring", argv) if on_gpu else {"device": "CPU, gloo"}
    report |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))} if on_gpu else {}
    report |= {"H": shape.H, "Hk": shape.Hk, "d": shape.d, "dtype": str(shape.dtype), "rows": []}
    measurement = Measurement(max(groups), options.device, shape, options.rounds, options.limit)
    jobs = ((cell, functools.partial(measure, cell, measurement, report)) for cell in cells(sizes, groups))
    try:
        record.run(jobs, report, options.json, options.seconds)
    finally:
        if measurement.team is not None:
            measurement.team.close()
    return record.conclude(report, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
