"""Measure masks, score functions, sinks and dropout on this GPU, beside FlexAttention compiled by torch.

    python -m flashlab.bench.masks --json notebooks/data/h200_masks.json

One text of 16,384 tokens in bfloat16, heads times their dimension 2,048, all causal. A row counts the FLOPs of visible
pairs. Both passes are those of training: the forward pass stores what the backward pass needs. Results are compared
before they are timed. Most of a run is compilation, so no cell is begun after ``--seconds``.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from flashlab.bench import record, round_robin
from flashlab.bench.competitors import Attention
from flashlab.kernels import configurations, flash_attention, masks, scores
from flashlab.kernels import dropout as dropping
from flashlab.kernels.problem import Problem
from flashlab.machine import costs

MODULE = "flashlab.bench.masks"
N, WIDTH, WINDOW, CAP = 16384, 2048, 1024, 30.0  # tokens, heads times d, keys of a window or a document, cap
TRIANGLE = N * (N + 1) // 2  # pairs that a causal mask shows
PAIRS = {  # visible, per row of the table
    "causal": TRIANGLE,
    "window": WINDOW * N - WINDOW * (WINDOW - 1) // 2,
    "documents": N // WINDOW * (WINDOW * (WINDOW + 1) // 2),
    "softcap": TRIANGLE, "alibi": TRIANGLE, "sinks": TRIANGLE, "dropout": TRIANGLE,
}  # fmt: skip
ONLY_OURS = "sinks", "dropout"  # FlexAttention has neither


class Cell(NamedTuple):
    """One place of the table: a kind of mask or score function, and which pass."""

    kind: str
    direction: str  # "forward" or "backward"
    d: int
    N: int = N
    causal: bool = True

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, WIDTH // self.d, self.N, self.d  # B, H, N, d

    @property
    def flops(self) -> float:
        """FLOPs of the matrix products over visible pairs."""
        products = costs.flops(self.N, self.N, self.d)
        if self.direction == "backward":
            products = costs.flops(self.N, self.N, self.d, training=True, rebuilt=True) - products
        return self.shape[1] * products * PAIRS[self.kind] / self.N**2

    def __str__(self):
        return f"{self.direction} d={self.d} {self.kind}"


def training(attend: Callable[..., torch.Tensor]) -> Attention:
    """Return the function as it runs in training, whether or not the caller asks for gradients."""

    def run(q, k, v, causal):
        with torch.enable_grad():
            return attend(*(x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)))

    return run


def documents(device: str = "cuda") -> torch.Tensor:
    """Return the document of each token, [N]: WINDOW tokens each."""
    return torch.arange(N, device=device, dtype=torch.int32) // WINDOW


def slopes(H: int, device: str = "cuda") -> torch.Tensor:
    """Return ALiBi's slopes of H heads, a power of two."""
    return torch.tensor([2 ** (-8 * (h + 1) / H) for h in range(H)], dtype=torch.float32, device=device)


def options(kind: str, d: int) -> dict:
    """Return the arguments of ``flash_attention`` for a row of the table."""
    H = WIDTH // d
    return {
        "causal": lambda: {"causal": True},
        "window": lambda: {"mask": masks.window(WINDOW - 1)},
        "documents": lambda: {"mask": masks.documents(documents()) & masks.causal()},
        "softcap": lambda: {"causal": True, "score": scores.softcap(CAP)},
        "alibi": lambda: {"causal": True, "score": scores.alibi(slopes(H))},
        "sinks": lambda: {"causal": True, "sinks": torch.zeros(H, dtype=torch.float32, device="cuda")},
        "dropout": lambda: {"causal": True, "dropout": 0.1, "seed": 7},
    }[kind]()


def ours(kind: str, d: int, kernel: str | None) -> Attention:
    """Return our kernels for a row of the table: those of this name, or with None those that a user gets."""
    return training(functools.partial(flash_attention, kernel=kernel, **options(kind, d)))


