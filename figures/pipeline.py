"""The timeline of a FlashAttention-3 pipeline on one multiprocessor: who works, who waits, what shared memory holds.

Kills two beliefs. First, that ping-pong is double buffering: stages are further buffers, so that copies need not wait
for products; ping-pong is an order of products, and works without further buffers. Second, that a warp which waits
wastes the multiprocessor: while one consumer waits for its turn, the tensor core works for the other.

Every box is an event of ``flashlab.reference.pipeline``, a piece of one, or the time between two. That module computes
attention of a real text while its clock runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, Toggle, line
from flashlab.course import data
from flashlab.machine.sm import Event
from flashlab.reference import pipeline

QUERIES = 128  # one tile; its keys are the 512 tokens of the text, in four blocks
STAGES = (1, 2, 3, 4)
CONSUMERS = ("both warpgroups in one partition", "two", "two, ping-pong")
SCALES = (13_000, 24_000)  # cycles across the picture: the first number that is large enough
SHARED = ("tensor core", "vector units")  # units that work for both consumers
NAMES = {"softmax": "P", "rescale": ""}
WAITS = {"full": "tiles", "q_full": "Q", "turn": "turn", "products": "products", "empty": "room", "q_empty": "room"}
# A box from ``low`` to ``high`` of its row's height, its name at ``seat``; coming: the tile cannot be read yet.
WHOLE = {"low": 0.0, "high": 1.0, "seat": 0.5, "coming": False}
CODE = {
    "S": line(pipeline.consume, "pipe.scores"),
    "PV": line(pipeline.consume, "pipe.weighted"),
    "softmax": line(pipeline.consume, 'Work("softmax"'),
    "rescale": line(pipeline.consume, 'Work("rescale"'),
    "K": line(pipeline.produce, 'Copy(Tile("K"'),
    "V": line(pipeline.produce, 'Copy(Tile("V"'),
    "Q": line(pipeline.produce, 'Copy(Tile("Q"'),
    "O": line(pipeline.consume, "pipe.finish"),
    "full": line(pipeline.consume, "Wait(pipe.full"),
    "q_full": line(pipeline.consume, "Wait(half"),
    "turn": line(pipeline.consume, "Wait(pipe.turn"),
    "products": line(pipeline.consume, "Finish(1"),
}


@dataclass(frozen=True)
class State:
    """``step`` moments have passed at which something began or ended."""

    step: int = 34
    stages: int = 2
    consumers: str = "two, ping-pong"
    overlap: bool = True


@lru_cache(maxsize=64)
def _run(stages: int, consumers: str, overlap: bool) -> pipeline.Run:
    Q, K, V = data.captured("alice").head()
    design = pipeline.Design(stages, consumers == "two, ping-pong", overlap, 1 if consumers == CONSUMERS[0] else 2)
    return pipeline.forward(Q[:QUERIES], K, V, design)


def run(state: State) -> pipeline.Run:
    """Return the run of ``flashlab.reference.pipeline`` with this design."""
    return _run(state.stages, state.consumers, state.overlap)


def times(state: State) -> list[int]:
    """Return the cycles at which something begins or ends, from 0 on."""
    return _times(run(state))


@lru_cache(maxsize=64)
def _times(run: pipeline.Run) -> list[int]:
    return sorted({0, *(time for event in run.events for time in event[:2])})


def count(state: State) -> int:
    """Return the number of moments after the first."""
    return len(times(state)) - 1


def moment(state: State) -> int:
    """Return the cycle that the clock shows."""
    return times(state)[state.step]


@lru_cache(maxsize=64)
def _trace(stages: int, consumers: str, overlap: bool) -> dict[str, Any]:
    state = State(0, stages, consumers, overlap)
    events = run(state).events
    two = consumers != CONSUMERS[0]
    workers = ["consumer 0", "consumer 1"][: 1 + two]
    boxes, waits, links = [], [], []
    for event in events:
        tip = {"title": _words(event) if event.unit in ("copy engine", *SHARED) else "", "lines": [_span(event)]}
        if event.unit == "copy engine":
            boxes.append(_box(event, "copy engine", event.start, event.end, tip | _copied(event, events)))
            if event.where[:1] in "KV" and event.where:
                boxes += _held(event, events, stages)
        elif event.unit == "tensor core":
            tip["lines"] += [f"reads {event.where.replace(' ', ' and ')}", *_waited(event, events)]
            boxes += _shared(event, events, "tensor core", tip | {"code": CODE[event.kind]}, two)
        elif event.unit == "vector units":
            boxes += _shared(event, events, event.by, tip | {"code": CODE[event.kind]}, False)
        elif event.unit in workers:
            waits.append(_wait(event, events))
            links.append(_link(event, events))
    every = [State(step, stages, consumers, overlap) for step in range(count(state) + 1)]
    return {
        "cycles": run(state).cycles,
        "scale": next(scale for scale in SCALES if run(state).cycles < scale),
        "times": times(state),
        "stages": stages,
        "workers": workers,
        "boxes": boxes,
        "waits": waits,
        "links": [one for one in links if one],
        "steps": [_step(state, workers) for state in every],
    }


def trace(state: State) -> dict:
    """Return the boxes of every unit, the waits, what ended each wait, and what the picture says at every moment."""
    return _trace(state.stages, state.consumers, state.overlap)


def _step(state: State, workers: list[str]) -> dict[str, Any]:
    bits = phases(state)
    return {
        "doing": {unit: _doing(unit, state) for unit in ("copy engine", "tensor core", *workers)},
        "phases": [[bits.get(f"{name}[{at}]", 0) for name in ("full", "empty")] for at in range(state.stages)],
        "busy": round(busy(state), 4),
    }


def _box(event: Event, row: str, start: int, end: int, tip: dict, *, named: bool = True, **look: Any) -> dict[str, Any]:
    """Return a stretch of time in a row. look: what differs from ``WHOLE``."""
    look = {**WHOLE, **look, "name": name(event) if named else ""}
    return {"row": row, "start": start, "end": end, "kind": event.kind, "tip": tip, **look}


def _pieces(event: Event, events: list[Event]) -> Iterator[tuple[int, int, bool]]:
    """Yield the stretches of an event, each with whether its unit worked for another program, too."""
    others = [e for e in events if e.unit == event.unit and e.by != event.by]
    others = [e for e in others if e.start < event.end and event.start < e.end]
    inside = (min(max(time, event.start), event.end) for e in others for time in e[:2])
    for start, end in pairwise(sorted({event.start, event.end, *inside})):
        yield start, end, any(e.start < end and start < e.end for e in others)


def _shared(event: Event, events: list[Event], row: str, tip: dict, halves: bool) -> list[dict]:
    """Return boxes half as high where the unit is shared: areas are work. halves: each consumer has its own half."""
    pieces = list(_pieces(event, events))
    widest = max(pieces, key=lambda piece: piece[1] - piece[0])
    low = 0.0 if halves and event.by == "consumer 0" else 0.5
    seat = low + 0.25 if halves else 0.5
    return [
        _box(event, row, *piece[:2], tip, low=low if piece[2] else 0.0, high=low + 0.5 if piece[2] else 1.0,
             seat=seat, named=piece == widest)
        for piece in pieces
    ]  # fmt: skip


def _held(event: Event, events: list[Event], stages: int) -> list[dict]:
    """Return two boxes for a tile in its stage: coming until ``full`` completes, then readable until ``empty`` does."""
    stage, n = event.g % stages, event.g // stages
    full, empty = ([e.end for e in events if e.unit == "barrier" and e.kind == f"{barrier}[{stage}]"]
                   for barrier in ("full", "empty"))  # fmt: skip
    low = 0.0 if event.kind == "K" else 0.5
    lines = [f"asked for in cycle {event.start:,}", f"full[{stage}] lets it be read from {full[n]:,} on",
             f"empty[{stage}] gives the room back in {empty[n]:,}"]  # fmt: skip
    tip = {"title": f"{name(event)} in {event.where}", "lines": lines, "code": CODE["full"]}
    return [
        _box(event, f"stage {stage}", event.start, full[n], tip, low=low, high=low + 0.5, coming=True, named=False),
        _box(event, f"stage {stage}", full[n], empty[n], tip, low=low, high=low + 0.5),
    ]


def _copied(event: Event, events: list[Event]) -> dict[str, Any]:
    """Return the rest of a copy's tip: where it goes, and what the producer waited for."""
    if event.kind == "O":
        return {"lines": [_span(event), "to slow memory"], "code": CODE["O"]}
    waits = [e for e in events if e.unit == "producer" and e.end <= event.start and event.kind in "KV"]
    waits = [e for e in waits if e.kind == f"empty[{event.where[2:-1]}]"]
    last = waits[-1:] if waits and not _earlier(event, waits[-1], events) else []
    wait = [f"the producer waited {e.end - e.start:,} cycles at {e.kind} for phase {e.j}" for e in last]
    return {"lines": [_span(event), f"into {event.where}", *wait], "code": CODE[event.kind]}


