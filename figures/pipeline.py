"""The timeline of a FlashAttention-3 pipeline on one multiprocessor: who works, who waits, what shared memory holds.

Kills two beliefs: that ping-pong is double buffering (stages are further buffers, so that copies need not wait for
products; ping-pong is an order among products, and either can be had without the other), and that a warp which waits
wastes the multiprocessor (while one consumer waits for its turn, the tensor core works for the other).

Every box is an event of ``flashlab.reference.pipeline``, which computes attention of a real text while its clock runs.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.ticker import MultipleLocator

from figures import style
from figures.figure import Scrub, Slide, Toggle, explorer
from flashlab.course import data
from flashlab.reference import pipeline

QUERIES = 128  # one tile; its keys are the 512 tokens of the text, in four blocks
STAGES = (1, 2, 3, 4)
SCALES = (13_000, 24_000)  # cycles across the picture: the first that suffices
ROWS = {"copy engine": (8.55, 9.2), "stages": (5.5, 8.25), "tensor core": (3.4, 5.1),
        "consumer 0": (1.75, 2.85), "consumer 1": (0.15, 1.25)}  # bottom and top  # fmt: skip
TITLES = {"copy engine": "copy engine", "tensor core": "tensor core:\nconsumer 0\nabove, 1 below",
          "consumer 0": "consumer 0\n(a line: waits)", "consumer 1": "consumer 1\n(a line: waits)"}  # fmt: skip
COLORS = {"Q": style.Q, "K": style.K, "V": style.V, "S": style.S, "PV": style.O, "O": style.O, "softmax": style.P,
          "rescale": style.STANDARD}  # fmt: skip
DARK = {style.Q, style.V, style.O, style.P}  # take pale letters
NAMES = {"softmax": "P", "rescale": ""}
WAITS = {"full": "tiles", "q_full": "Q", "turn": "turn", "products": "products", "empty": "room", "q_empty": "room"}
COMING = 0.32  # opacity of what has not happened yet
LABELS = 120
LETTER = 0.0088  # of the picture's width

SIZE = (9.9, 5.6)  # inches


@dataclass(frozen=True)
class State:
    """``step`` moments have passed at which something began or ended."""

    step: int = 34
    stages: int = 2
    ping_pong: bool = True
    overlap: bool = True
    locked: bool = False  # both warpgroups in one partition


class Box(NamedTuple):
    """A stretch of time in a row of the picture."""

    start: float
    end: float
    bottom: float
    top: float
    color: tuple


class Label(NamedTuple):
    """What stands in the middle of a box, where it fits."""

    start: float
    end: float
    y: float
    text: str
    color: str | None  # of the box


class Trace(NamedTuple):
    """A run and its picture."""

    run: pipeline.Run
    times: list[int]  # [steps + 1]  cycles at which something begins or ends
    boxes: list[Box]
    waits: list[tuple]  # (start, end, y)
    labels: list[Label]


@lru_cache(maxsize=64)
def _traced(stages, ping_pong, overlap, consumers):
    Q, K, V = data.captured("alice").head()
    run = pipeline.forward(Q[:QUERIES], K, V, pipeline.Design(stages, ping_pong, overlap, consumers))
    times = sorted({0, *(time for event in run.events for time in event[:2])})
    picture = Trace(run, times, [], [], [])
    for event in run.events:
        if event.unit == "copy engine":
            _add(picture, event, event.start, event.end, *ROWS["copy engine"])
        elif event.unit == "tensor core":
            _add_product(picture, event, consumers)
        elif event.unit == "vector units":
            _add_vector_work(picture, event)
        elif event.unit in ROWS:
            bottom, top = ROWS[event.unit]
            y = bottom + 0.35 * (top - bottom)
            picture.waits.append((event.start, event.end, y))
            picture.labels.append(Label(event.start, event.end, y + 0.3, _awaited(event), None))
    for stage in range(stages):
        _add_stage(picture, stage, stages)
    return picture


def trace(state):
    """The run of ``flashlab.reference.pipeline``, and its boxes."""
    return _traced(state.stages, state.ping_pong, state.overlap, 1 if state.locked else 2)


def _add(picture, event, start, end, bottom, top, alpha=1.0, label=True):
    picture.boxes.append(Box(start, end, bottom, top, to_rgba(COLORS[event.kind], alpha)))
    if label:
        picture.labels.append(Label(start, end, (bottom + top) / 2, name(event), COLORS[event.kind]))


def _pieces(event, events):
    """The stretches of an event, each with whether its unit worked for another program, too."""
    others = [e for e in events if e.unit == event.unit and e.by != event.by]
    others = [e for e in others if e.start < event.end and event.start < e.end]
    inside = (min(max(time, event.start), event.end) for e in others for time in e[:2])
    for start, end in pairwise(sorted({event.start, event.end, *inside})):
        yield start, end, any(e.start < end and start < e.end for e in others)


def _add_product(picture, event, consumers):
    """Half as high where the tensor core is shared; the name stands in the consumer's half in any case."""
    bottom, top = ROWS["tensor core"]
    half = (top - bottom) / 2 if consumers == 2 else 0
    mine = (bottom, top - half) if event.by == "consumer 1" else (bottom + half, top)
    for start, end, shared in _pieces(event, picture.run.events):
        _add(picture, event, start, end, *(mine if shared else (bottom, top)), label=False)
    picture.labels.append(Label(event.start, event.end, sum(mine) / 2, name(event), COLORS[event.kind]))


