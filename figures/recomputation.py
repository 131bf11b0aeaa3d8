"""More FLOPs, less time: the backward pass rebuilds each tile of weights, uses it and forgets it.

Kills the belief that computing something twice must be slower than keeping it. Above, every step of the backward pass
on one real head, as the counting memory booked it; below, the bill of the paper's configuration three times: as the
paper prints it, as this course counts it, and as one GPU measured it.

``explore`` runs the course's own backward pass; ``replay`` shows the events counted in the Triton kernels.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

import figures.standard_attention
from figures import controls, style
from figures.figure import Scrub, Slide, Toggle, explorer
from flashlab.course import data
from flashlab.machine import costs
from flashlab.machine.memory import Event, Memory
from flashlab.reference import masks, published, recomputation, standard_attention, tiling

PAPER = dict(zip(("FLOPs", "bytes", "time"), zip(*published.RUNS.values(), strict=True), strict=True))

COLORS = {"Q": style.Q, "K": style.K, "V": style.V, "O": style.O, "dQ": style.Q, "dK": style.K, "dV": style.V,
          "dO": style.O, "lse": style.INK, "delta": style.INK}  # fmt: skip
LEFT = {"Q": 0.0, "dO": 0.11, "O": 0.22, "lse": 0.33, "delta": 0.4, "dQ": 1.64}  # strips beside the scores, by x
ABOVE = {"K": 1.4, "V": 1.29, "dK": 1.18, "dV": 1.07}  # strips above the scores, by y
SCORES, THIN, THINNER = 0.58, 0.08, 0.035  # left edge of the scores; width of a strip, and of one number a row
WHY_NOT = {"FLOPs": "not counted by it", "bytes": "counters could not be read", "time": "nothing here ran on a GPU"}
METER = (0, 0.7, 2.2, 2.9)  # y of the meter's bars
ABOVE_TABLE = 0.615  # of the figure's height
RESULTS = ("delta", "dQ", "dK", "dV")
ROWS = ("lse", "delta")  # one number a row
USES = {"program": ("dV", "dP", "dQ", "dK"), "key_value_gradients": ("dV", "dP", "dK"), "query_gradients": ("dP", "dQ")}

SIZE = (9.9, 6.6)  # inches


@dataclass(frozen=True)
class State:
    """``step`` loads, stores and rebuilt tiles have passed, with tiles of Br x Bc of a real head."""

    step: int = 72
    Br: int = 128
    Bc: int = 128
    causal: bool = False


class Step(NamedTuple):
    """One load, store or rebuilt tile, and how things stand after it."""

    kind: str  # "load", "store" or "rebuild"; "" before the first
    name: str
    tile: tuple  # (first row or column,) of a tensor, (row, column) of the scores
    moved: int  # bytes so far
    rebuilt: tuple  # the tiles (row, column) so far, in their order
    place: dict  # first row or column of what is in fast memory, by name of the tensor; of P_ij, its row
    written: frozenset  # (name, first row or column) of the results that are in slow memory
    kernel: str  # whose program it is
    products: int  # of two tiles, so far


class Run(NamedTuple):
    """A backward pass to be scrubbed, and another one, in whole, that it is held against."""

    steps: list[Step]
    N: int
    Br: int
    Bc: int
    other: tuple[int, int]  # bytes moved, products of two tiles


@lru_cache(maxsize=1)
def _head():
    """Q, K, V of a head that reads a page of a book, and a gradient of its output, all [N, d]."""
    Q, K, V = data.captured("alice").head()
    return Q, K, V, np.random.default_rng(8).normal(size=V.shape).astype(V.dtype)


@lru_cache(maxsize=16)
def _run(Br, Bc, causal):
    Q, K, V, dO = _head()
    mask = masks.causal() if causal else None
    O, lse = tiling.fa1_forward(Q, K, V, Br, Bc, mask=mask)
    memory = Memory()
    recomputation.backward(Q, K, V, O, lse, dO, Br, Bc, mask=mask, memory=memory)
    return record(memory.events)


def record(events):
    """The steps of a list of events in the words of ``recomputation.backward``."""
    steps = [Step("", "", (), 0, (), {}, frozenset(), "", 0)]
    moved, rebuilt, place, written, kernel, products = 0, (), {}, frozenset(), "", 0
    for kind, name, region, nbytes in events:
        tile = (region[0].start,) if region else ()
        if kind == "kernel":
            kernel, place = name, {}
        elif kind == "drop":
            place = {held: where for held, where in place.items() if held != name}
        elif kind == "load" and name in "QK" and "Q" in place and "K" in place:  # the visit before is over: its tiles
            stay = ABOVE if name == "Q" else LEFT  # are about to be replaced
            place = {held: where for held, where in place.items() if held in stay}
        elif kind == "store":
            written = written | {(name, tile[0])}
        if kind == "load":
            place = {**place, name: tile[0]}
        elif kind == "hold" and name != "dS_ij":  # what begins in fast memory: dK_j and dV_j, dQ and delta, P_ij
            tile = (place["Q"], place["K"]) if name == "P_ij" else (place["K" if name.endswith("_j") else "Q"],)
            place = {**place, name.removesuffix("_j"): tile[0]}
        if name == "P_ij" and kind == "hold":
            kind, rebuilt, products = "rebuild", (*rebuilt, tile), products + 1 + len(USES[kernel])
        if kind in ("load", "store", "rebuild"):
            moved += nbytes if kind != "rebuild" else 0
            steps.append(Step(kind, name, tile, moved, rebuilt, place, written, kernel, products))
    steps[-1] = steps[-1]._replace(place={})
    return steps


def retold(events):
    """Events counted in the kernels of ``flashlab.kernels.portable.backward``, of one head, in the words of ``record``.

    A kernel's registers are not on its bill: where gradients begin to grow and P_ij is rebuilt follows from its loads.
    """
    for kind, name, region, nbytes in events:
        if kind == "kernel":
            place, done = {}, set()
            yield Event(kind, name, (), 0)
            continue
        name = name.removesuffix("_log2")  # lse by another unit
        place[name] = rows = region[-1 if name in ROWS else -2]
        yield Event(kind, name, (rows,), nbytes)
        if kind == "load" and name == "V" and "Q" not in place:
            yield from (Event("hold", grown, (), 0) for grown in ("dK_j", "dV_j"))
        elif kind == "load" and name == "Q" and "K" not in place:
            yield Event("hold", "dQ", (), 0)
        pairs = [{place.get(part) and place[part].start for part in side} for side in (("Q", "dO", *ROWS), ("K", "V"))]
        now = tuple(next(iter(pair)) for pair in pairs)
        if all(len(pair) == 1 for pair in pairs) and None not in now and now not in done:
            done.add(now)
            yield from (Event(kind, "P_ij", (), 0) for kind in ("hold", "drop"))


def trace(state):
    """Every step of the run; step 0 is the state before the first."""
    return _run(state.Br, state.Bc, state.causal)


def count(state):
    """How many steps there are."""
    return len(trace(state)) - 1


def _whole(state):
    """The run of a state, against the pass that keeps P: four products a tile, not five, and for all tiles, masked or
    not."""
    N = len(_head()[0])
    products = 4 * len(tiling.tiles(N, state.Br)) * len(tiling.tiles(N, state.Bc))
    return Run(trace(state), N, state.Br, state.Bc, (kept(state.causal), products))


@lru_cache(maxsize=16)
def kept(causal):
    """Bytes that the backward pass of the same head moves when P is kept: three N x N matrices made and read."""
    Q, K, V, dO = _head()
    memory = Memory()
    standard_attention.forward(Q, K, V, mask=masks.causal() if causal else None, Br=128, memory=memory)
    before = memory.moved
    standard_attention.backward(dO, memory, Br=128)
    return memory.moved - before


def counted():
    """FLOPs of the products, and bytes, of the paper's configuration: standard and fused."""
    N, d, heads = figures.standard_attention.N, figures.standard_attention.D, figures.standard_attention.HEADS
    return {
        "FLOPs": tuple(heads * costs.flops(N, N, d, training=True, rebuilt=rebuilt) for rebuilt in (False, True)),
        "bytes": tuple(figures.standard_attention.counted(figures.standard_attention.State()).values()),
    }


