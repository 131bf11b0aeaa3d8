"""Standard attention and both orders of tiles under one clock: the bytes that each has moved.

Kills two beliefs: that FlashAttention leaves scores out (without a mask, all three maps compute all tiles), and that
tiles alone save the bytes (the order decides what is read again and again). FlashAttention saves the journey of the N
x N scores to slow memory and back.

``explore`` runs the course's functions; ``replay`` shows any lists of events, such as those counted in a Triton kernel.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Scrub, Slide, Toggle, line
from flashlab.course import data
from flashlab.machine.memory import Event, Memory, Moment
from flashlab.machine.memory import replay as moments
from flashlab.reference import masks, standard_attention, tiling
from flashlab.reference.rules import Rules

SRAM_BYTES = 64 * 1024  # what a T4 gives to one block of threads
RUNS: dict[str, Callable] = {
    "Standard attention": standard_attention.forward,
    "FlashAttention: keys outside": tiling.fa1_forward,
    "FlashAttention-2: queries outside": tiling.fa2_forward,
}
ROWS = ("lse",)  # one number per row


@dataclass(frozen=True)
class State:
    """N tokens of a real text in tiles of Br x Bc; ``step``: of the clock, which ticks when a run moves on."""

    step: int = 74
    N: int = 128
    Br: int = 32
    Bc: int = 32
    causal: bool = False


@cache
def head() -> tuple[np.ndarray, ...]:
    """Return Q, K, V of a head that reads a page of a book, all [512, 32] float32."""
    return data.captured("alice").head()


@lru_cache(maxsize=32)
def _trace(N: int, Br: int, Bc: int, causal: bool) -> dict[str, Any]:
    Q, K, V = (tensor[:N] for tensor in head())
    runs = {}
    for name, forward in RUNS.items():
        memory = Memory()
        tiles = {"Br": Br} if forward is standard_attention.forward else {"Br": Br, "Bc": Bc}
        forward(Q, K, V, rules=Rules(masks.causal() if causal else masks.full()), memory=memory, **tiles)
        runs[name] = _run(memory.events, N, N, forward)
    return _together(runs, N, N)


def _run(events: Sequence[Event], Nq: int, Nk: int, function: Callable | None = None) -> dict[str, Any]:
    """Return one run as plain data: a line for each load and store, with all counts after it."""
    lines: list[dict] = []
    times: Counter = Counter()
    for now in moments(events):
        resident = [[name, nbytes] for name, nbytes in now.resident.items()]
        if now.kind in ("hold", "drop") and lines and lines[-1]["number"] == now.kernels:
            lines[-1]["resident"] = resident
        if now.kind not in ("load", "store"):
            continue
        tensor = now.name.split("_")[0]
        rows = _rows(now.name, now.place, Nk if tensor in "KV" else Nq)
        times[now.kind, now.name, rows] += 1
        lines.append(
            {
                "kind": now.kind,
                "name": now.name,
                "rows": rows,
                "nbytes": now.nbytes,
                "moved": now.moved,
                "number": now.kernels,
                "resident": resident,
                "tile": _tile(now, rows, Nq, Nk),
                "times": times[now.kind, now.name, rows],
                "bill": now.bytes[now.kind, now.name],
                "code": _code(function, now),
            }
        )
    for entry in lines if function else ():  # no tile before scores are held; a recorded kernel does not say
        if entry["name"][0] not in "SP" and not any(name[0] in "SP" for name, _ in entry["resident"]):
            entry["tile"] = None
    kernels = [event.name for event in events if event.kind == "kernel"]
    return {"lines": lines, "kernels": kernels, "moved": lines[-1]["moved"] if lines else 0}


def _rows(name: str, place: tuple, N: int) -> tuple[int, int]:
    """Return which rows of a tensor [..., N, d], or of one number per row [..., N], were moved."""
    if not place:
        return 0, N
    return place[-1] if name in ROWS or len(place) == 1 else place[-2]


def _tile(now: Moment, rows: tuple[int, int] | None, Nq: int, Nk: int) -> tuple | None:
    """Return the rows and columns of the scores that move, or else of those that the loaded tiles of Q, K and V give.

    None if one of these is missing, or K and V are different tiles.
    """
    if now.name[0] in "SP":
        return rows, (0, Nk)
    if not {"Q", "K", "V"} <= set(now.places) or now.places["K"] != now.places["V"]:
        return None
    return _rows("Q", now.places["Q"], Nq), _rows("K", now.places["K"], Nk)


def _code(function: Callable | None, now: Moment) -> str | None:
    if function in (tiling.fa1_forward, tiling.fa2_forward):
        return line(function, f'{now.kind}("{now.name}"')
    return None


def _together(runs: dict[str, dict], Nq: int, Nk: int) -> dict[str, Any]:
    """Return all runs under one clock in bytes, which ticks at each total that a run reaches by a load or store."""
    clock = sorted({0, *(line["moved"] for run in runs.values() for line in run["lines"])})
    rows = [{"name": name, **run} for name, run in runs.items()]
    return {"Nq": Nq, "Nk": Nk, "sram": SRAM_BYTES, "clock": clock, "runs": rows}


def trace(state: State) -> dict:
    """Return the three runs, line by line, and their clock in bytes."""
    return _trace(state.N, state.Br, state.Bc, state.causal)


def count(state: State) -> int:
    """Return the number of steps, the moments at which one of the runs moves on."""
    return len(trace(state)["clock"]) - 1


def describe(state: State) -> str:
    """Say how far each run has come when none may have moved more bytes than the clock shows."""
    return _say(trace(state), state.step)


def _say(numbers: dict, step: int) -> str:
    clock = numbers["clock"][step]
    return f"Clock at {style.amount(clock)}. {'; '.join(_status(run, clock) for run in numbers['runs'])}."


def _status(run: dict, clock: int) -> str:
    if clock >= run["moved"]:
        return f"{run['name']} is done with {style.amount(run['moved'])}"
    now = bisect_right(run["lines"], clock, key=lambda line: line["moved"]) - 1
    if now < 0:
        return f"{run['name']} has not begun"
    number, kernels = run["lines"][now]["number"], run["kernels"]
    what = "program" if len(set(kernels)) == 1 else f"kernel {kernels[number - 1]},"
    over = sum(nbytes for _, nbytes in run["lines"][now]["resident"]) > SRAM_BYTES
    moved = style.amount(run["lines"][now]["moved"])
    return f"{run['name']}: {moved}, {what} {number} of {len(kernels)}{', does not fit' if over else ''}"


CONTROLS = {
    "step": Scrub(count),
    "N": Slide((64, 100, 128, 256), "tokens N"),
    "Br": Slide((16, 32, 64)),
    "Bc": Slide((16, 32, 64)),
    "causal": Toggle("causal"),
}
explore = explorer(__name__)


@dataclass(frozen=True)
class Step:
    """The state of a replay: its runs do not change."""

    step: int = 40


def replay(events: dict[str, list], Nq: int, Nk: int) -> object:
    """Show the same picture of recorded runs.

    events: lists of ``flashlab.machine.memory.Event`` of one head, by title. Raises ValueError if one recorded nothing.
    """
    for name, recorded in events.items():
        if not any(event.nbytes for event in recorded):
            raise ValueError(f"{name}: nothing was loaded or stored while this was recorded")
    numbers = _together({name: _run(recorded, Nq, Nk) for name, recorded in events.items()}, Nq, Nk)
    last = len(numbers["clock"]) - 1
    figure = SimpleNamespace(
        __name__=__name__,
        State=Step,
        CONTROLS={"step": Scrub(lambda _: last)},
        trace=lambda state: numbers,
        describe=lambda state: _say(numbers, state.step),
    )
    from figures import widget

    return widget.Explorer(figure, Step(min(Step.step, last)))
