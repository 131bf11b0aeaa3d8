"""How fast attention is on the GPU at hand: ``python -m flashlab.bench``, ours beside torch's.

A card under load slows its clock, and whoever is timed first after a pause gains by it. So everything is timed in one
process in several rounds: in each round every implementation has its turn after an idle gap, the next round begins
with another one, and what is reported is the median over the rounds of the median over single calls, each with a
cold L2 cache. An implementation whose results differ from the others' is not timed.
"""

import argparse
import datetime
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from flashlab.machine.host import this_machine
from flashlab.machine.timing import gpu_timer, round_robin

NO_GPU = (
    "There is no GPU that kernels are compiled for here. Triton's interpreter shows what a kernel computes and moves; "
    "its times are not performance, so nothing is measured."
)
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
USUAL = ("flashlab", *BACKENDS, "flex")
IMPLEMENTATIONS = (*USUAL, "portable", "hopper", "fa4")
BACKWARD_FLOPS = 2.5  # five matrix products instead of two
TOLERANCE = 0.02  # relative difference between two implementations' results: a few roundings of bfloat16


class Cell(NamedTuple):
    """One place of the grid: which pass, over tokens // N sequences of N, in width // d heads."""

    direction: str  # "forward" or "backward"
    d: int
    causal: bool
    N: int
    tokens: int
    width: int

    @property
    def shape(self):
        return max(self.tokens // self.N, 1), self.width // self.d, self.N, self.d  # B, H, N, d

    @property
    def flops(self):
        """Floating-point operations of the matrix products that are asked for, whatever is computed twice."""
        B, H, N, d = self.shape
        return (
            4 * B * H * N**2 * d * (0.5 if self.causal else 1) * (BACKWARD_FLOPS if self.direction == "backward" else 1)
        )

    def __str__(self):
        return f"{self.direction} d={self.d} {'causal' if self.causal else 'full'} N={self.N}"


def implementation(name):
    """The function (q, k, v, causal) -> O of that name. SDPA's backends raise RuntimeError for what they cannot do."""
    if name in ("flashlab", "portable", "hopper"):
        from flashlab.kernels import flash_attention

        kernel = None if name == "flashlab" else name
        return lambda q, k, v, causal: flash_attention(q, k, v, causal=causal, kernel=kernel)
    if name == "flex":
        return _flex()
    if name == "fa4":
        return _fa4()

    def sdpa(q, k, v, causal):
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return sdpa


def _fa4():
    """FlashAttention-4, which has heads behind lengths: it gets and gives the same memory, seen otherwise."""
    from flash_attn.cute import flash_attn_func  # the package flash-attn-4

    def fa4(q, k, v, causal):
        O = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
        return (O[0] if isinstance(O, tuple) else O).transpose(1, 2)

    return fa4


def _flex():
    """FlexAttention, compiled anew for each case: otherwise torch soon gives up and runs it uncompiled."""
    attend, compiled = torch.compile(flex_attention, dynamic=False), {}

    def flex(q, k, v, causal):
        case = q.shape, causal, q.requires_grad
        if case not in compiled:
            compiled.clear()
            torch.compiler.reset()
            N = q.shape[2]
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device=q.device) if causal else None
            compiled[case] = mask
        return attend(q, k, v, block_mask=compiled[case])

    return flex


def prepare(function, cell, q, k, v, dO):
    """What is timed: a callable without arguments that runs one pass and returns its results."""
    if cell.direction == "forward":
        return torch.no_grad()(lambda: (function(q, k, v, cell.causal),))
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    O = function(*inputs, cell.causal)
    return lambda: torch.autograd.grad(O, inputs, dO, retain_graph=True)


def measure(cells, functions, *, rounds, gap, timer, device, dtype, tell=lambda *_: None):
    """Time every function on every cell.

    Args:
        cells: list of ``Cell``. functions: dict of name to ``implementation``.
        rounds: how often all take their turn. gap: seconds of idleness before each turn.
        timer: the function from a callable to the milliseconds of one call. device, dtype: of the tensors.
        tell: called with (turns done, turns in all, what comes next).

    Returns:
        rows: one dict a cell and function, with its median "ms", "tflops", the rounds' "rounds_ms", and "first_s", the
        seconds from the first call to its result, compilation included if it was not cached; and
        left_out: dict of "cell: name" to the reason why it was not timed.
    """
    rows, left_out = [], {}
    turns = len(cells) * len(functions) * rounds
    for number, cell in enumerate(cells):
        generator = torch.Generator(device).manual_seed(cell.N + cell.d)
        tensors = [torch.randn(cell.shape, generator=generator, device=device, dtype=dtype) for _ in range(4)]
        runs, first, reference = {}, {}, None
        for name, function in functions.items():
            tell(number * len(functions) * rounds, turns, f"{cell}: first call of {name}")
            start = time.perf_counter()
            try:
                run = prepare(function, cell, *tensors)
                results = run()
                _synchronize(device)
            except (RuntimeError, NotImplementedError) as error:  # out of memory is a RuntimeError too
                left_out[f"{cell}: {name}"] = str(error).strip().split("\n")[0]
                continue
            first[name] = time.perf_counter() - start
            reference = results if reference is None else reference
            difference = max(_difference(x, y) for x, y in zip(results, reference, strict=True))
            if difference <= TOLERANCE:
                runs[name] = run
            else:
                left_out[f"{cell}: {name}"] = f"results differ by {difference:.2g} from {next(iter(first))}'s"
        del reference
        times = {name: [] for name in runs}
        for turn, name in enumerate(round_robin(list(runs), rounds)):
            tell(number * len(functions) * rounds + turn, turns, f"{cell}: {name}")
            _synchronize(device)
            time.sleep(gap)
            times[name].append(timer(runs[name]))
        for name, rounds_ms in times.items():
            ms = statistics.median(rounds_ms)
            row = {"pass": cell.direction, "impl": name, "d": cell.d, "causal": cell.causal, "N": cell.N, "ms": ms}
            rows.append(row | {"tflops": cell.flops / ms / 1e9, "rounds_ms": rounds_ms, "first_s": first[name]})
    tell(turns, turns, "done")
    return rows, left_out