def _add_vector_work(picture, event):
    """Half as high where the vector units are shared: areas are work."""
    bottom, top = ROWS[event.by]
    pieces = list(_pieces(event, picture.run.events))
    for start, end, shared in pieces:
        _add(picture, event, start, end, bottom, (bottom + top) / 2 if shared else top, label=False)
    start, end, _ = max(pieces, key=lambda piece: piece[1] - piece[0])
    picture.labels.append(Label(start, end, bottom + 0.27, name(event), COLORS[event.kind]))


def _stage_row(stage, stages):
    bottom, top = ROWS["stages"]
    high = (top - bottom) / stages
    return top - (stage + 1) * high, high


def _add_stage(picture, stage, stages):
    """What each buffer of a stage holds: pale until the barrier knows of it, until it is given back."""
    events, (bottom, high) = picture.run.events, _stage_row(stage, stages)
    full, empty = ([e.end for e in events if e.unit == "barrier" and e.kind == f"{barrier}[{stage}]"]
                   for barrier in ("full", "empty"))  # fmt: skip
    for event in events:
        if event.where in (f"K[{stage}]", f"V[{stage}]") and event.unit == "copy engine":
            low = bottom + (0.5 if event.kind == "K" else 0.06) * high
            n = event.g // stages
            _add(picture, event, event.start, full[n], low, low + 0.42 * high, 0.4, label=False)
            _add(picture, event, full[n], empty[n], low, low + 0.42 * high)


def name(event):
    """Such as K₃."""
    return NAMES.get(event.kind, event.kind) + ("" if event.kind in ("Q", "O", "rescale") else chr(0x2080 + event.j))


def _awaited(event):
    return WAITS[event.kind.split("[")[0]]


def count(state):
    """The number of moments after the first."""
    return len(trace(state).times) - 1


def moment(state):
    """The cycle that the clock shows."""
    return trace(state).times[state.step]


