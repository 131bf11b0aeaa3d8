"""Standard and fused attention side by side: the same bytes per step cross the gap between slow and fast memory.

Kills the belief that attention is slow because it computes much: hardly a byte that standard attention moves belongs to
an input or to the output. Both ways run on one head as large as one of GPT-2 medium, N = 1024 and
d = 64 in float16, with random numbers.
``machine.memory`` records every load and store, and each record is a tile that moves in the picture. Equal areas are
equal bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Scrub, Toggle, line
from flashlab.machine.memory import Event, Memory, Moment, replay
from flashlab.reference import masks, published, recomputation, standard_attention, tiling
from flashlab.reference.dropout import Dropout
from flashlab.reference.rules import Rules

N, D, HEADS = 1024, 64, 16 * 64  # 16 heads, batch of 64
B = N // 4  # rows per band: the four bands are large enough to be seen
STEP = 2 * N * D  # bytes per step of the clock: as many as Q has
SQUARES = ("S", "S_masked", "P", "P_dropped", "Z")  # N x N
WAYS = {"standard": "Standard attention", "fused": "Fused attention"}
PAPER = {way: (run.nbytes / 1e9, run.milliseconds) for way, run in published.RUNS.items()}  # GB, ms


@dataclass(frozen=True)
class State:
    """Each way has moved ``step`` times the bytes of Q. Only the standard way has separate kernels for ``mask`` and
    ``dropout``."""

    step: int = 64
    mask: bool = True
    dropout: bool = True


@lru_cache(maxsize=8)
def _trace(mask: bool, dropout: bool) -> dict[str, Any]:
    standard, whole = Memory(), counted(State(0, mask, dropout))
    rules = Rules(masks.causal() if mask else masks.full(), dropout=Dropout(0.1, 0) if dropout else None)
    standard_attention.forward(*_inputs(), rules, Br=B, memory=standard)
    events = {"standard": standard.events, "fused": _fused()}
    runs = [_run(way, events[way], whole[way]) for way in WAYS]
    steps = -(-max(run["moved"] for run in runs) // STEP)
    return {"N": N, "d": D, "step": STEP, "steps": steps, "papers": mask and dropout, "runs": runs}


@cache
def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    Q, K, V = (rng.normal(size=(N, D)).astype(np.float16) for _ in "QKV")
    return Q, K, V


@cache
def _fused() -> Sequence[Event]:
    """Return the events of the fused way, without mask and dropout, which would add no byte."""
    memory = Memory()
    tiling.fa2_forward(*_inputs(), B, B, memory=memory)
    return memory.events


def _run(way: str, events: Sequence[Event], whole: int) -> dict[str, Any]:
    """Return one run as plain data: a line per load or store, with what fast memory holds after it."""
    lines = []
    for now in replay(events):
        resident = [[name.removesuffix("_i"), _rows(now.places.get(name, ()))] for name in now.resident]
        if now.kind in ("hold", "drop") and lines and lines[-1]["number"] == now.kernels:
            lines[-1]["resident"] = resident
        if now.kind in ("load", "store"):
            lines.append(
                {
                    "kind": now.kind,
                    "name": now.name,
                    "rows": _rows(now.place),
                    "nbytes": now.nbytes,
                    "moved": now.moved,
                    "number": now.kernels,
                    "resident": resident,
                    "code": _code(way, now),
                }
            )
    return {
        "name": WAYS[way],
        "lines": lines,
        "kernels": [event.name for event in events if event.kind == "kernel"],
        "moved": lines[-1]["moved"],
        "whole": whole,
        "paper": PAPER[way],
    }


def _rows(place: tuple) -> tuple[int, int]:
    """Return the rows of a tensor that were moved, all of them where no place is given."""
    return place[0] if place else (0, N)


def _code(way: str, now: Moment) -> str:
    """Return the line of flashlab that made this transfer."""
    if way == "fused":
        return line(tiling.fa2_forward, f'{now.kind}("{now.name}"')
    functions = {"mask": standard_attention._mask, "dropout": standard_attention._dropout}
    if now.kernel in functions:
        return line(functions[now.kernel], f'{now.kind}("{now.name}"')
    if now.kernel == "softmax":
        return line(standard_attention._softmax, "memory.store")
    fragment = {"load": "memory.load(A" if now.place else "memory.load(B", "store": "memory.store("}[now.kind]
    return line(standard_attention._product, fragment)


def counted(state: State) -> dict[str, int]:
    """Return the bytes of the paper's whole run, forward and backward, all heads, in the standard way and fused.

    Fused: the loops of the first FlashAttention, keys outside, in tiles of 256. Only N x d tensors are counted, without
    lse and delta: 33 passes, each of which loads or stores all of one such tensor.
    """
    standard = standard_attention.moved(N, D, mask=state.mask, dropout=state.dropout, backward=True)
    bills = (run(N, N, D, 128, 256, dtype=np.float16) for run in (tiling.fa1_traffic, recomputation.traffic))
    fused = sum(nbytes for bill in bills for (_, name), nbytes in bill.items() if name not in ("lse", "delta"))
    return {"standard": HEADS * standard, "fused": HEADS * fused}


def trace(state: State) -> dict:
    """Return both runs, line by line, and the bytes that one step of their clock stands for.

    ``papers``: are mask and dropout those of the paper's runs?
    """
    return _trace(state.mask, state.dropout)


def count(state: State) -> int:
    """Return the number of steps until both are done."""
    return trace(state)["steps"]


def describe(state: State) -> str:
    """Say how far each way is when both have moved the same bytes."""
    standard, fused = trace(state)["runs"]
    clock = state.step * STEP
    words = f"Clock at {style.amount(clock)}. " if clock < standard["moved"] else ""
    return f"{words}{_status(standard, clock)} {_status(fused, clock)}"


def _status(run: dict, clock: int) -> str:
    done = [line for line in run["lines"] if line["moved"] <= clock]
    if len(done) == len(run["lines"]):
        squares = sum(line["nbytes"] for line in run["lines"] if line["name"] in SQUARES)
        share = f"{squares / run['moved']:.0%} of them N x N matrices" if squares else "none of them an N x N matrix"
        return f"{run['name']} is done with {style.amount(run['moved'])}, {share}."
    now = run["lines"][len(done)]
    if now["number"] == 1 and not done and clock == 0:
        return f"{run['name']} has not begun."
    what = "program" if run["name"] == WAYS["fused"] else f"kernel {run['kernels'][now['number'] - 1]},"
    return f"{run['name']}: {what} {now['number']} of {len(run['kernels'])}."


CONTROLS = {
    "step": Scrub(count),
    "mask": Toggle("mask"),
    "dropout": Toggle("dropout"),
}
explore = explorer(__name__)
