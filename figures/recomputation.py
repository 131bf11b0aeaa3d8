"""More FLOPs, less time: the backward pass rebuilds each tile of weights, uses it and forgets it.

Kills the belief that computing something twice must be slower than keeping it. Above is every step of the backward
pass on one real head. Below, that pass and the one that keeps P have a line of time each, in one scale: the time of the
bytes and of the matrix products at the peaks of one card. Rebuilding adds few products, and saves most of the bytes.

``explore`` runs the course's own passes; ``replay`` shows the events counted in the Triton kernels. ``bills`` has the
numbers of the paper's configuration: as the paper prints them, as this course counts them, as one GPU measured them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Scrub, Slide, Toggle, line
from flashlab.course import data
from flashlab.machine import costs
from flashlab.machine.hardware import CARDS
from flashlab.machine.memory import Event, Memory
from flashlab.machine.memory import replay as moments
from flashlab.reference import masks, published, recomputation, standard_attention, tiling
from flashlab.reference.rules import Rules

CARD = CARDS["A100 40 GB"]  # the paper's
PAPER = dict(zip(("FLOPs", "bytes", "time"), zip(*published.RUNS.values(), strict=True), strict=True))
KEYS = ("K", "V", "dK", "dV")  # tensors with a row for each key; the others have one for each query
ROWS = ("lse", "delta")  # one number per row
RESULTS = ("delta", "dQ", "dK", "dV")
SQUARES = ("P_ij", "dS_ij")
USES = {
    "program": ("dV", "dP", "dQ", "dK"),
    "key_value_gradients": ("dV", "dP", "dK"),
    "query_gradients": ("dP", "dQ"),
}
GROWN = {"key_value_gradients": {"dK": "K", "dV": "V"}, "query_gradients": {"dQ": "Q"}}  # in registers, not booked


@dataclass(frozen=True)
class State:
    """``step`` loads, stores and rebuilt tiles have passed, with tiles of Br x Bc of a real head in float16."""

    step: int = 117
    Br: int = 64
    Bc: int = 128
    causal: bool = False


@lru_cache(maxsize=1)
def head(dtype: type = np.float16) -> tuple[np.ndarray, ...]:
    """Return Q, K, V of a head on a page of a book, and a random gradient of its output, all [N, d]."""
    Q, K, V = data.captured("alice").head()
    dO = np.random.default_rng(8).normal(size=V.shape)
    return tuple(x.astype(dtype) for x in (Q, K, V, dO))


@lru_cache(maxsize=32)
def _trace(Br: int, Bc: int, causal: bool) -> dict[str, Any]:
    Q, K, V, dO = head()
    O, lse = _forward(causal)
    memory = Memory()
    recomputation.backward(Q, K, V, O, lse, dO, Br, Bc, Rules(mask=_mask(causal)), memory=memory)
    return _stepwise(memory.events, "P rebuilt", _kept(causal), Q.shape, (Br, Bc), "float16", _code)


@lru_cache(maxsize=2)
def _forward(causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return O and lse, whose tiles need not be those of the backward pass."""
    Q, K, V, _ = head()
    return tiling.fa1_forward(Q, K, V, 256, 256, Rules(mask=_mask(causal)))


@lru_cache(maxsize=2)
def _kept(causal: bool) -> dict[str, Any]:
    """Return the pass that keeps P as plain data: its parts, and when its matrices of N x N are stored."""
    Q, K, V, dO = head()
    kept = Memory()
    standard_attention.forward(Q, K, V, Rules(mask=_mask(causal)), Br=128, memory=kept)
    forward = len(kept.events)
    standard_attention.backward(dO, kept, Br=128)
    events = list(kept.events)[forward:]
    other = _parts(events)
    for part in other:  # each product of whole matrices is a kernel of its own
        part["flops"] = 0 if "softmax" in part["name"] else costs.flops(len(Q), len(K), Q.shape[1]) // 2
    squares = [
        {"name": "P", "words": "left by the forward pass", "start": 0, "stop": 0, "bytes": kept.tensors["P"].nbytes}
    ]
    squares += [_square(name, events) for name in ("dP", "dS")]
    return {"name": "P kept", "parts": other, "squares": squares}