def measured():
    """Return what ``flashlab/bench/recomputation.py`` measured on one GPU."""
    found = data.measured("h200_recomputation")
    ways = found["standard"], found["flash"]
    bytes_too = {"bytes": tuple(way["bytes"] for way in ways)} if all(way["bytes"] for way in ways) else {}
    return {"device": found["about"]["device"], "time": tuple(way["ms"] for way in ways), **bytes_too}


def bills():
    """(who says so, {quantity: (standard, fused)}), one line of the table each."""
    found = measured()
    device = found.pop("device").removeprefix("NVIDIA ")
    printed, here = ("printed in the paper, A100", PAPER), ("counted in this course", counted())
    return [printed, here, (f"measured, one {device}", found)]


def build(fig, who=("P kept, in all", "P rebuilt, so far"), table=True):
    """``who``: what is compared; without the ``table`` below, the figure is ``ABOVE_TABLE`` of the height."""

    def up(y):
        return y if table else 1 - (1 - y) / ABOVE_TABLE

    stage = style.quiet(fig.add_axes((0.012, up(0.39), 0.56, up(0.985) - up(0.39))))
    stage.set(xlim=(-0.02, 1.86), ylim=(-0.03, 1.52), aspect="equal", anchor="NW")
    for name, x in LEFT.items():
        stage.text(x + _width(name) / 2, 1.02, name, ha="center", va="bottom", fontsize=9, color=style.INK,
                   rotation=90 if name in ROWS else 0)  # fmt: skip
    for name, y in ABOVE.items():
        stage.text(SCORES - 0.02, y + THIN / 2, name, ha="right", va="center", fontsize=9, color=style.INK)
    if table:
        _table(fig)
    _legend(stage)
    fig.text(0.6, up(0.955), "the backward pass, tile by tile", fontsize=12, weight="bold", **style.FONT)
    meter = style.quiet(fig.add_axes((0.715, up(0.42), 0.19, up(0.68) - up(0.42))))
    meter.set(xlim=(0, 1), ylim=(3.9, -0.7))
    for y, words in zip(METER, who * 2, strict=True):
        meter.text(-0.04, y, words, ha="right", va="center", fontsize=9, color=style.INK)
    for y, words in zip(METER[::2], ("bytes moved", "products of two tiles (violet: S again)"), strict=True):
        meter.text(-0.6, y - 0.62, words, va="center", fontsize=9, weight="bold", color=style.INK)
    look = {"height": 0.6, "align": "center"}
    return {
        "strips": stage.add_collection(PolyCollection([], edgecolors=style.STANDARD, linewidths=0.6)),
        "cells": stage.add_collection(PolyCollection([], edgecolors=style.STANDARD, linewidths=0.6)),
        "moved": stage.add_patch(Rectangle((0, 0), 0, 0, facecolor="none", edgecolor=style.INK, lw=2)),
        "letter": stage.text(0, 0, "P", ha="center", va="center", fontsize=12, color=style.PAPER),
        "event": fig.text(0.6, up(0.905), "", va="top", fontsize=11, linespacing=1.5, **style.FONT),
        "forgotten": fig.text(0.6, up(0.765), "", va="top", fontsize=9.5, linespacing=1.5, **style.FONT),
        "whole": meter.barh(METER[:1], [0], color=style.STANDARD, **look)[0],
        "bytes": meter.barh(METER[1:2], [0], color=style.FLASH, **look)[0],
        "products_kept": meter.barh(METER[2:3], [0], color=style.STANDARD, **look)[0],
        "products": meter.barh(METER[3:], [0], color=style.FLASH, **look)[0],
        "again": meter.barh(METER[3:], [0], color=style.P, **look)[0],
        "amounts": [meter.text(0, y, "", va="center", fontsize=9.5, color=style.INK) for y in METER],
    }


