"""Measure a step of decoding on a GPU: our attention and torch's; ours in pages, 8 bits, latent, with a shared prefix.

    python -m flashlab.bench.decoding --json notebooks/data/h200_decoding.json

One query per head and text, bfloat16, d = 128; queries of a cache in 8 bits are float16, latent ones have 576 columns.
Every call is a CUDA graph: the time of the host is not measured. A call starts with an L2 cache full of numbers just
written, which it must write back. First our tiles and numbers of parts are swept. Then the fastest of them, the rule's
choice and the competitors take turns in several rounds: reported is the median over rounds of the median over calls.
``clean_us`` is measured once, after the rounds, and starts with a cache full of numbers just read.
"""

import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from flashlab.bench import record
from flashlab.bench.competitors import BACKENDS
from flashlab.kernels import masks
from flashlab.kernels.decode import Cache, decode, operator, quantise
from flashlab.kernels.decode.tiles import Launch, sms_of, splits_for
from flashlab.kernels.shared_prefix import Prefix, decode_shared
from flashlab.machine import costs, timing
from flashlab.machine.timing import FLUSH_BYTES

MODULE = "flashlab.bench.decoding"
BF16, D = torch.bfloat16, 128
TOLERANCE = 0.02  # relative difference of results: a few roundings of bfloat16
ROUNDS, CALLS = 3, 40
QUICK = 9  # calls in the sweep
PAST_S = 135  # seconds after which no further job is begun


class Cell(NamedTuple):
    """One shape: texts, keys of each, query heads, key/value heads."""

    B: int
    N: int
    H: int
    Hk: int

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return 2 * 2 * self.B * self.N * self.Hk * D


CELLS = (
    Cell(1, 8192, 32, 8), Cell(1, 131072, 32, 8), Cell(16, 16384, 64, 8), Cell(64, 8192, 32, 8),
    Cell(16, 16384, 32, 32), Cell(128, 1024, 32, 8), Cell(16, 16384, 16, 1),
)  # fmt: skip
TYPICAL = CELLS[2]  # the cell of pages and of 8 bits
FULL = CELLS[3]  # the machine is full without a split

# Br, Bc, warps, stages, programs per SM
PLAIN = [Launch(16, *it) for it in (
    (64, 4, 2, 4), (64, 4, 3, 3), (64, 4, 4, 2), (128, 4, 2, 2), (128, 4, 3, 1), (128, 8, 3, 1),
)]  # fmt: skip
PAGED = [Launch(16, *it) for it in ((64, 4, 5, 2), (64, 4, 6, 2), (128, 8, 5, 1))]
EIGHT = [Launch(16, *it) for it in ((64, 4, 3, 3), (128, 4, 3, 2), (128, 4, 3, 3))]
LATENT = {
    16: [Launch(16, *it) for it in ((32, 4, 3, 2), (32, 4, 2, 4), (16, 4, 4, 3))],
    128: [Launch(64, 64, 8, 2, 1)],
}


def tensors(cell: Cell, dtype=BF16):
    """Return q [B, H, 1, d], K and V [B, Hk, N, d] of a cell."""
    shapes = (cell.B, cell.H, 1, D), (cell.B, cell.Hk, cell.N, D), (cell.B, cell.Hk, cell.N, D)
    generator = torch.Generator("cuda").manual_seed(cell.N)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator) for shape in shapes]