def _mask(causal: bool) -> masks.Mask:
    return masks.causal() if causal else masks.full()


def _square(name: str, events: Iterable[Event]) -> dict[str, Any]:
    """Return when a matrix of N x N is stored, in bytes moved since the beginning, and how large it is."""
    stores = [now for now in moments(events) if (now.kind, now.name) == ("store", name)]
    size = sum(now.nbytes for now in stores)
    start, stop = stores[0].moved - stores[0].nbytes, stores[-1].moved
    return {
        "name": name,
        "words": "stored by one kernel, loaded by the next",
        "start": start,
        "stop": stop,
        "bytes": size,
    }


def _parts(events: Iterable[Event]) -> list[dict]:
    """Return what each kernel, or program, of a run moved: {name, start, stop} in bytes since the beginning."""
    parts = []
    for now in moments(events):
        if now.kind == "kernel":
            parts.append({"name": now.name, "start": now.moved, "stop": now.moved, "flops": 0, "again": 0})
        else:
            parts[-1]["stop"] = now.moved
    return parts


def _stepwise(
    events: Iterable[Event], name: str, other: dict, shape: tuple, tiles: tuple, dtype: str, code: Callable
) -> dict[str, Any]:
    """Return a run step by step beside the parts of another one, as plain data."""
    (N, d), (Br, Bc) = shape, tiles
    steps = _steps(events, d, code)
    parts = _parts(events)
    for before, step in zip(steps, steps[1:], strict=False):
        for count in ("flops", "again"):
            parts[step["number"] - 1][count] += step[count] - before[count]
    last = steps[-1]
    for part in other["parts"]:  # the clock goes on until the other run is done
        if part["stop"] > last["moved"]:
            steps.append({**last, "kind": "", "name": part["name"], "held": [], "clock": part["stop"], "code": None})
    return {
        "N": N,
        "Br": Br,
        "Bc": Bc,
        "dtype": dtype,
        "card": CARD.name,
        "block": CARD.per_sm.block_bytes,
        "rates": {"bytes": CARD.dram_rate, "flops": getattr(CARD, dtype)},
        "registers": any(event.name == "P_ij" for event in events),  # whether ``held`` has tiles that were never loaded
        "peak": max(sum(nbytes for _, _, nbytes in step["held"]) for step in steps),
        "steps": steps,
        "passes": [other, {"name": name, "parts": parts, "squares": []}],
    }


def _steps(events: Iterable[Event], d: int, code: Callable) -> list[dict]:
    """Return a line for each load, store and rebuilt tile of a backward pass, with all counts after it.

    The bill of a Triton kernel has no registers: it rebuilds a tile as soon as it has loaded all operands.
    """
    booked = any(event.name == "P_ij" for event in events)
    counts = dict.fromkeys(("clock", "moved", "flops", "again", "rebuilt", "number"), 0)
    now = {"kind": "", "name": "", "span": [], **counts}
    steps, where, visited = [{**now, "kernel": "", "held": [], "code": None}], {}, set()
    for moment in moments(events):
        kind, name = moment.kind, _plain(moment.name)
        if kind == "kernel":
            where, visited = {}, set()
            continue
        if moment.place:
            where[name] = list(moment.place[-1] if len(moment.place) == 1 or name in ROWS else moment.place[-2])
        elif kind == "hold":
            where[name] = [where["Q"], where["K"]] if name in SQUARES else where["K" if name in KEYS else "Q"]
        held = [[_plain(at), where[_plain(at)], size] for at, size in moment.resident.items()]
        tile = _tile(where) if not booked or (kind, name) == ("hold", "P_ij") else None
        now = {**now, "clock": moment.moved, "moved": moment.moved, "number": moment.kernels, "kernel": moment.kernel}
        if kind in ("load", "store"):
            fresh = {"kind": kind, "name": name, "span": where[name], "code": code(kind, name)}
            steps.append({**now, **fresh, "held": _with_grown(held, where, moment.kernel)})
        elif kind == "hold" and name != "P_ij":
            steps[-1]["held"] = held
        if tile and (booked or str(tile) not in visited):
            visited.add(str(tile))
            (r0, r1), (c0, c1) = tile
            product = costs.flops(r1 - r0, c1 - c0, d) // 2
            now["flops"] += (1 + len(USES[moment.kernel])) * product
            now["again"] += product
            now["rebuilt"] += 1
            held = _with_grown(held, where, moment.kernel)
            held += [] if booked else [["P_ij", tile, 0]]
            steps.append(
                {**now, "kind": "rebuild", "name": "P_ij", "span": tile, "held": held, "code": code("rebuild")}
            )
    steps[-1]["held"] = []
    return steps