def _difference(x, y):
    return ((x.float() - y.float()).norm() / y.float().norm()).item()


def _synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def launch_overhead(functions, calls=200):
    """Microseconds from a call in Python to its return, for inputs so small that the GPU is never waited for."""
    q, k, v = torch.randn(3, 1, 1, 64, 64, device="cuda", dtype=torch.bfloat16)
    overhead = {}
    for name, function in functions.items():
        try:
            with torch.no_grad():
                for repeat in (20, calls):  # the first to warm up
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(repeat):
                        function(q, k, v, False)
                    overhead[name] = (time.perf_counter() - start) / repeat * 1e6
        except RuntimeError:
            continue  # ``measure`` tells why
    return overhead


def environment(argv):
    """Device, driver, versions, date and command of a measurement."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "versions": this_machine().versions | {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shlex.join(["python", "-m", "flashlab.bench", *argv]),
    }


def table(rows):
    """The rows as text: TFLOP/s by cell and implementation, and the first one's, ours, relative to cuDNN's."""
    names = list(dict.fromkeys(row["impl"] for row in rows))
    lines = ["TFLOP/s".ljust(34) + "".join(name.rjust(11) for name in names) + "ours/cudnn".rjust(12)]
    cells = itertools.groupby(rows, lambda row: (row["pass"], row["d"], row["causal"], row["N"]))
    for (direction, d, causal, N), group in cells:
        speed = {row["impl"]: row["tflops"] for row in group}
        ratio = f"{speed[names[0]] / speed['cudnn']:.2f}" if {names[0], "cudnn"} <= speed.keys() else ""
        numbers = "".join((f"{speed[name]:.0f}" if name in speed else "–").rjust(11) for name in names)
        lines.append(f"{direction:9} d={d:<4} {'causal' if causal else 'full':7} N={N:<8}" + numbers + ratio.rjust(12))
    return "\n".join(lines)


def progress(done, total, what):
    """A bar on standard error, where that is a terminal."""
    if sys.stderr.isatty():
        bar = "#" * (20 * done // max(total, 1))
        sys.stderr.write(f"\r\033[K[{bar:20}] {done}/{total} {what}" + "\n" * (done == total))
        sys.stderr.flush()


def arguments(argv):
    parser = argparse.ArgumentParser("python -m flashlab.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward"), default=["forward", "backward"])
    parser.add_argument("--impls", nargs="+", choices=IMPLEMENTATIONS, default=USUAL)
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128], help="head dimensions")
    parser.add_argument("--N", nargs="+", type=int, default=[1024, 4096, 16384], help="sequence lengths")
    parser.add_argument("--masks", nargs="+", choices=("full", "causal"), default=["full", "causal"])
    parser.add_argument("--tokens", type=int, default=16384, help="sequences times their length")
    parser.add_argument("--width", type=int, default=2048, help="heads times their dimension")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gap", type=float, default=0.3, help="seconds of idleness before each turn")
    parser.add_argument("--json", help="file to store the results in, with device, driver, versions, date and command")
    return parser.parse_args(argv)


def main(argv):
    """The command line: measures, prints the table, stores JSON. Returns the exit status, 2 without a GPU."""
    options = arguments(argv)
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    from flashlab.kernels import INTERPRETED

    if INTERPRETED:
        print(NO_GPU, file=sys.stderr)
        return 2
    grid = itertools.product(options.passes, options.d, (mask == "causal" for mask in options.masks), options.N)
    cells = [Cell(*place, options.tokens, options.width) for place in grid]
    functions = {name: implementation(name) for name in options.impls}
    rows, left_out = measure(
        cells, functions, rounds=options.rounds, gap=options.gap, timer=gpu_timer, device="cuda",
        dtype=getattr(torch, options.dtype), tell=progress,
    )  # fmt: skip
    launch_us = launch_overhead(functions)
    report = environment(argv) | {"rows": rows, "launch_us": launch_us, "left_out": left_out}
    print(", ".join(f"{key} {report[key]}" for key in ("device", "driver", "date")))
    print(table(rows))
    print("launch overhead, µs: " + ", ".join(f"{name} {us:.0f}" for name, us in launch_us.items()))
    for what, why in left_out.items():
        print(f"not timed: {what}: {why}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