def on_hopper(kind: str, d: int, direction: str) -> bool:
    """Return whether a user gets the Hopper kernels in this direction."""
    x = torch.empty(Cell(kind, direction, d).shape, dtype=torch.bfloat16, device="cuda")
    arguments = {"mask": None, "score": None, "sinks": None, "dropout": 0.0, "seed": None, "causal": False}
    arguments |= options(kind, d)
    mask = masks.either(arguments["causal"], arguments["mask"])
    drop = dropping.dropout(arguments["dropout"], arguments["seed"], x.device)
    score, sinks = scores.chain(arguments["score"]), arguments["sinks"]
    problem = Problem.of(x, x, x, mask, d**-0.5, score=score, sinks=sinks, dropout=drop)
    return configurations.choose(direction, problem).implementation == "hopper"


def flex(kind: str, d: int) -> Attention:
    """Return FlexAttention, compiled, for a row of the table."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    document, slope = documents(), slopes(WIDTH // d)
    visible = {
        "window": lambda b, h, i, j: (i >= j) & (i - j < WINDOW),
        "documents": lambda b, h, i, j: (i >= j) & (document[i] == document[j]),
    }.get(kind, lambda b, h, i, j: i >= j)
    score = {
        "softcap": lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
        "alibi": lambda s, b, h, i, j: s - slope[h] * (i - j),
    }.get(kind)
    block_mask = create_block_mask(visible, None, None, N, N, device="cuda")
    attend = torch.compile(flex_attention, dynamic=False)
    return training(functools.partial(attend, score_mod=score, block_mask=block_mask))


def functions(kind: str, d: int) -> Mapping[str, Attention]:
    """Return the competitors of a row by name."""
    both = {"hopper": ours(kind, d, None), "portable": ours(kind, d, "portable")}
    return both if kind in ONLY_OURS else both | {"flex": flex(kind, d)}


def table(rows: list[dict]) -> str:
    """Return the rows as text: TFLOP/s over visible pairs, and our fastest relative to FlexAttention's."""
    names = "hopper", "portable", "flex"
    lines, ratios = [f"{'TFLOP/s':26}" + "".join(f"{name:>10}" for name in (*names, "ratio"))], {}
    for (kind, direction, d), group in itertools.groupby(rows, lambda row: (row["kind"], row["pass"], row["d"])):
        speed = {row["impl"]: row["tflops"] for row in group}
        best = max(speed.get(name, 0) for name in names[:2])
        ratio = best / speed.get("flex", math.nan)
        columns = "".join(f"{speed.get(name, math.nan):10.0f}" for name in names)
        lines.append(f"{direction:9} d={d:<4} {kind:10}{columns}{ratio:10.2f}")
        if ratio > 0:
            ratios.setdefault(direction, []).append(ratio)
    for direction, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(f"{direction:9} geometric mean{mean:42.2f}")
    return "\n".join(lines)


def measure(kind: str, d: int, report: dict, rounds: int) -> None:
    """Time both passes of a row of the table, and add them to the report."""
    competitors = functions(kind, d)
    for direction in ("forward", "backward"):
        timed = {n: f for n, f in competitors.items() if n != "hopper" or on_hopper(kind, d, direction)}
        rows, left_out = round_robin.measure(Cell(kind, direction, d), timed, rounds=rounds, gap=0.1)
        report["rows"] += [row | {"kind": kind} for row in rows]
        report["left_out"] |= left_out


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--d", nargs="+", type=record.whole, default=[128, 64], help="head dimensions")
    parser.add_argument("--kinds", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--rounds", type=record.whole, default=3)
    parser.add_argument("--seconds", type=record.pause, default=90, help="after which no row is begun")
    options = parser.parse_args(argv)
    record.need_gpu()
    report = record.origin(MODULE, argv) | {"tokens": N, "width": WIDTH, "window": WINDOW, "cap": CAP, "rows": []}
    places = itertools.product(options.d, options.kinds)
    jobs = ((f"{kind} d={d}", functools.partial(measure, kind, d, report, options.rounds)) for d, kind in places)
    record.run(jobs, report, options.json, options.seconds)
    return record.conclude(report, options.json, table(report["rows"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