def in_pages(K, V, page):
    """Return the same keys and values as a ``Cache`` of pages, in random order."""
    B, Hk, N, _ = K.shape
    order = torch.randperm(B * N // page, device="cuda")
    paged = []
    for X in (K, V):
        X = X.reshape(B, Hk, N // page, page, -1).transpose(1, 2).flatten(0, 1)  # [pages, Hk, page, d]
        paged.append(torch.empty_like(X).index_copy_(0, order, X))
    return Cache(*paged, order.int().reshape(B, N // page))


def in_eight_bits(K, V, dtype):
    """Return keys and values as a ``Cache`` of 8-bit codes and scales."""
    codes, scales = zip(*(quantise(X, dtype) for X in (K, V)), strict=True)
    return Cache(*codes, None, None, torch.stack(scales))


def ours(q, cache, launch: Launch, S: int, scale=D**-0.5):
    """Return a call of our kernels with these tiles and S parts."""
    problem = operator.problem_of(q, cache, masks.causal(), scale)
    step = operator.Step.of(q, cache, problem, choice=launch, S=S)
    return lambda: operator.run(q, cache, step)[0]


def numbers_of_parts(programs, N, launch) -> list[int]:
    """Return the numbers of parts to try: the rule's, and those that fill the card once to three times."""
    slots = sms_of(torch.device("cuda")) * launch.per_sm
    likely = [splits_for(programs, N, launch, sms_of(torch.device("cuda")))]
    likely += [max(1, slots * k // (2 * programs)) for k in (2, 4, 6)]
    return sorted({min(S, -(-N // launch.Bc)) for S in likely})


def microseconds(replay: Callable, calls: int, clean: bool = False) -> float:
    """Return the median time of one call, each with an L2 cache full of numbers just written, or just read (clean)."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for start, end in events:
        flush.sum() if clean else flush.zero_()
        start.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3


def swept(label: dict, q, cache, launches, report) -> tuple[Launch, int]:
    """Time each launch with each number of parts, until one fails; keep the rows, and return the fastest."""
    rows, (B, H, n, d), Hk = [], q.shape, cache.K.shape[1]
    scale = D**-0.5 if d == D else 192**-0.5
    for launch in launches:
        programs = B * Hk * -(-n * H // Hk // launch.Br)
        for S in numbers_of_parts(programs, cache.most, launch):
            row = label | {"launch": launch._asdict(), "S": S}
            try:
                rows.append(row | {"us": microseconds(timing.graphed(ours(q, cache, launch, S, scale)), QUICK)})
            except Exception as failure:  # more shared memory than there is, or another compiler's refusal
                report["left_out"][f"{label}: {tuple(launch)}, S={S}"] = str(failure).split("\n")[0]
                break
    report["sweep"] += rows
    best = min(rows, key=lambda row: row["us"])
    return Launch(**best["launch"]), best["S"]


def compete(label: dict, runs: dict[str, Callable], nbytes: int, report: dict, flops: float = 0) -> None:
    """Time these calls in turns, keep a row for each, and print them.

    A call whose result is not that of the first, up to TOLERANCE, is left out. "copy" has no result to compare.
    """
    replays, first = {}, None
    for name, run in runs.items():
        try:
            replay = timing.graphed(run)
            result = replay()
            torch.cuda.synchronize()
            if name != "copy":
                first = result.float() if first is None else first
                if not (error := costs.error(result.float().cpu().numpy(), first.cpu().numpy())) <= TOLERANCE:
                    raise ValueError(f"results differ by {error:.2g}")
            replays[name] = replay
        except Exception as failure:
            report["left_out"][f"{label}: {name}"] = str(failure).split("\n")[0]
    rounds = {name: [] for name in replays}
    for name in timing.round_robin(list(replays), ROUNDS):
        time.sleep(0.05)
        rounds[name].append(microseconds(replays[name], CALLS))
    for name, times in rounds.items():
        us = statistics.median(times)
        row = label | {"impl": name, "us": us, "rounds_us": times, "tb_s": nbytes / us / 1e6}
        row |= {"clean_us": microseconds(replays[name], CALLS, clean=True)}
        row |= {"tflops": flops / us / 1e6} if flops else {}
        report["rows"].append(row)
        print(
            ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "rounds_us"
            )
        )
    sys.stdout.flush()


def sdpa(backend, q, K, V):
    """Return a call of torch's attention."""
    return lambda: _sdpa(BACKENDS[backend], q, K, V)


def _sdpa(backend, q, K, V):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, K, V, enable_gqa=True)


def flex(q, K, V):
    """Return a call of torch's FlexAttention, compiled for these shapes."""
    torch.compiler.reset()  # or else torch gives up after eight shapes
    attend, grouped = torch.compile(flex_attention, dynamic=False), q.shape[1] != K.shape[1]
    return lambda: attend(q, K, V, enable_gqa=grouped)


def copy_of(nbytes):
    """Return a call that moves so many bytes: half of them are read, half written.

    It negates the numbers, so torch launches a kernel. ``copy_`` launches none, and moves 1 GB at two thirds of its
    rate.
    """
    source = torch.empty(nbytes // 8, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.neg(source, out=target)


def plain(cell: Cell, report: dict) -> None:
    """Sweep and compare one of the cells."""
    q, K, V = tensors(cell)
    label = {"part": "plain"} | cell._asdict()
    launch, S = swept(label, q, Cache(K, V), PLAIN, report)
    runs = {"cudnn": sdpa("cudnn", q, K, V), "flash": sdpa("flash", q, K, V), "flex": flex(q, K, V)}
    runs |= {"flashlab": lambda: decode(q, (K, V)), "fastest": ours(q, Cache(K, V), launch, S)}
    if cell in (TYPICAL, FULL):
        runs |= {f"fixed_split={size}": lambda size=size: decode(q, (K, V), fixed_split=size) for size in (1024, 2048)}
    compete(label, runs | {"copy": copy_of(cell.nbytes)}, cell.nbytes, report)


def pages(report: dict) -> None:
    """Compare pages of 64 and 16 tokens with a plain tensor."""
    q, K, V = tensors(TYPICAL)
    runs = {"plain": lambda: decode(q, (K, V))}
    for page in (64, 16):
        cache = in_pages(K, V, page)
        launch, S = swept({"part": "pages", "page": page}, q, cache, PAGED, report)
        runs |= {f"page {page}": lambda c=cache: decode(q, c), f"page {page}, fastest": ours(q, cache, launch, S)}
    compete({"part": "pages"} | TYPICAL._asdict(), runs, TYPICAL.nbytes, report)


def bits(report: dict) -> None:
    """Compare caches of 8 bits with one of 16. Queries are in float16, the dtype of products with 8 bits."""
    q, K, V = tensors(TYPICAL, torch.float16)
    label = {"part": "8 bits"} | TYPICAL._asdict()
    compete(label, {"float16": lambda: decode(q, (K, V))}, TYPICAL.nbytes, report)
    for name, dtype in ("int8", torch.int8), ("e4m3", torch.float8_e4m3fn):
        cache = in_eight_bits(K, V, dtype)
        launch, S = swept(label | {"dtype": name}, q, cache, EIGHT, report)
        runs = {name: lambda c=cache: decode(q, c), f"{name}, fastest": ours(q, cache, launch, S)}
        compete(label, runs, cache.K.nbytes + cache.V.nbytes + cache.scales.nbytes, report)


def latent(report: dict) -> None:
    """Measure latent attention in absorbed form, 64 texts of 8,192 tokens, keys of 512 + 64: 16 and 128 heads."""
    B, N, scale = 64, 8192, 192**-0.5
    K = torch.randn(B, 1, N, 576, device="cuda", dtype=BF16)
    cache, paged = Cache(K, K[..., :512]), in_pages(K, K[..., :512], 64)
    paged = paged._replace(V=paged.K[..., :512])
    for H in (16, 128):
        q = torch.randn(B, H, 1, 576, device="cuda", dtype=BF16)
        label = {"part": "latent", "B": B, "N": N, "H": H}
        launch, S = swept(label, q, cache, LATENT[H], report)
        runs = {"fastest": ours(q, cache, launch, S, scale), "flashlab": lambda q=q: decode(q, cache, scale=scale)}
        runs |= {"page 64": lambda q=q: decode(q, paged, scale=scale)}
        compete(label, runs, K.nbytes, report, flops=2 * B * H * N * (576 + 512))


def prefix(report: dict) -> None:
    """Compare one shared prefix of 8,192 tokens with a copy in each of 256 texts, which go on for 128 tokens."""
    B, P, N, H, Hk = 256, 8192, 128, 64, 8
    q = torch.randn(B, H, 1, D, device="cuda", dtype=BF16)
    whole = [torch.empty(B, Hk, P + N, D, device="cuda", dtype=BF16).normal_() for _ in range(2)]
    shared = [torch.randn(1, Hk, P, D, device="cuda", dtype=BF16) for _ in range(2)]
    for X, X_p in zip(whole, shared, strict=True):
        X[:, :, :P] = X_p
    own = [X[:, :, P:].contiguous() for X in whole]
    runs = {"unshared": lambda: decode(q, tuple(whole))}
    runs |= {"shared": lambda: decode_shared(q, [Prefix(tuple(shared))], tuple(own))}
    label = {"part": "prefix", "B": B, "P": P, "N": N, "H": H, "Hk": Hk}
    compete(label, runs, 2 * whole[0].nbytes, report)


def compile_all() -> None:
    """Compile what the sweeps launch, in threads, on small tensors with strides that are multiples of 16, too."""
    small = Cell(2, 1024, 16, 2)
    q, K, V = tensors(small)
    half = [X.half() for X in (q, K, V)]
    caches = [(q, Cache(K, V), PLAIN), (q, in_pages(K, V, 64), PAGED), (q, in_pages(K, V, 16), PAGED)]
    caches += [(half[0], in_eight_bits(*half[1:], dtype), EIGHT) for dtype in (torch.int8, torch.float8_e4m3fn)]
    for H, launches in LATENT.items():
        K = torch.randn(2, 1, 1024, 576, device="cuda", dtype=BF16)
        caches.append((torch.randn(2, H, 1, 576, device="cuda", dtype=BF16), Cache(K, K[..., :512]), launches))
    jobs = [ours(q, cache, launch, 2) for q, cache, launches in caches for launch in launches]

    def quietly(job):
        with contextlib.suppress(Exception):  # ``swept`` reports the reason
            job()

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(quietly, jobs))
    torch.cuda.synchronize()


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    options = record.parser(MODULE, __doc__).parse_args(argv)
    record.need_gpu()
    report = record.origin(MODULE, argv) | {"what": __doc__.split("\n\n")[2], "rows": [], "sweep": []}
    jobs = [("compilation", compile_all), *((cell, functools.partial(plain, cell, report)) for cell in CELLS)]
    jobs += [(part.__name__, functools.partial(part, report)) for part in (prefix, pages, bits, latent)]
    record.run(jobs, report, options.json, PAST_S)
    return record.conclude(report, options.json, f"{report['seconds']} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
