"""Measure, on this GPU, the attention of widely used models, beside every rival that computes it.

    python -m flashlab.bench.models --json notebooks/data/models.json

The calls are those of ``model_shapes``: bfloat16, [B, N, H, d] in memory, caches [B, Hk, N, d]. A row has two times.
``gpu_us`` is the time of the kernels: CUDA graphs with a cold L2 cache, replayed in turns in one process; the median
over rounds of the median over calls. ``host_us`` is the time in Python until the call returns. A user waits for the
longer of the two. The table has two ratios: that of the kernels, and that of the longer times. An implementation whose
results differ from those of the first one is not timed; the reason is stored.
"""

import functools
import hashlib
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from flashlab.bench import calls, record, round_robin
from flashlab.bench.competitors import BACKENDS, fa3, fa4, sdpa
from flashlab.bench.model_shapes import WEIGHTS, Call, Model
from flashlab.bench.model_shapes import calls as every_call
from flashlab.kernels import flash_attention, launch, masks, plan, scores
from flashlab.kernels.decode import decode
from flashlab.machine import timing

MODULE = "flashlab.bench.models"
OURS = "flashlab"
RIVALS = "fa3", "fa4", "cudnn", "fa2"
LATENT_SCALE = 192**-0.5  # of DeepSeek's heads, before their keys are absorbed
GAP_S = 0.05  # idle seconds before each turn


def tensors(call: Call) -> list[torch.Tensor]:
    """Return Q [B, H, Nq, d], K [B, Hk, Nk, d] and V [B, Hk, Nk, dv]."""
    m, generator = call.model, torch.Generator("cuda").manual_seed(call.Nq + call.Nk)

    def randn(heads, N, width):
        shape = (call.B, heads, N, width) if call.direction == "decode" else (call.B, N, heads, width)
        x = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        return x if call.direction == "decode" else x.transpose(1, 2)

    q, k = randn(m.H, call.Nq, m.d), randn(m.Hk, call.Nk, m.d)
    return [q, k, k[..., : m.dv] if m.Hk == 1 and m.d > 256 else randn(m.Hk, call.Nk, m.dv)]


def sinks_of(model: Model) -> torch.nn.Parameter | None:
    """Return one sink per head [H], a parameter without a gradient, or None."""
    if not model.sinks:
        return None
    return torch.nn.Parameter(torch.linspace(-1, 1, model.H, device="cuda", dtype=torch.bfloat16), requires_grad=False)


def function(name: str, call: Call) -> Callable[..., torch.Tensor]:
    """Return attention as this implementation computes it for a call: from q, k, v to O [B, H, Nq, dv].

    Raises:
        ValueError: the implementation cannot compute this call; the message says why.
    """
    m = call.model
    causal, sinks = m.causal and call.Nq > 1, sinks_of(m)
    if name == OURS:
        options = {"score": scores.softcap(m.cap) if m.cap else None, "sinks": sinks}
        options["mask"] = masks.window(m.window) if m.window is not None else masks.causal() if m.causal else None
        if call.direction != "decode":
            return lambda q, k, v: flash_attention(q, k, v, **options)
        options |= {"scale": LATENT_SCALE} if m.d > 256 else {}
        return lambda q, k, v: decode(q, (k, v), **options)
    if m.d > 256:
        raise ValueError("its latent attention is in another package")
    if name in ("fa3", "fa4"):
        if name == "fa3" and m.sinks:
            raise ValueError("it has no sinks")
        options = {"causal": causal, "window": m.window, "cap": m.cap or 0.0}
        return functools.partial(fa3, **options) if name == "fa3" else functools.partial(fa4, sinks=sinks, **options)
    for feature, present in (("window", m.window is not None), ("soft cap", m.cap), ("sinks", m.sinks)):
        if present:
            raise ValueError(f"it has no {feature}")
    if causal and call.Nq != call.Nk:
        raise ValueError("its causal mask is aligned at the upper left")
    backend = BACKENDS["flash" if name == "fa2" else name]
    return lambda q, k, v: sdpa(backend, q, k, v, causal)