def _legend(stage):
    """What the three shades of a tile mean, to the left of the strips above."""
    shades = {"in fast memory": style.O, "in slow memory": to_rgba(style.O, 0.25), "not yet written": style.PAPER}
    for y, (words, face) in zip((1.435, 1.345, 1.255), shades.items(), strict=True):
        stage.add_patch(Rectangle((0, y), 0.05, 0.05, facecolor=face, edgecolor=style.STANDARD, lw=0.6))
        stage.text(0.075, y + 0.025, words, va="center", fontsize=8.5, color=style.INK)


def _width(name):
    return THINNER if name in ROWS else THIN


def _table(fig):
    """FLOPs, bytes and time, standard above fused: bars that compare within a pair and never between pairs."""
    table = style.quiet(fig.add_axes((0.012, 0.008, 0.976, 0.345)))
    told = bills()
    table.set(xlim=(0, 3.78), ylim=(len(told) - 0.05, -0.82))
    table.axhline(-0.78, color=style.PALE, lw=1)
    table.text(0, -0.5, "forward and backward", va="center", fontsize=10, weight="bold", **style.FONT)
    table.text(0, -0.2, "grey: standard · red: fused", va="center", fontsize=9, color=style.STANDARD)
    setting = "batch 64, 16 heads, N = 1024, d = 64, mask and dropout"
    table.text(3.77, -0.62, setting, ha="right", va="center", fontsize=8.5, color=style.STANDARD)
    for row, (who, _) in enumerate(told):
        table.text(0, row + 0.38, who, va="center", fontsize=9.5, **style.FONT)
    for column, quantity in enumerate(PAPER):
        left = 0.85 + column
        table.text(left, -0.4, quantity, va="center", fontsize=11, weight="bold", **style.FONT)
        for row, (_, values) in enumerate(told):
            if quantity in values:
                _pair(table, left, row, quantity, values[quantity])
            else:
                table.text(left, row + 0.38, WHY_NOT[quantity], va="center", fontsize=9, color=style.STANDARD)
    table.text(0.85, 0.82, "not all of the run's FLOPs: see the text", va="center", fontsize=8, color=style.STANDARD)