def build(fig):
    ax = style.quiet(fig.add_axes((0.115, 0.06, 0.74, 0.865)), x=True)
    ax.set(ylim=(0, 9.35))
    ax.xaxis.set_major_locator(MultipleLocator(2000))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    small, side = {"fontsize": 8.5, **style.FONT}, ax.get_yaxis_transform()
    for row, (bottom, top) in ROWS.items():
        ax.axhline(bottom, color=style.PALE, lw=0.8, zorder=0)
        ax.text(-0.012, (bottom + top) / 2, TITLES.get(row, ""), transform=side, ha="right", va="center", **small)
    ax.text(-0.012, -0.012, "cycles", transform=ax.transAxes, ha="right", va="top", **small)
    beside = {"transform": side, "va": "center", "linespacing": 1.3, **small}
    return {
        "coming": ax.add_collection(PolyCollection([], zorder=1, linewidths=0.6, edgecolors=style.PAPER)),
        "passed": ax.add_collection(PolyCollection([], zorder=2, linewidths=0.6, edgecolors=style.PAPER)),
        "waits": ax.add_collection(LineCollection([], colors=style.INK, lw=1.0, zorder=3)),
        "labels": [ax.text(0, 0, "", ha="center", va="center", zorder=4, **small) for _ in range(LABELS)],
        "clock": ax.axvline(0, color=style.INK, lw=1.2, zorder=5),
        "stages": [ax.text(-0.012, 0, "", ha="right", **beside) for _ in STAGES],
        "phases": [ax.text(1.012, 0, "", **beside) for _ in STAGES],
        "doing": [ax.text(1.012, sum(ROWS[row]) / 2, "", **beside) for row in ROWS if row != "stages"],
        "now": fig.text(0.115, 0.95, "", fontsize=11.5, weight="bold", **style.FONT),
        "counts": fig.text(0.985, 0.95, "", fontsize=9, ha="right", **style.FONT),
    }


def update(artists, state):
    run, _, boxes, waits, labels = trace(state)
    now, ax = moment(state), artists["clock"].axes
    scale = next(scale for scale in SCALES if run.cycles < scale)
    ax.set_xlim(0, scale)
    artists["clock"].set_xdata([now, now])
    artists["waits"].set_segments([[(start, y), (end, y)] for start, end, y in waits])
    for part, fade, cut in (("passed", 1, lambda x: min(x, now)), ("coming", COMING, lambda x: max(x, now))):
        there = [(cut(box.start), cut(box.end), box) for box in boxes if cut(box.end) > cut(box.start)]
        artists[part].set_verts([_rectangle(*box) for box in there])
        artists[part].set_facecolor([(*box.color[:3], fade * box.color[3]) for *_, box in there])
    _write_labels(artists["labels"], labels, now, scale)
    for stage in STAGES:
        bottom, high = _stage_row(stage - 1, state.stages)
        words = (f"stage {stage - 1}", _phases(stage - 1, state)) if stage <= state.stages else ("", "")
        for text, word in zip((artists["stages"][stage - 1], artists["phases"][stage - 1]), words, strict=True):
            text.set(y=bottom + high / 2, text=word)
    for unit, text in zip((row for row in ROWS if row != "stages"), artists["doing"], strict=True):
        turn = unit.startswith("consumer") and state.ping_pong and not state.locked
        text.set_text(_doing(unit, state) + (f"\n{_phase('turn', unit[-1], state)}" if turn else ""))
    artists["now"].set_text(f"cycle {now:,} of {run.cycles:,}")
    artists["counts"].set_text(_counts(state))


def _rectangle(left, right, box):
    return [(left, box.bottom), (left, box.top), (right, box.top), (right, box.bottom)]


def _write_labels(texts, labels, now, scale):
    fitting = [label for label in labels if label.end - label.start > LETTER * scale * len(label.text) > 0]
    for n, text in enumerate(texts):
        text.set_text(fitting[n].text if n < len(fitting) else "")
        if n < len(fitting):
            x = (fitting[n].start + fitting[n].end) / 2
            text.set(x=x, y=fitting[n].y, color=style.PAPER if fitting[n].color in DARK and x < now else style.INK)


def under_way(state, unit, by=None):
    """The events of a unit that the clock stands in."""
    now = moment(state)
    return [e for e in trace(state).run.events if e.unit == unit and e.start <= now < e.end and by in (None, e.by)]


def phases(state):
    """The phase bit of each barrier that has completed a phase."""
    return {e.kind: e.j for e in trace(state).run.events if e.unit == "barrier" and e.end <= moment(state)}


def busy(state):
    """The share of the time so far in which the tensor core worked."""
    now, until, cycles = moment(state), 0, 0
    for start, end in sorted(e[:2] for e in trace(state).run.events if e.unit == "tensor core"):
        cycles += max(min(end, now) - max(start, until), 0)
        until = max(until, end)
    return cycles / now if now else 0.0