def _earlier(event: Event, wait: Event, events: list[Event]) -> bool:
    """Return whether another copy into the same buffer began between a wait and this copy."""
    return any(e.where == event.where and wait.end <= e.start < event.start for e in events)


def _waited(product: Event, events: list[Event]) -> list[str]:
    """Return what a product waited for: the barriers at which its consumer waited in this step, and the tensor core."""
    # The S of the step before: that of block j + 1 for an S, as blocks run from the last to the first; that of the same
    # block for a PV.
    previous = product.j + (product.kind == "S")
    since = [e.start for e in events if e[2:6] == ("tensor core", product.by, "S", previous)]
    waits = [e for e in events if e.unit == product.by and max(since, default=-1) < e.end <= product.start]
    lines = [_ended(e, events) for e in waits if e.kind != "products"]
    before = [e for e in events if e.unit == "tensor core" and e.end == product.start]
    lines += [f"begins when {_words(e)} ends" for e in before]
    return lines or ["waited for nothing"]


def _ended(wait: Event, events: list[Event]) -> str:
    """Return what a consumer waited for, how many cycles, and what ended the wait, if that is known."""
    cause = _cause(wait, events)
    where = f"phase {wait.j} of {wait.kind}" if wait.kind != "products" else f"at most {wait.j} of its products left"
    return f"waited {wait.end - wait.start:,} cycles for {where}" + (f": {cause[0]}" if cause else "")


