"""Measure attention in float8 on this GPU, beside bfloat16: ours and cuDNN's.

    python -m flashlab.bench.float8 --json notebooks/data/h200_float8.json
    python -m flashlab.bench.float8 --kernel hopper --json notebooks/data/h200_float8_hopper.json

Forward pass, 16,384 tokens in sequences of N, H * d = 2,048. First the tiles of a kernel are swept. Then these take
turns: the fastest tiles, the tiles that ``configurations`` chooses, both again with sums that stay in the tensor core
("one level"), and bfloat16. The codes are made before the clock starts. Making them, with queries and keys rotated and
values transposed, is timed apart, as a CUDA graph: alone, and with the attention that follows.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from flashlab.bench import record, round_robin
from flashlab.bench.competitors import Attention, implementation
from flashlab.bench.round_robin import Cell
from flashlab.kernels import attention_float8, masks
from flashlab.kernels.configurations import Configuration, hopper_width
from flashlab.kernels.float8 import Quantised, Scales, quantise, random_signs
from flashlab.kernels.problem import Problem
from flashlab.machine import timing

MODULE = "flashlab.bench.float8"
TOLERANCE = 0.1  # relative difference from bfloat16; about 0.05 for inputs with a normal distribution
QUANTISE = "quantise"  # the name of the row with the time to make codes

# Br, Bc, warps, stages
NARROW = [Configuration(*it) for it in (
    (64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2),
    (128, 128, 8, 3),
)]  # fmt: skip
WIDE = [Configuration(*it) for it in (
    (64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 8, 3), (64, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
)]  # fmt: skip
HOPPER = {  # by the width of a head
    64: [Configuration(*it) for it in ((192, 128, 16, 3), (128, 128, 12, 4))],
    128: [Configuration(*it) for it in ((192, 128, 16, 2), (128, 128, 12, 3))],
    256: [Configuration(*it) for it in ((128, 128, 12, 2), (128, 64, 12, 2), (128, 64, 12, 3))],
}


def launches(d: int, kernel: str = "portable") -> list[Configuration]:
    """Return the tiles to try for heads of d columns."""
    if kernel == "hopper":
        return HOPPER[hopper_width(d, d)]
    return NARROW if d <= 128 else WIDE


@functools.cache
def signs(d: int, device) -> torch.Tensor:
    """Return the signs of the rotation, which a model draws once."""
    return random_signs(d, 0, device)


def codes(q, k, v) -> tuple[Quantised, Quantised, Quantised]:
    """Return q and k rotated, and v transposed, in 8 bits."""
    rotation = signs(q.shape[3], q.device)
    return quantise(q, signs=rotation), quantise(k, signs=rotation), quantise(v, per="head", transposed=True)


def attend(eight, causal: bool, kernel: str = "portable", tiles: Configuration | None = None, two_level: bool = True):
    """Return O in bfloat16 from three ``Quantised``. tiles: None for those that ``configurations`` chooses."""
    numbers, scales = zip(*eight, strict=True)
    mask, scale = masks.either(causal, None), numbers[0].shape[3] ** -0.5
    problem = Problem.of(*numbers, mask, scale, scales=Scales(*scales, two_level))
    return attention_float8.run(*numbers, problem, torch.bfloat16, kernel, tiles)[0]


def float8(*options) -> Attention:
    """Return a kernel as a competitor, which makes the codes in its first call. options: as for ``attend``."""
    cached = {}

    def run(q, k, v, causal):
        if "codes" not in cached:
            cached["codes"] = codes(q, k, v)
        return attend(cached["codes"], causal, *options)

    return run


def from_bfloat16(kernel: str) -> Attention:
    """Return a competitor that makes the codes and attends."""
    return graphed(lambda q, k, v, causal: attend(codes(q, k, v), causal, kernel))


def quantising(q, k, v, causal):
    """Make the codes; return the queries' scales."""
    return codes(q, k, v)[0].scale


def graphed(attention: Attention) -> Attention:
    """Return a competitor that replays a CUDA graph of its first call: the host's time is not in it."""
    cached = {}

    def run(*inputs):
        if not inputs[0].is_cuda:
            return attention(*inputs)
        if not cached:
            cached["replay"] = timing.graphed(functools.partial(attention, *inputs))
        return cached["replay"]()

    return run


def competitors(kernel: str, fastest: Configuration | None) -> dict[str, Attention]:
    """Return those that take turns; the first is the standard for the others' results."""
    eight = {"float8": float8(kernel), "one level": float8(kernel, None, False), "with quantise": from_bfloat16(kernel)}
    if fastest is not None:
        eight |= {"fastest": float8(kernel, fastest), "fastest, one level": float8(kernel, fastest, False)}
    if kernel != "portable":
        eight["portable float8"] = float8("portable")
    return {name: implementation(name) for name in ("cudnn", "flashlab", "portable")} | eight