def _plain(name: str) -> str:
    """Return the name of the tensor to which a tile belongs: dK for dK_j, lse for lse_padded."""
    return name.removesuffix("_padded").removesuffix("_j")


def _tile(where: dict[str, list]) -> list | None:
    """Return the rows and columns of the tile of scores whose operands are all loaded, None if one is missing."""
    rows, cols = ([where.get(name) for name in side] for side in (("Q", "dO", *ROWS), ("K", "V")))
    met = all(span is not None and span == side[0] for side in (rows, cols) for span in side)
    return [rows[0], cols[0]] if met else None


def _with_grown(held: list[list], where: dict[str, list], kernel: str) -> list[list]:
    grown = GROWN.get(kernel, {})
    return held + [[name, where[like], 0] for name, like in grown.items() if like in where]


def _code(kind: str, name: str = "") -> str:
    """Return the line of ``recomputation.backward`` that does it."""
    if kind == "rebuild":
        return line(recomputation.backward, "rebuild(S_ij")
    first = kind == "load" and name in ("Q", "dO", "lse")
    return line(recomputation.backward, '("Q", "dO", "lse")' if first else f'{kind}("{name}"')


def trace(state: State) -> dict:
    """Return every step of the pass that rebuilds P, and the parts of both passes with their bytes and FLOPs."""
    return _trace(state.Br, state.Bc, state.causal)


def count(state: State) -> int:
    """Return the number of steps."""
    return len(trace(state)["steps"]) - 1


def describe(state: State) -> str:
    """Say what happens, how many tiles have been rebuilt, and how far each pass is."""
    return _say(trace(state), state.step)


def _say(numbers: dict, at: int) -> str:
    step, (other, this) = numbers["steps"][at], numbers["passes"]
    whole, last = other["parts"][-1]["stop"], this["parts"][-1]["stop"]
    if step["clock"] > last:
        words = f"{this['name']}: done after {style.amount(last)}. "
        return (
            f"{words}{other['name']}: {style.amount(step['clock'])} of {style.amount(whole)}, {step['name']} is done."
        )
    tiles = numbers["steps"][-1]["rebuilt"]
    words = f"{_event(numbers, step)}. {step['rebuilt']} of {tiles} tiles rebuilt, none stored. "
    words += f"Moved: {style.amount(step['moved'])} of {style.amount(last)}; "
    return f"{words}{other['name']}, in all: {style.amount(whole)}."


def _event(numbers: dict, step: dict) -> str:
    if not step["kind"]:
        return "Before the first step P is nowhere"
    if step["kind"] == "rebuild":
        (r0, _), (c0, _) = step["span"]
        i, j = r0 // numbers["Br"], c0 // numbers["Bc"]
        *uses, last = USES[step["kernel"]]
        return f"Rebuild P({i}, {j}) from Q({i}), K({j}) and lse({i}), for {', '.join(uses)} and {last}"
    size = numbers["Bc" if step["name"] in KEYS else "Br"]
    where = "" if step["kernel"] == "program" else f" in {step['kernel']}"
    return f"{step['kind'].capitalize()} {step['name']}({step['span'][0] // size}){where}"


