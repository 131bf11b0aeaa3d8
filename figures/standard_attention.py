"""The matrices of N x N travel to slow memory and back, or never leave fast memory.

Kills the belief that attention is slow because it computes much: hardly a byte that standard attention moves belongs to
an input or to the output. Both ways run on one head of GPT-2 medium, N = 1024 and d = 64 in float16, and every step
of the picture is one line of the bill that the counting memory kept.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Polygon, Rectangle

from figures import style
from figures.figure import Choose, Scrub, Toggle, explorer
from flashlab.machine.memory import Memory
from flashlab.reference import masks, published, recomputation, standard_attention, tiling

N, D, HEADS, BANDS = 1024, 64, 16 * 64, 4  # 16 heads, batch of 64; bands of rows on the picture
B = N // BANDS
WAYS = ("standard", "fused")
PAPER = {way: (run.nbytes / 1e9, run.milliseconds) for way, run in published.RUNS.items()}  # GB, ms

THIN, GAP = 1 / 16, 0.32  # width of N x d beside N x N, true to scale; distance of strips
PLACES = {  # lower left corner in slow memory, in units of N
    "Q": (0.14, 1.5), "K": (0.14 + GAP, 1.5), "V": (0.14 + 2 * GAP, 1.5), "O": (0.14 + 3 * GAP, 1.5),
    "S": (1.45, 1.5), "S_masked": (2.6, 1.5), "P": (0.3, 0.12), "P_dropped": (1.45, 0.12), "Z": (2.6, 0.12),
}  # fmt: skip
COLORS = {"Q": style.Q, "K": style.K, "V": style.V, "O": style.O, "S": style.S, "S_masked": style.S, "P": style.P,
          "P_dropped": style.P, "Z": style.STANDARD}  # fmt: skip
WORDS = {"S_masked": "S masked", "P_dropped": "P dropped", "Z": "dropout mask"}
SLOTS = {"Q": 4.72, "K": 4.88, "V": 5.04, "O": 5.2}  # of the thin tiles in fast memory
FAST = (4.62, 0.55, 1.24, 1.72)  # x, y, width, height of fast memory
MB = 1e6

SIZE = (9.2, 4.7)  # inches


@dataclass(frozen=True)
class State:
    """``step`` transfers have been made. ``mask`` and ``dropout`` are kernels of their own in the standard way only."""

    step: int = 22
    way: str = "standard"
    mask: bool = True
    dropout: bool = True


class Step(NamedTuple):
    """One transfer, and how things stand after it."""

    kind: str  # "load" or "store"; "" before the first
    name: str
    band: int | None  # which rows of the tensor; None for all
    nbytes: int
    kernel: str
    number: int  # of the kernel
    resident: dict  # band, by name of the tile that is in fast memory
    bill: dict  # bytes by (kind, name)
    written: frozenset  # (name, band) of what slow memory holds


@lru_cache(maxsize=8)
def _steps(way, mask, dropout):
    rng, memory = np.random.default_rng(2), Memory()
    Q, K, V = (rng.normal(size=(N, D)).astype(np.float16) for _ in range(3))
    if way == "fused":
        tiling.fa2_forward(Q, K, V, B, B, memory=memory)
    else:
        seen = masks.causal() if mask else None
        standard_attention.forward(Q, K, V, mask=seen, dropout=0.1 * dropout, Br=B, memory=memory)
    written = {(name, band) for name in "QKV" for band in range(BANDS)}
    steps = [Step("", "", None, 0, "", 0, {}, {}, frozenset(written))]
    kernel, number, resident, bill = "", 0, {}, {}
    for kind, name, region, nbytes in memory.events:
        band = region[0].start // B if region else None
        if kind == "kernel":
            kernel, number, resident = name, number + 1, {}
        elif kind == "hold":
            resident = {**resident, name.removesuffix("_i"): 0}
        else:
            bill = {**bill, (kind, name): bill.get((kind, name), 0) + nbytes}
            if kind == "load":
                resident = {**resident, name: band}
            else:
                written.add((name, band))
            steps.append(Step(kind, name, band, nbytes, kernel, number, resident, bill, frozenset(written)))
    return steps


def trace(state):
    """Every transfer of the run, as the counting memory booked it; step 0 is the state before the first."""
    return _steps(state.way, state.mask, state.dropout)


def count(state):
    """How many transfers there are."""
    return len(trace(state)) - 1


def _fused():
    """Bytes that the fused way moves, the whole of it."""
    return sum(trace(State(way="fused"))[-1].bill.values())


def counted(state):
    """Bytes of the whole run of the paper, forward and backward, all heads: standard (with these kernels) and fused.

    Fused is FlashAttention's own order with 256 keys a tile, and the N x d tensors alone: 33 passes over them.
    """
    standard = standard_attention.moved(N, D, mask=state.mask, dropout=state.dropout, backward=True)
    bills = (run(N, N, D, 128, 256, dtype=np.float16) for run in (tiling.fa1_traffic, recomputation.traffic))
    fused = sum(nbytes for bill in bills for (_, name), nbytes in bill.items() if name not in ("lse", "delta"))
    return {"standard": HEADS * standard, "fused": HEADS * fused}


def build(fig):
    stage = style.quiet(fig.add_axes((0.008, 0.22, 0.65, 0.775)))
    stage.set(xlim=(-0.05, 5.95), ylim=(-0.05, 2.95), aspect="equal", anchor="NW")
    stage.add_patch(Rectangle((0, 0), 3.75, 2.72, facecolor=(style.SLOW, 0.18), edgecolor=style.SLOW, lw=2))
    stage.add_patch(Rectangle(FAST[:2], *FAST[2:], facecolor=(style.FAST, 0.1), edgecolor=style.FAST, lw=2))
    stage.text(0, 2.78, "slow memory", color=style.INK, fontsize=11, weight="bold")
    stage.text(FAST[0], FAST[1] + FAST[3] + 0.06, "fast memory", color=style.FAST, fontsize=11, weight="bold")
    for name, (x, y) in PLACES.items():
        stage.text(x, y + 1.03, WORDS.get(name, name), fontsize=9, color=style.INK)
    outlines = [_box(x, y, _width(name), 1) for name, (x, y) in PLACES.items()]
    bands = [_box(*_band(name, i)) for name in PLACES for i in range(BANDS)]
    meter, total = _meter(fig)
    rows, colors = range(len(PLACES)), list(COLORS.values())
    return {
        "bands": stage.add_collection(PolyCollection(bands, edgecolors=style.PAPER, linewidths=0.6)),
        "outlines": stage.add_collection(PolyCollection(outlines, facecolors="none", edgecolors=style.STANDARD)),
        "moved": stage.add_patch(Rectangle((0, 0), 0, 0, facecolor="none", edgecolor=style.INK, lw=2)),
        "tiles": stage.add_collection(PolyCollection([], edgecolors=style.INK, linewidths=0.6)),
        "letters": [stage.text(0, 0, "", fontsize=9, ha="center", color=style.INK) for _ in range(5)],
        "arrow": stage.add_patch(Polygon([(0, 0)], edgecolor=style.INK, lw=0.8)),
        "transfer": stage.text(4.19, 1.25, "", fontsize=9, ha="center", va="top", color=style.INK, linespacing=1.4),
        "kernel": stage.text(FAST[0], 0.44, "", fontsize=10, va="top", color=style.INK, linespacing=1.4),
        "loads": list(meter.barh(rows, 0, color=colors, height=0.62)),
        "stores": list(meter.barh(rows, 0, color=colors, height=0.62, alpha=0.55)),
        "amounts": [meter.text(0, row, "", fontsize=9, va="center", color=style.INK) for row in rows],
        "total": list(total.barh([0], [0], color=style.INK, height=0.62)),
        "sum": total.text(0, 0, "", fontsize=10, weight="bold", va="center", color=style.INK),
        "counted": [_cell(fig, column, 1, "") for column in (0, 1)],
    }  # fmt: skip


def _meter(fig):
    """Axes for the bytes of each tensor and for all together, and the table below them, but for what is counted."""
    fused = _fused() / MB
    meter = style.quiet(fig.add_axes((0.775, 0.38, 0.165, 0.52)))
    meter.set(xlim=(0, 18.5), ylim=(len(PLACES) - 0.5, -0.5))
    total = style.quiet(fig.add_axes((0.775, 0.305, 0.165, 0.06)))
    total.set(xlim=(0, 18.5), ylim=(-0.5, 0.5))
    total.plot([fused, fused], [-0.9, 0.5], color=style.FLASH, lw=1.5, clip_on=False)
    total.text(fused, -1.0, f"all of fused: {fused:.2f}", fontsize=9, va="top", color=style.FLASH)
    for ax, names in ((meter, [WORDS.get(name, name) for name in PLACES]), (total, ["together"])):
        ax.tick_params(left=False, labelleft=True)
        ax.set_yticks(range(len(names)), names)
    words = {"color": style.INK, "fontsize": 10}
    fig.text(0.985, 0.95, "MB moved, one head, forward", ha="right", weight="bold", color=style.INK, fontsize=11)
    fig.text(0.985, 0.912, "dark: loaded, light: stored", ha="right", fontsize=8.5, color=style.STANDARD)
    lines = ("forward and backward, 16 heads, batch of 64", "counted here, with the kernels that are ticked",
             "bytes that the paper's figure 2 reports", "time that it reports, on an A100")  # fmt: skip
    for row, line in enumerate(lines):
        fig.text(0.02, _line(row), line, weight="bold" if row == 0 else "normal", **words)
    for column, way in enumerate(WAYS):
        for row, text in ((0, way), (2, f"{PAPER[way][0]} GB"), (3, f"{PAPER[way][1]} ms")):
            _cell(fig, column, row, text, weight="bold" if row == 0 else "normal")
    return meter, total


def _cell(fig, column, row, text, **kwargs):
    return fig.text((0.62, 0.76)[column], _line(row), text, ha="right", fontsize=10, color=style.INK, **kwargs)


def _line(row):
    return 0.185 - 0.052 * row


def update(artists, state):
    steps = trace(state)
    now, last = steps[state.step], steps[-1]
    used = {name for _, name in last.bill}
    artists["bands"].set_facecolor(
        [COLORS[name] if (name, i) in now.written else "none" for name in PLACES for i in range(BANDS)]
    )
    artists["outlines"].set_linestyle(["-" if name in used else ":" for name in PLACES])
    _transfer(artists, now)
    _fast(artists, now, state)
    for row, name in enumerate(PLACES):
        loaded, stored = (now.bill.get((kind, name), 0) / MB for kind in ("load", "store"))
        artists["loads"][row].set_width(loaded)
        artists["stores"][row].set(x=loaded, width=stored)
        artists["amounts"][row].set(x=loaded + stored, text=f" {loaded + stored:.2f}" if loaded + stored else "")
    moved = sum(now.bill.values()) / MB
    artists["total"][0].set_width(moved)
    artists["sum"].set(x=max(moved, _fused() / MB), text=f" {moved:.2f}")
    for text, nbytes in zip(artists["counted"], counted(state).values(), strict=True):
        text.set_text(f"{nbytes / 1e9:.2f} GB")


def _transfer(artists, now):
    """The arrow between the memories, as thick as what is moved; the frame around it in slow memory."""
    artists["moved"].set_visible(now.name in PLACES)  # lse is too thin to be drawn
    for name in ("arrow", "transfer"):
        artists[name].set_visible(now.name != "")
    if now.name in PLACES:
        x, y, width, height = _band(now.name, now.band)
        artists["moved"].set_bounds(x - 0.02, y, width + 0.04, height)
    half = 0.03 + 0.12 * now.nbytes / (2 * N * B)  # a band of N x N in float16 is as thick as it gets
    left, right, y = 3.82, 4.56, 1.55
    body = [(left, y - half), (right - 0.2, y - half), (right - 0.2, y - half - 0.09), (right, y),
            (right - 0.2, y + half + 0.09), (right - 0.2, y + half), (left, y + half)]  # fmt: skip
    if now.kind == "store":
        body = [(left + right - x, y) for x, y in body]
    artists["arrow"].set(xy=body, facecolor=COLORS.get(now.name, style.STANDARD))
    artists["transfer"].set_text(f"{now.kind}\n{WORDS.get(now.name, now.name)}\n{style.amount(now.nbytes)}")


def _fast(artists, now, state):
    """What fast memory holds: thin tiles in their slots, and one tile of scores."""
    top, left, right = FAST[1] + FAST[3], FAST[0] + 0.12, FAST[0] + 0.12 + 1
    tiles = {}
    for name, x in SLOTS.items():
        if name in now.resident:
            height = 1 if now.resident[name] is None else 1 / BANDS
            tiles[name] = (x, top - 0.3 - height, THIN, height), COLORS[name]
    square = now.name if now.name in WORDS or now.name in "SP" and now.name else next(
        (name for name in now.resident if name.split("_")[0] in ("S", "P")), None)  # fmt: skip
    if square:
        wide = 1 / BANDS if state.way == "fused" else right - left
        tiles[square] = (left, FAST[1] + 0.08, wide, 1 / BANDS), COLORS.get(square, style.S)
    artists["tiles"].set_verts([_box(*box) for box, _ in tiles.values()])
    artists["tiles"].set_facecolor([color for _, color in tiles.values()] or "none")
    for text in artists["letters"]:
        text.set_text("")
    for text, (name, ((x, y, width, height), _)) in zip(artists["letters"], tiles.items(), strict=False):
        text.set(x=x + width / 2, y=y + height + 0.03, text={"S_ij": "S, P"}.get(name, WORDS.get(name, name)))
    artists["kernel"].set_text(_kernel(now, state))


def _kernel(now, state):
    if not now.number:
        return "nothing has moved"
    what = "program" if state.way == "fused" else "kernel"
    words = f"{what} {now.number} of {trace(state)[-1].number}"
    return words if state.way == "fused" else f"{words}:\n{now.kernel}"


def describe(state):
    """The transfer, the bill so far, and the bill of the whole run beside the paper's."""
    now, total = trace(state)[state.step], counted(state)
    words = f"{state.way} attention, one head of N = {N}, d = {D} in float16, transfer {state.step} of {count(state)}"
    if now.name:
        rows = "all" if now.band is None else f"rows {now.band * B} to {now.band * B + B - 1}"
        words += f": {now.kind} {WORDS.get(now.name, now.name)}, {rows}, {style.amount(now.nbytes)}"
    square = sum(nbytes for (_, name), nbytes in now.bill.items() if name in WORDS or name in ("S", "P"))
    moved = sum(now.bill.values())
    words += f". Moved so far {style.amount(moved)}, of that N x N matrices {style.amount(square)}. "
    words += "All heads, forward and backward: counted " + ", ".join(f"{w} {total[w] / 1e9:.2f} GB" for w in WAYS)
    paper = ", ".join(f"{w} {PAPER[w][0]} GB in {PAPER[w][1]} ms" for w in WAYS)
    return f"{words}. The paper, on an A100: {paper}."


CONTROLS = {
    "step": Scrub(count, "transfers"),
    "way": Choose(WAYS, "attention"),
    "mask": Toggle("mask"),
    "dropout": Toggle("dropout"),
}

explore = explorer(__name__)


def _width(name):
    return THIN if name in SLOTS else 1


def _band(name, band):
    """Where these rows of a tensor lie in slow memory, all rows if None: x, y, width, height."""
    x, y = PLACES[name]
    below = 0 if band is None else (BANDS - 1 - band) / BANDS
    return x, y + below, _width(name), 1 if band is None else 1 / BANDS


def _box(x, y, width, height):
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
