"""Standard attention and both orders of tiles under one clock: the bytes that each has moved.

Kills two beliefs: that FlashAttention leaves scores out (every tile is computed on all three maps), and that tiles
alone do it (the order decides what is read again and again). What is saved is the journey of the N x N scores to slow
memory and back.

``explore`` runs the course's functions; ``replay`` shows any lists of events, such as those counted in a Triton kernel.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.patches import Rectangle

from figures import controls, style
from figures.figure import Scrub, Slide, Toggle, explorer
from flashlab.course import data
from flashlab.machine.memory import Memory
from flashlab.reference import masks, standard_attention, tiling

STEPS = 100  # of the clock, until the longest bill is paid
SRAM_BYTES = 64 * 1024  # what a T4 gives to one block of threads
NAMES = ("standard attention", "FlashAttention: K, V outside", "FlashAttention-2: Q outside")
TENSORS = ("Q", "K", "V", "S", "P", "O", "lse")
COLORS = {name: getattr(style, name) for name in "QKVSPO"}
PARTS = ("map", "grid", "tile", "status", "resident", "letters", "used", "bill", "amounts")

SIZE = (9.9, 5.6)  # inches


@dataclass(frozen=True)
class State:
    """``step`` hundredths of the longest bill are paid. N tokens of a real text, tiles of Br x Bc."""

    step: int = 48
    N: int = 128
    Br: int = 32
    Bc: int = 32
    causal: bool = False


class Moment(NamedTuple):
    """What an event left behind."""

    moved: int  # bytes, loaded and stored so far
    bill: dict  # the same by (direction, tensor)
    resident: dict  # bytes in fast memory, by tile
    kernel: int  # how many kernels, or programs of one, have begun
    tile: tuple | None  # (rows, cols) of the scores that are being worked on


class Run(NamedTuple):
    """A list of events, made ready to be scrubbed."""

    moments: list[Moment]
    touched: list[tuple]  # (bytes moved by then, rows, cols), for each time that a tile of scores was worked on
    kernels: list[str]
    shape: tuple  # (Nq, Nk)
    stored: bool  # do scores go through slow memory?
    times: int  # that a score is worked on, at most
    unit: int  # all tiles begin and end at multiples of it


def record(events, Nq, Nk) -> Run:
    """The moments of a list of ``flashlab.machine.memory.Event`` of one head.

    Its kernels load and store scores as S and P, or compute them from the tiles of Q, K and V that they loaded last.
    """
    moved, bill, resident, place, tile = 0, {}, {}, {}, None
    moments, touched, kernels = [], [], []
    for kind, name, region, nbytes in events:
        tensor = name.split("_")[0]
        if kind == "kernel":
            kernels.append(name)
            resident, place, tile = {}, {}, None
        elif kind == "drop":
            resident = {held: size for held, size in resident.items() if held != name}
        if kind in ("load", "hold"):
            resident = {**resident, name: nbytes}
        if kind in ("load", "store"):
            moved += nbytes
            bill = {**bill, (kind, tensor): bill.get((kind, tensor), 0) + nbytes}
            place = {**place, tensor: _rows(region, Nk if tensor in "KV" else Nq)}
            if tensor in "SP":
                tile = place[tensor], slice(0, Nk)
                touched.append((moved, *tile))
            elif kind == "load" and tensor in "QKV" and "Q" in place and "K" in place and place["K"] == place.get("V"):
                tile = place["Q"], place["K"]
                touched.append((moved, *tile))
        moments.append(Moment(moved, bill, resident, len(kernels), tile))
    stored = ("store", "S") in bill or ("store", "P") in bill
    unit = math.gcd(Nq, Nk, *(edge for _, *tile in touched for side in tile for edge in (side.start, side.stop)))
    run = Run(moments, touched, kernels, (Nq, Nk), stored, 1, unit)
    return run._replace(times=int(_times(run, moved).max()))


def _times(run, clock):
    """How often each score has been worked on when so many bytes have moved [Nq / unit, Nk / unit]."""
    times = np.zeros([N // run.unit for N in run.shape], np.uint8)
    for moved, rows, cols in run.touched:
        if moved > clock:
            break
        times[_coarse(rows, run.unit), _coarse(cols, run.unit)] += 1
    return times


def _coarse(side, unit):
    return slice(side.start // unit, side.stop // unit)


def _rows(region, N):
    """Which rows of a tensor [..., N, d] were moved."""
    if not region:
        return slice(0, N)
    return region[-2] if len(region) > 1 else region[0]


@lru_cache(maxsize=32)
def _runs(N, Br, Bc, causal):
    Q, K, V = (tensor[:N] for tensor in data.captured("alice").head())
    runs = {}
    for name, forward in zip(NAMES, (standard_attention.forward, tiling.fa1_forward, tiling.fa2_forward), strict=True):
        memory = Memory()
        tiles = {"Br": Br} if forward is standard_attention.forward else {"Br": Br, "Bc": Bc}
        forward(Q, K, V, mask=masks.causal() if causal else None, memory=memory, **tiles)
        runs[name] = record(memory.events, N, N)
    return runs


def trace(state):
    """The three runs by name, as flashlab made them."""
    return _runs(state.N, state.Br, state.Bc, state.causal)


def moments(runs, step):
    """Where each run stands when ``step`` hundredths of the longest bill are paid, at the same speed for all."""
    clock = max(run.moments[-1].moved for run in runs.values()) * step / STEPS
    return {name: _at(run, clock) for name, run in runs.items()}


def _at(run, clock):
    """The last moment that ``clock`` bytes reach, but not yet the beginning of the next kernel."""
    at = bisect_right(run.moments, clock, key=lambda moment: moment.moved) - 1
    while at > 0 and run.moments[at].moved > 0 and run.moments[at].kernel > run.moments[at - 1].kernel:
        at -= 1
    return run.moments[at]


def build(fig, names=NAMES):
    artists = {}
    for at, name in enumerate(names):
        left, width = (at + 0.13) / len(names), 0.83 / len(names)
        artists |= {f"{at} {part}": artist for part, artist in zip(PARTS, _panel(fig, name, left, width), strict=True)}
    return artists


def _panel(fig, name, left, width):
    """One run: the map of its scores, what is in fast memory, and its bill."""
    scores = fig.add_axes((left, 0.46, width, 0.44))
    scores.set(xticks=[], yticks=[])
    scores.set_ylabel("queries", color=style.INK)
    scores.set_xlabel("keys", color=style.INK, loc="right", labelpad=3)
    fast = style.quiet(fig.add_axes((left, 0.335, width, 0.045)))
    fast.set(xlim=(0, SRAM_BYTES), ylim=(0, 1))
    fast.add_patch(_rectangle(0, SRAM_BYTES, facecolor=style.PAPER, edgecolor=style.FAST, lw=1.5, clip_on=False))
    bill = style.quiet(fig.add_axes((left, 0.02, width, 0.255)), y=True)
    bill.set(ylim=(len(TENSORS) - 0.4, -0.6), yticks=range(len(TENSORS)), yticklabels=TENSORS)
    bill.tick_params(left=False, labelsize=10)
    small = {"fontsize": 9, **style.FONT}
    fig.text(left, 0.955, name, fontsize=11.5, weight="bold", **style.FONT)
    fig.text(left, 0.39, f"in fast memory, of {SRAM_BYTES // 1024} KiB", **small)
    fig.text(left, 0.288, "moved, in kB: loaded dark, stored pale", **small)
    return (
        scores.imshow(np.ones((1, 1, 4)), aspect="auto", interpolation="nearest"),
        scores.add_collection(LineCollection([], colors=style.PALE, lw=0.7)),
        scores.add_patch(_rectangle(0, 1, facecolor=style.P, edgecolor=style.INK, lw=1.2, zorder=3)),
        fig.text(left, 0.915, "", **small),
        fast.broken_barh([], (0, 1)),
        [fast.text(0, 0.45, "", ha="center", va="center", fontsize=9) for _ in range(7)],
        fast.text(0, 0.45, "", va="center", **small),
        bill.broken_barh([], (0, 1)),
        [bill.text(0, y, "", va="center", **small) for y in range(len(TENSORS))],
    )


def _rectangle(x, width, **look):
    return Rectangle((x, 0), width, 1, **look)


def update(artists, state):
    draw(artists, trace(state), state.step)


def draw(artists, runs, step):
    """Set the artists of ``build`` to these runs, ``step`` hundredths of the longest bill paid."""
    longest = max(sum(_of(run.moments[-1], tensor)) for run in runs.values() for tensor in TENSORS)
    for at, (run, now) in enumerate(zip(runs.values(), moments(runs, step).values(), strict=True)):
        panel = {part: artists[f"{at} {part}"] for part in PARTS}
        done = now.moved == run.moments[-1].moved
        _draw_map(panel, run, now, None if done else now.tile)
        _draw_resident(panel, {} if done else now.resident)
        _draw_bill(panel, now, longest)
        panel["status"].set_text(f"{_status(run, now)} · {_moved(run, now)}")


def _draw_map(panel, run, now, tile):
    Nq, Nk = run.shape
    palette = LinearSegmentedColormap.from_list("", [style.PAPER, style.SLOW if run.stored else style.S], run.times + 1)
    panel["map"].set_data(palette(_times(run, now.moved), bytes=True))
    panel["map"].set_extent((0, Nk, Nq, 0))
    across = {rows.start for _, rows, _ in run.touched}
    down = {cols.start for _, _, cols in run.touched}
    panel["grid"].set_segments([[(0, y), (Nk, y)] for y in across] + [[(x, 0), (x, Nq)] for x in down])
    panel["tile"].set_visible(tile is not None)
    if tile:
        rows, cols = tile
        panel["tile"].set_bounds(cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)


def _draw_resident(panel, resident):
    order = sorted(resident, key=lambda tile: ("Q K V S P O".find(tile[0]) % 99, tile))  # what has no colour comes last
    ends = np.cumsum([resident[tile] for tile in order])
    starts = [end - resident[tile] for tile, end in zip(order, ends, strict=True)]
    panel["resident"].set_verts([_box(start, 0.06, end, 0.94) for start, end in zip(starts, ends, strict=True)])
    panel["resident"].set_facecolor([COLORS.get(tile[0], style.INK) for tile in order])
    for at, letter in enumerate(panel["letters"]):
        wide = at < len(order) and resident[order[at]] > SRAM_BYTES / 28 and ends[at] <= SRAM_BYTES
        letter.set_text(order[at][0] if wide else "")
        if wide:
            letter.set(x=(starts[at] + ends[at]) / 2, color=style.INK if order[at][0] in "KS" else style.PAPER)
    total = sum(resident.values())
    fits = total <= SRAM_BYTES
    panel["used"].set_text(f"{total / 1024:.3g} KiB{'' if fits else ': does not fit'}" if total else "")
    panel["used"].set(x=(total if fits else 0) + SRAM_BYTES / 60, color=style.INK if fits else style.O)


def _draw_bill(panel, now, longest):
    boxes, colors = [], []
    for y, (tensor, amount) in enumerate(zip(TENSORS, panel["amounts"], strict=True)):
        loaded, stored = _of(now, tensor)
        boxes += [_box(0, y - 0.36, loaded, y + 0.36), _box(loaded, y - 0.36, loaded + stored, y + 0.36)]
        colors += [to_rgba(COLORS.get(tensor, style.INK)), to_rgba(COLORS.get(tensor, style.INK), 0.5)]
        amount.set(x=loaded + stored + longest / 50, text=f"{(loaded + stored) / 1000:,.1f}" if loaded + stored else "")
    panel["bill"].set_verts(boxes)
    panel["bill"].set_facecolor(colors)
    panel["bill"].axes.set_xlim(0, 1.25 * longest)


def _box(left, bottom, right, top):
    return [(left, bottom), (left, top), (right, top), (right, bottom)]


def _of(now, tensor):
    """Bytes loaded and bytes stored of a tensor."""
    return now.bill.get(("load", tensor), 0), now.bill.get(("store", tensor), 0)


def _status(run, now):
    if now.moved == run.moments[-1].moved:
        return "done"
    if now.kernel == 0:
        return "not yet begun"
    which = f"{now.kernel} of {len(run.kernels)}"
    return f"program {which}" if len(set(run.kernels)) == 1 else f"kernel {which}: {run.kernels[now.kernel - 1]}"


def _moved(run, now):
    total = run.moments[-1].moved
    return style.amount(total) if now.moved == total else f"{style.amount(now.moved)} of {style.amount(total)}"


def _say(runs, step):
    now = moments(runs, step)
    return "; ".join(f"{name}: {_status(run, now[name])}, {_moved(run, now[name])}" for name, run in runs.items())


def describe(state):
    mask = ", causal" if state.causal else ""
    said = _say(trace(state), state.step)
    return f"{state.N} tokens, tiles of {state.Br} × {state.Bc}{mask}. What each has moved. {said}."


CONTROLS = {
    "step": Scrub(lambda _: STEPS, "% moved"),
    "N": Slide((64, 100, 128, 256, 512)),
    "Br": Slide((16, 32, 64)),
    "Bc": Slide((16, 32, 64)),
    "causal": Toggle("causal"),
}

explore = explorer(__name__)


@dataclass(frozen=True)
class Step:
    """The state of a replay: its runs do not change."""

    step: int = 40


def replay(events, Nq, Nk):
    """The same picture of recorded runs: ``events`` are lists of ``Event`` (``machine.memory``) of one head, by title.

    Raises: ValueError where nothing was recorded.
    """
    for name, recorded in events.items():
        if not any(event.nbytes for event in recorded):
            raise ValueError(f"{name}: nothing was loaded or stored while this was recorded")
    runs = {name: record(recorded, Nq, Nk) for name, recorded in events.items()}
    figure = SimpleNamespace(
        SIZE=(3.3 * len(runs), SIZE[1]),
        State=Step,
        CONTROLS={"step": CONTROLS["step"]},
        build=partial(build, names=tuple(runs)),
        update=lambda artists, state: draw(artists, runs, state.step),
        describe=lambda state: f"{_say(runs, state.step)}.",
    )
    return controls.explore(figure)