CONTROLS = {
    "step": Scrub(count),
    "Br": Slide((64, 128, 256)),
    "Bc": Slide((64, 128, 256)),
    "causal": Toggle("causal"),
}
explore = explorer(__name__)


@dataclass(frozen=True)
class Replayed:
    """The state of a replay: its run does not change."""

    step: int = 0


def replay(
    events: list,
    other: list,
    N: int,
    Br: int,
    Bc: int,
    state: object = Replayed(),
    *,
    d: int = 32,
    dtype: str = "float32",
) -> object:
    """Show the same picture of the Triton kernels, for a head of N tokens and d dimensions.

    events: those of ``flashlab.kernels.portable.backward`` with tiles of Br x Bc, as its bill has them; other: those of
    ``recomputation.backward``, with which the kernels are compared; dtype: of both.
    """
    loop = _stepwise(other, "one loop", {"name": "", "parts": [], "squares": []}, (N, d), (Br, Bc), dtype, _no_code)
    numbers = _stepwise(events, "the kernels", loop["passes"][1], (N, d), (Br, Bc), dtype, _no_code)
    figure = SimpleNamespace(
        __name__=__name__,
        State=Replayed,
        CONTROLS={"step": Scrub(lambda _: len(numbers["steps"]) - 1)},
        trace=lambda state: numbers,
        describe=lambda state: _say(numbers, state.step),
    )
    from figures import widget

    return widget.Explorer(figure, state)


def _no_code(kind: str, name: str = "") -> None:
    return None


def counted() -> dict:
    """Return FLOPs of the products, and bytes, of the paper's configuration: standard and fused.

    Fused is FlashAttention's own order with 256 keys per tile, and the N x d tensors alone: 33 passes over them.
    """
    N, d, heads = 1024, 64, 64 * 16
    standard = standard_attention.moved(N, d, mask=True, dropout=True, backward=True)
    bills = (run(N, N, d, 128, 256, dtype=np.float16) for run in (tiling.fa1_traffic, recomputation.traffic))
    fused = sum(nbytes for bill in bills for (_, name), nbytes in bill.items() if name not in ROWS)
    return {
        "FLOPs": tuple(heads * costs.flops(N, N, d, training=True, rebuilt=rebuilt) for rebuilt in (False, True)),
        "bytes": (heads * standard, heads * fused),
    }


def measured() -> dict:
    """Return what ``flashlab/bench/recomputation.py`` measured on one GPU."""
    stored = data.measured("h200_recomputation")
    ways = stored["standard"], stored["flash"]
    bytes_too = {"bytes": tuple(way["bytes"] for way in ways)} if all(way["bytes"] for way in ways) else {}
    return {"device": stored["about"]["device"], **bytes_too, "time": tuple(way["ms"] for way in ways)}


def bills() -> dict:
    """Return the bills of the paper's configuration by source, each {quantity: "standard, fused"} in words."""
    ours = measured()
    device = ours.pop("device").removeprefix("NVIDIA ")
    by = {"printed in the paper, A100": PAPER, "counted in this course": counted(), f"measured, one {device}": ours}
    return {
        who: {each: ", ".join(say(each, one) for one in pair) for each, pair in bill.items()}
        for who, bill in by.items()
    }


def say(quantity: str, value: float) -> str:
    """Return a number of the bill in words."""
    if quantity == "time":
        return f"{value:.1f} ms"
    return f"{round(value / 1e9, 1):g} GFLOP" if quantity == "FLOPs" else f"{round(value / 1e9, 2):g} GB"