def _cause(wait: Event, events: list[Event]) -> tuple[str, str, int] | None:
    """Return what ended a wait, in words, with its row and its cycle; None if that is not known."""
    barrier, at = wait.kind.rstrip("]").split("[") if "[" in wait.kind else (wait.kind, "")
    if barrier == "turn":
        other = f"consumer {1 - int(at)}"
        return f"{other} had asked for its products", other, wait.end
    if barrier == "products":
        done = [e for e in events if e.unit == "tensor core" and e.by == wait.by and e.end == wait.end]
        return (f"{name(done[0])} was computed", "tensor core", wait.end) if done else None
    buffers = (f"Q[{at}]",) if barrier == "q_full" else (f"K[{at}]", f"V[{at}]")
    copies = [e for e in events if e.unit == "copy engine" and e.where in buffers and e.end <= wait.end]
    if not copies:
        return None
    last = max(copies, key=lambda e: e.end)
    return f"{name(last)} came", "copy engine", last.end


def _wait(event: Event, events: list[Event]) -> dict[str, Any]:
    tip = {"title": f"{event.by} waits for {_awaited(event)}", "lines": [_span(event), _ended(event, events)],
           "code": CODE[event.kind.split("[")[0]]}  # fmt: skip
    return {"row": event.by, "start": event.start, "end": event.end, "words": _awaited(event), "tip": tip}


def _link(event: Event, events: list[Event]) -> dict[str, Any] | None:
    """Return the line from what ended a wait to the consumer that waited; None if that is not known."""
    cause = _cause(event, events)
    return cause and {"at": event.end, "from": cause[1], "since": cause[2], "to": event.by}


def _span(event: Event) -> str:
    return f"cycles {event.start:,} to {event.end:,}: {event.end - event.start:,}"


def name(event: Event) -> str:
    """Return an event's short name, such as K₃."""
    return NAMES.get(event.kind, event.kind) + ("" if event.kind in ("Q", "O", "rescale") else chr(0x2080 + event.j))