def prepare(name: str, call: Call, inputs: Sequence[torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return what is timed: a callable without arguments that runs one pass and returns its results."""
    attend = function(name, call)
    if call.direction != "backward":
        return torch.no_grad()(lambda: (attend(*inputs),))
    q, k, v = (x.detach().requires_grad_() for x in inputs)
    O = attend(q, k, v)  # [B, H, Nq, dv]
    dO = torch.randn(O.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda", dtype=O.dtype)
    return lambda: torch.autograd.grad(O, (q, k, v), dO, retain_graph=True)


def digest() -> str:
    """Return a digest of the kernels started since ``launch.started`` was cleared: of their PTX without debug lines."""
    codes = sorted(re.sub(r"\.section\s+\.debug(?s:.*)|\.(loc|file)\b.*", "", x.asm["ptx"]) for x in launch.started)
    return hashlib.sha256("\n".join(codes).encode()).hexdigest()[:16]


def host_us(run: Callable[[], object], gpu_us: float) -> float:
    """Return the microseconds until a call of ``run`` returns. Few calls in a row: the GPU's queue must not fill."""
    count = 20 if gpu_us < 5000 else 5
    return statistics.median(calls.host(run, count, "cuda") for _ in range(3))


def measure(call: Call, names: Sequence[str], rounds: int) -> tuple[list[dict], dict[str, str]]:
    """Time these implementations on a call. Return a row for each, and why others have none."""
    runs, replays, left_out, standard, ours = {}, {}, {}, None, ""
    inputs, stream = tensors(call), torch.cuda.Stream()
    torch.cuda.synchronize()  # the other stream reads them
    launch.started.clear()
    plan.forget()
    for name in names:
        try:
            with torch.cuda.stream(stream):
                run = prepare(name, call, inputs)
                results = run()
                torch.cuda.synchronize()
                if name == OURS:
                    ours = digest()
                standard = standard or (name, results)
                if why := round_robin.doubt(results, standard):
                    raise ValueError(why)
                replays[name] = timing.graphed(run, stream)
            runs[name] = run
        except Exception as failure:  # a rival may raise any exception; the others are still timed
            left_out[f"{call}: {name}"] = record.reason(failure)
    rounds_us = {name: [] for name in replays}
    for name in timing.round_robin(list(replays), rounds):
        torch.cuda.synchronize()
        time.sleep(GAP_S)
        rounds_us[name].append(timing.gpu_timer(replays[name], 15) * 1e3)
    rows = []
    for name, times in rounds_us.items():
        gpu = statistics.median(times)
        with torch.cuda.stream(stream):
            row = about(call) | {"impl": name, "tflops": round(call.flops / gpu / 1e6, 2), "gpu_us": round(gpu, 2)}
            row |= {"host_us": round(host_us(runs[name], gpu), 1), "rounds_us": [round(us, 2) for us in times]}
        rows.append(row | {"card": torch.cuda.get_device_name()} | ({"digest": ours} if name == OURS else {}))
    return rows, left_out


def about(call: Call) -> dict:
    """Return the fields of a row that describe its call."""
    m = call.model
    shape = {"B": call.B, "H": m.H, "Hk": m.Hk, "Nq": call.Nq, "Nk": call.Nk, "d": m.d, "dv": m.dv}
    kind = {"causal": m.causal, "window": m.window, "cap": m.cap, "sinks": m.sinks}
    return {"family": m.family, "model": m.name, "pass": call.direction} | shape | kind


def cells(rows: Iterable[dict]) -> dict[tuple, dict[str, dict]]:
    """Return the rows by their call, and then by implementation."""
    found: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        found.setdefault((row["model"], row["pass"], row["B"], row["Nq"], row["Nk"]), {})[row["impl"]] = row
    return found


def kernels_us(row: dict) -> float:
    """Return the time of the kernels alone."""
    return row["gpu_us"]


def call_us(row: dict) -> float:
    """Return what a user waits for: the longer of the two times."""
    return max(row["gpu_us"], row["host_us"])


def ratio(cell: dict[str, dict], us: Callable[[dict], float], rival: str | None = None) -> float | None:
    """Return the time of the best rival, or of this one, as a multiple of ours; None where there is none."""
    times = [us(row) for name, row in cell.items() if name != OURS and rival in (None, name)]
    return min(times) / us(cell[OURS]) if times and OURS in cell else None


def mean(ratios: Iterable[tuple[float, float]]) -> float:
    """Return the weighted geometric mean of pairs (ratio, weight)."""
    logs = [(weight * math.log(ratio), weight) for ratio, weight in ratios]
    return math.exp(sum(log for log, _ in logs) / sum(weight for _, weight in logs))


def summary(rows: Sequence[dict]) -> list[str]:
    """Return lines: our rate relative to each rival and to the best of them, by pass, of kernels and of calls."""
    lines = []
    for direction in ("forward", "backward", "decode"):
        some = {key: cell for key, cell in cells(rows).items() if key[1] == direction}
        for what, us in (("kernels", kernels_us), ("calls", call_us)):
            for rival in (None, *RIVALS):
                found = {key: r for key, cell in some.items() if (r := ratio(cell, us, rival)) is not None}
                if not found:
                    continue
                weighted = [(r, WEIGHTS[some[key][OURS]["family"]]) for key, r in found.items()]
                worst, behind = min(found, key=found.__getitem__), sum(r < 1 for r in found.values())
                lines.append(
                    f"{direction:9} {what:8} {rival or 'best rival':11} {mean(weighted):5.2f} in {len(found)} calls, "
                    f"{behind} behind, least {found[worst]:.2f} ({', '.join(map(str, worst))})"
                )
    return lines


def line(cell: dict[str, dict]) -> str:
    """Return a cell as a line: microseconds of GPU / host of each, and our rate relative to the best rival."""
    first = next(iter(cell.values()))
    keys = "" if first["Nq"] == first["Nk"] else f"x{first['Nk']}"
    name = f"{first['model']} {first['pass']} {first['B']}x{first['Nq']}{keys}"
    times = "".join(
        (f"{cell[n]['gpu_us']:.0f}/{cell[n]['host_us']:.0f}" if n in cell else "–").rjust(14) for n in (OURS, *RIVALS)
    )
    ratios = "".join(f"{r:7.2f}" if (r := ratio(cell, us)) is not None else "      –" for us in (kernels_us, call_us))
    return f"{name:42}{times}{ratios}"


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--impls", nargs="+", choices=(OURS, *RIVALS), default=(OURS, *RIVALS))
    parser.add_argument("--families", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward", "decode"))
    parser.add_argument("--rounds", type=record.whole, default=3)
    parser.add_argument("--seconds", type=record.pause, default=math.inf, help="after which no call is begun")
    options = parser.parse_args(argv)
    record.need_gpu()
    some = [call for call in every_call() if call.model.family in options.families]
    some = [call for call in some if call.direction in (options.passes or (call.direction,))]
    report = record.origin(MODULE, argv) | {"rows": []}
    print(" " * 42 + "".join(f"{name} µs".rjust(14) for name in (OURS, *RIVALS)) + "   GPU   call", flush=True)

    def add(call):
        rows, left_out = measure(call, options.impls, options.rounds)
        report["rows"] += rows
        report["left_out"] |= left_out
        if rows:
            print(line({row["impl"]: row for row in rows}), flush=True)

    record.run(((call, functools.partial(add, call)) for call in some), report, options.json, options.seconds)
    means = "our rate relative to a rival's, geometric means weighted by family"
    return record.conclude(report, options.json, means, *summary(report["rows"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