def compile_all(cells: list[Cell], kernel: str) -> None:
    """Compile the tiles of the sweep, with two levels and with one, in threads, on a short sequence."""
    jobs = []
    for cell in {(cell.d, cell.causal): cell for cell in cells}.values():
        shape = 1, cell.shape[1], 2048, cell.d
        eight = codes(*(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)))
        for tiles, two_level in itertools.product(launches(cell.d, kernel), (True, False)):
            jobs.append((eight, cell.causal, kernel, tiles, two_level))

    def quietly(job):
        with contextlib.suppress(Exception):  # whoever launches it reports the reason
            attend(*job)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(quietly, jobs))
    torch.cuda.synchronize()


def sweep(
    cell: Cell, kernel: str, report: dict, timer: Callable = timing.gpu_timer, device: str = "cuda"
) -> Configuration | None:
    """Time the tiles of a cell, keep a row for each, and return the fastest; None if none ran."""
    generator = torch.Generator(device).manual_seed(0)
    make = (torch.randn(cell.shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(3))
    eight, rows = codes(*make), []
    for tiles in launches(cell.d, kernel):
        place = {"d": cell.d, "causal": cell.causal, "N": cell.N, "launch": list(tiles[:4])}
        try:
            ms = timer(lambda tiles=tiles: attend(eight, cell.causal, kernel, tiles))
        except Exception as failure:  # more shared memory than there is, or another refusal of the compiler's
            report["left_out"][f"{cell}: tiles {tiles[:4]}"] = str(failure).split("\n")[0]
            continue
        rows.append(place | {"ms": ms, "tflops": cell.flops / ms / 1e9})
    report["sweep"] += rows
    return Configuration(*min(rows, key=lambda row: row["ms"])["launch"]) if rows else None


def measure(cell: Cell, kernel: str, report: dict, rounds: int, **options) -> None:
    """Sweep the tiles of a cell, time the fastest beside the others, and add both to the report.

    options: as for ``round_robin.measure``.
    """
    fastest = sweep(cell, kernel, report, **{name: x for name, x in options.items() if name in ("timer", "device")})
    for functions in (competitors(kernel, fastest), {QUANTISE: graphed(quantising)}):
        rows, left_out = round_robin.measure(cell, functions, rounds=rounds, tolerance=TOLERANCE, **options)
        report["rows"] += [row if row["impl"] != QUANTISE else row | {"tflops": None} for row in rows]
        report["left_out"] |= left_out


def table(rows: list[dict]) -> str:
    """Return the rows as text: TFLOP/s, and what the second level and making the codes take of the attention's time."""
    names = ["cudnn", "flashlab", "portable", "float8", "fastest", "portable float8"]
    names = [name for name in names if name != "portable float8" or any(row["impl"] == name for row in rows)]
    lines = [f"{'TFLOP/s':24}" + "".join(f"{name[:9]:>10}" for name in names) + f"{'2 levels':>10}{'quantise':>10}"]
    for place, group in itertools.groupby(rows, lambda row: (row["d"], row["causal"], row["N"])):
        by_name = {row["impl"]: row for row in group}
        d, causal, N = place
        line = f"d={d:<4} {'causal' if causal else 'full':7} N={N:<9}"
        line += "".join(f"{by_name[name]['tflops']:10.0f}" if name in by_name else f"{'–':>10}" for name in names)
        line += _share(by_name, "fastest", "fastest, one level") + _share(by_name, "fastest", QUANTISE)
        lines.append(line)
    return "\n".join(lines)


def _share(rows: Mapping[str, dict], name: str, other: str) -> str:
    """Return how much longer ``name`` takes than ``other``, or the time of ``QUANTISE`` divided by that of ``name``."""
    if not {name, other} <= rows.keys():
        return f"{'–':>10}"
    ours, theirs = rows[name]["ms"], rows[other]["ms"]
    return f"{(theirs / ours if other == QUANTISE else ours / theirs - 1):10.1%}"


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--d", nargs="+", type=record.whole, default=[128, 256, 64], help="head dimensions")
    parser.add_argument("--N", nargs="+", type=record.whole, default=[16384, 4096], help="sequence lengths")
    parser.add_argument("--masks", nargs="+", choices=("full", "causal"), default=["full", "causal"])
    parser.add_argument("--kernel", choices=("portable", "hopper"), default="portable", help="whose tiles are swept")
    parser.add_argument("--rounds", type=record.whole, default=3)
    parser.add_argument("--seconds", type=record.pause, default=240, help="after which no cell is begun")
    options = parser.parse_args(argv)
    record.need_gpu()
    grid = itertools.product(options.N, (mask == "causal" for mask in options.masks), options.d)
    cells = [Cell("forward", d, causal, N) for N, causal, d in grid]
    compile_all(cells, options.kernel)
    report = record.origin(MODULE, argv) | {"rows": [], "sweep": []}
    one = functools.partial(measure, kernel=options.kernel, report=report, rounds=options.rounds, gap=0.1)
    record.run(((cell, functools.partial(one, cell)) for cell in cells), report, options.json, options.seconds)
    return record.conclude(report, options.json, table(report["rows"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