def _counts(state):
    run = trace(state).run
    each = run.cycles / run.blocks
    gpu = f"{pipeline.H100.sms} SMs of {pipeline.H100.clock / 1e9} GHz"
    return (
        f"tensor core busy {busy(state):.0%} so far, {run.busy / run.cycles:.0%} in all   ·   "
        f"{each:,.0f} cycles a block ({pipeline.teraflops(each):.0f} TFLOP/s on {gpu})"
    )


def _phases(stage, state, between="\n"):
    return between.join(_phase(barrier, stage, state) for barrier in ("full", "empty"))


def _phase(barrier, at, state):
    return f"{barrier} in phase {phases(state).get(f'{barrier}[{at}]', 0)}"


def _doing(unit, state):
    """In words, what a unit or a consumer is at."""
    if unit == "copy engine":
        idle = ["idle: waits for room"] if under_way(state, "producer") else ["idle"]
        return ([_words(e) for e in under_way(state, unit)] or idle)[0]
    if unit == "tensor core":
        return "\n".join(_words(e) for e in under_way(state, unit)) or "idle"
    if unit == "consumer 1" and state.locked:
        return "(part of consumer 0)"
    words = [_words(e).split(" of ")[0] for e in under_way(state, "vector units", unit)]
    words += [f"waits for {_awaited(e)}" for e in under_way(state, unit)]
    ended = all(e.end <= moment(state) for e in trace(state).run.events if e.by == unit)
    return words[0] if words else "done" if ended else "asks for products"


def _words(event):
    if event.unit == "copy engine":
        return f"{name(event)} {'leaves' if event.kind == 'O' else 'comes'}"
    if event.unit == "vector units":
        return f"{'softmax ' + str(event.j) if event.kind == 'softmax' else 'rescaling'} of {event.by}"
    return f"{name(event)} of {event.by}"


def _happened(state):
    """What ends and what begins at this moment, in words."""
    now, events = moment(state), trace(state).run.events
    work = [e for e in events if e.unit in ("copy engine", "tensor core", "vector units")]
    yield from (_completed(e) for e in events if e.unit == "barrier" and e.end == now)
    yield from (f"{_words(e)} ends" for e in work if e.end == now and e.unit != "copy engine")
    yield from (f"{_words(e)} begins" for e in work if e.start == now and e.unit != "copy engine")
    yield from (
        f"the last bytes of {name(e)} are on their way" for e in work if e.end == now and e.unit == "copy engine"
    )
    yield from (f"the copy of {name(e)} begins" for e in work if e.start == now and e.unit == "copy engine")
    yield from (f"{e.by} begins to wait for {_awaited(e)}" for e in events if e.start == now and e.unit == e.by)


def _completed(event):
    barrier, at = event.kind.rstrip("]").split("[")
    return {"full": f"stage {at} is full", "empty": f"stage {at} is empty", "turn": f"it is consumer {at}'s turn",
            "q_full": f"Q of consumer {at} is there", "q_empty": f"Q of consumer {at} is free"}[barrier]  # fmt: skip


def describe(state):
    run, now = trace(state).run, moment(state)
    options = {"one partition": state.locked, "ping-pong": state.ping_pong, "overlap": state.overlap}
    design = [f"{state.stages} stage{'s' * (state.stages > 1)}", *(option for option, on in options.items() if on)]
    units = ["copy engine", "tensor core", "consumer 0", *([] if state.locked else ["consumer 1"])]
    doing = [f"{unit}: {_doing(unit, state)}".replace("\n", ", ") for unit in units]
    bits = [f"stage {stage} {_phases(stage, state, ', ')}" for stage in range(state.stages)]
    return (
        f"{', '.join(design).capitalize()}. Cycle {now:,} of {run.cycles:,}: {', '.join(_happened(state))}. "
        f"{'; '.join(doing)}. {'; '.join(bits)}. The {_counts(state).replace('   ·   ', '; ')}."
    )


CONTROLS = {
    "step": Scrub(count, "moment"),
    "stages": Slide(STAGES),
    "ping_pong": Toggle("ping-pong"),
    "overlap": Toggle("overlap within a consumer"),
    "locked": Toggle("both warpgroups in one partition"),
}

explore = explorer(__name__)