def _awaited(event: Event) -> str:
    return WAITS[event.kind.split("[")[0]]


def under_way(state: State, unit: str, by: str | None = None) -> list[Event]:
    """Return the events of a unit that the clock is in."""
    now = moment(state)
    return [e for e in run(state).events if e.unit == unit and e.start <= now < e.end and by in (None, e.by)]


def phases(state: State) -> dict:
    """Return the phase bit of each barrier that has completed a phase."""
    return {e.kind: e.j for e in run(state).events if e.unit == "barrier" and e.end <= moment(state)}


def busy(state: State) -> float:
    """Return the share of the time so far in which the tensor core worked."""
    now, until, cycles = moment(state), 0, 0
    for start, end in sorted(e[:2] for e in run(state).events if e.unit == "tensor core"):
        cycles += max(min(end, now) - max(start, until), 0)
        until = max(until, end)
    return cycles / now if now else 0.0


def _doing(unit: str, state: State) -> str:
    """Return in words what a unit or a consumer is doing."""
    if unit == "copy engine":
        idle = ["idle: waits for room"] if under_way(state, "producer") else ["idle"]
        return ([_words(e) for e in under_way(state, unit)] or idle)[0]
    if unit == "tensor core":
        return "\n".join(_words(e) for e in under_way(state, unit)) or "idle"
    words = [_words(e).split(" of ")[0] for e in under_way(state, "vector units", unit)]
    words += [f"waits for {_awaited(e)}" for e in under_way(state, unit)]
    ended = all(e.end <= moment(state) for e in run(state).events if e.by == unit)
    return words[0] if words else "done" if ended else "asks for products"


def _words(event: Event) -> str:
    if event.unit == "copy engine":
        return f"{name(event)} {'leaves' if event.kind == 'O' else 'comes'}"
    if event.unit == "vector units":
        return f"{'softmax ' + str(event.j) if event.kind == 'softmax' else 'rescaling'} of {event.by}"
    return f"{name(event)} of {event.by}"


def _happened(state: State) -> Iterator[str]:
    """Yield what ends and what begins at this moment, in words."""
    now, events = moment(state), run(state).events
    work = [e for e in events if e.unit in ("copy engine", "tensor core", "vector units")]
    yield from (_completed(e) for e in events if e.unit == "barrier" and e.end == now)
    yield from (f"{_words(e)} ends" for e in work if e.end == now and e.unit != "copy engine")
    yield from (f"{_words(e)} begins" for e in work if e.start == now and e.unit != "copy engine")
    yield from (
        f"the last bytes of {name(e)} are on their way" for e in work if e.end == now and e.unit == "copy engine"
    )
    yield from (f"the copy of {name(e)} begins" for e in work if e.start == now and e.unit == "copy engine")
    yield from (f"{e.by} begins to wait for {_awaited(e)}" for e in events if e.start == now and e.unit == e.by)


def _completed(event: Event) -> str:
    barrier, at = event.kind.rstrip("]").split("[")
    return {"full": f"stage {at} is full", "empty": f"stage {at} is empty", "turn": f"it is consumer {at}'s turn",
            "q_full": f"Q of consumer {at} is there", "q_empty": f"Q of consumer {at} is free"}[barrier]  # fmt: skip


def describe(state: State) -> str:
    """Say what happens at this moment, how busy the tensor core is, and the rate that follows."""
    whole = run(state)
    happened, each = list(_happened(state)), whole.cycles / whole.blocks
    parts = [part for n, part in enumerate(happened) if len(" ".join(happened[: n + 1]).split()) <= 16] or happened[:1]
    return (
        f"Cycle {moment(state):,} of {whole.cycles:,}: {', '.join(parts)}. "
        f"The tensor core was busy {busy(state):.0%} so far, {whole.busy / whole.cycles:.0%} in all: "
        f"{each:,.0f} cycles per block, {pipeline.teraflops(each):.0f} TFLOP/s on {pipeline.H100.sms} SMs."
    )


CONTROLS = {
    "step": Scrub(count, "moment"),
    "stages": Slide(STAGES),
    "consumers": Choose(CONSUMERS),
    "overlap": Toggle("overlap within a consumer"),
}

explore = explorer(__name__)