def _pair(table, left, row, quantity, pair):
    for y, value, color in zip((0.22, 0.54), pair, (style.STANDARD, style.FLASH), strict=True):
        width = 0.42 * value / max(pair)
        table.barh(row + y, width, left=left, height=0.27, color=color)
        table.text(left + width + 0.02, row + y, say(quantity, value), va="center", fontsize=9, **style.FONT)


def say(quantity, value):
    """A number of the table in words."""
    if quantity == "time":
        return f"{value:.1f} ms"
    return f"{round(value / 1e9, 1):g} GFLOP" if quantity == "FLOPs" else f"{round(value / 1e9, 2):g} GB"


def update(artists, state):
    draw(artists, _whole(state), state.step)


def draw(artists, run, at):
    """Set the artists of ``build`` to step ``at`` of a ``Run``."""
    step, N = run.steps[at], run.N
    rows, cols = (tiling.tiles(N, B) for B in (run.Br, run.Bc))
    boxes = {(name, tile.start): _strip(name, tile, N) for name in LEFT for tile in rows}
    boxes |= {(name, tile.start): _strip(name, tile, N) for name in ABOVE for tile in cols}
    artists["strips"].set_verts([_corners(box) for box in boxes.values()])
    artists["strips"].set_facecolor([_shade(name, at, step) for name, at in boxes])
    cells = {(i.start, j.start): (SCORES + j.start / N, 1 - i.stop / N, (j.stop - j.start) / N, (i.stop - i.start) / N)
             for i in rows for j in cols}  # fmt: skip
    now = step.rebuilt[-1] if "P_ij" in step.place else None
    artists["cells"].set_verts([_corners(box) for box in cells.values()])
    artists["cells"].set_facecolor([_cell(cell, now, step) for cell in cells])
    box = boxes.get((step.name, *step.tile)) or cells.get(step.tile) or (0, 0, 0, 0)
    artists["moved"].set_bounds(box)
    artists["letter"].set_visible(now is not None)
    if now:
        x, y, width, height = cells[now]
        artists["letter"].set_position((x + width / 2, y + height / 2))
    artists["event"].set_text(_words(step, run))
    forgotten = f"{len(step.rebuilt) - (now is not None)} of {len(run.steps[-1].rebuilt)} tiles of P"
    artists["forgotten"].set_text(f"{forgotten} rebuilt, used and forgotten;\nkept: none")
    _meter(artists, step, run)


def _meter(artists, step, run):
    """Bytes and products so far against those of the whole other pass."""
    (whole, standard), last = run.other, run.steps[-1]
    longest, most = max(whole, last.moved), max(standard, last.products)
    told = (style.amount(whole), style.amount(step.moved), str(standard), str(step.products))
    ends = (whole / longest, step.moved / longest, standard / most, step.products / most)
    for bar, end in zip(("whole", "bytes", "products_kept", "products"), ends, strict=True):
        artists[bar].set_width(end)
    artists["again"].set_width(len(step.rebuilt) / most)
    for text, end, words in zip(artists["amounts"], ends, told, strict=True):
        text.set_text(words)
        text.set_x(end + 0.03)


def _strip(name, tile, N):
    """Lower left corner, width and height of a tile of a tensor."""
    if name in LEFT:
        return LEFT[name], 1 - tile.stop / N, _width(name), (tile.stop - tile.start) / N
    return SCORES + tile.start / N, ABOVE[name], (tile.stop - tile.start) / N, THIN


def _corners(box):
    x, y, width, height = box
    return [(x, y), (x, y + height), (x + width, y + height), (x + width, y)]


def _shade(name, at, step):
    if step.place.get(name) == at:
        return to_rgba(COLORS[name])
    return to_rgba(COLORS[name], 0.25) if name not in RESULTS or (name, at) in step.written else to_rgba(style.PAPER)


def _cell(cell, now, step):
    if cell == now:
        return to_rgba(style.P)
    return to_rgba(style.P, 0.16 * times) if (times := step.rebuilt.count(cell)) else to_rgba(style.PAPER)


def _words(step, run):
    if not step.kind:
        return "Q, K, V, O, lse and dO are in slow memory;\nP is nowhere"
    i, j = step.tile[0] // run.Br, step.tile[-1] // run.Bc
    if step.kind == "rebuild":
        *uses, last = USES[step.kernel]
        return f"rebuild P({i}, {j}) = exp(S({i}, {j}) − lse({i})),\nuse it for {', '.join(uses)} and {last}"
    which = j if step.name in ABOVE else i
    if (step.kind, step.name, step.kernel) == ("load", "O", "program"):
        return f"load O({which}): first visit of these rows,\ndelta({which}) = rowsum(dO({which}) ∘ O({which}))"
    if (step.kind, step.name, step.kernel) == ("store", "dQ", "program"):
        return f"store dQ({which}), with what K({step.place['K'] // run.Bc}) adds to it"
    return f"{step.kind} {step.name}({which}){'' if step.kernel == 'program' else f',{chr(10)}in {step.kernel}'}"


def _progress(step, run):
    """What has been done by now, in a sentence's words."""
    words = _words(step, run).replace("\n", " ")
    return f"{words}. {len(step.rebuilt)} of {len(run.steps[-1].rebuilt)} tiles of P rebuilt"


def describe(state):
    run = _whole(state)
    step = run.steps[state.step]
    words = f"Backward pass of {run.N} tokens, tiles of {state.Br} × {state.Bc}"
    words += f"{', causal' if state.causal else ''}, step {state.step} of {count(state)}: "
    words += f"{_progress(step, run)}; {style.amount(step.moved)} moved"
    words += f", where a pass that keeps P moves {style.amount(run.other[0])}."
    for who, values in bills():
        told = ", ".join(f"{say(q, a)} and {say(q, b)}" for q, (a, b) in values.items())
        words += f" {who[0].upper()}{who[1:]}, standard and fused: {told}."
    return words


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


def replay(events, other, N, Br, Bc, state=Replayed()):
    """The same picture of the Triton kernels, for a head of N tokens.

    events: those of ``flashlab.kernels.portable.backward`` with tiles of Br x Bc, as its bill has them; other: those of
    ``recomputation.backward``, that the kernels are held against.
    """
    last = record(other)[-1]
    run = Run(record(retold(events)), N, Br, Bc, (last.moved, last.products))
    figure = SimpleNamespace(
        SIZE=(SIZE[0], SIZE[1] * ABOVE_TABLE),
        CONTROLS={"step": Scrub(lambda _: len(run.steps) - 1)},
        build=partial(build, who=("one loop, in all", "kernels, so far"), table=False),
        update=lambda artists, state: draw(artists, run, state.step),
        describe=lambda state: _say(run, state.step),
    )
    return controls.explore(figure, state)


def _say(run, at):
    step, (whole, products) = run.steps[at], run.other
    words = f"The kernels, step {at} of {len(run.steps) - 1}: {_progress(step, run)}; {style.amount(step.moved)} moved"
    words += f" and {step.products} products of two tiles, where one loop moves {style.amount(whole)}"
    return f"{words} and makes {products} products, in all."
