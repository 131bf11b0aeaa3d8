"""Which program touches which elements, step by step, in a recorded run of a real kernel.

Kills the belief that a kernel is a function that is called once on whole tensors: it runs many times, each run knows
only its number, works out its own block from it, and masks what lies behind the end.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from figures import style
from figures.figure import Choose, Scrub, Slide, explorer
from flashlab.kernels import first_triton_kernel
from flashlab.kernels.count import count as count_bytes

ROWS = 4  # of the softmax's matrix
WIDEST = 20  # columns on the picture, some of them behind the end

SIZE = (9.0, 3.8)  # inches


@dataclass(frozen=True)
class State:
    """``step`` loads and stores of the kernel have happened, on rows of ``N`` elements, in blocks of ``block``."""

    step: int = 11
    kernel: str = "add"
    N: int = 13
    block: int = 4


class Access(NamedTuple):
    program: int
    kind: str  # "load" or "store"
    tensor: str
    rows: slice
    columns: slice
    loaded: int  # bytes up to and with this access
    stored: int


@lru_cache(maxsize=128)
def _accesses(kernel, N, block):
    if kernel == "add":
        memory = count_bytes(first_triton_kernel.add, torch.zeros(N), torch.zeros(N), block=block)
    elif kernel == "softmax":
        memory = count_bytes(first_triton_kernel.softmax, torch.zeros(ROWS, N))
    else:
        memory = count_bytes(first_triton_kernel.softmax_online, torch.zeros(ROWS, N), rows=2, block=block)
    accesses, program, loaded, stored = [], 0, 0, 0
    for event in memory.events:
        if event.kind == "kernel":
            program = event.region[0]
            continue
        loaded += event.nbytes * (event.kind == "load")
        stored += event.nbytes * (event.kind == "store")
        *rows, columns = event.region
        rows = rows[0] if rows else slice(0, 1)
        accesses.append(Access(program, event.kind, event.name, rows, columns, loaded, stored))
    return accesses


def trace(state):
    """All loads and stores of the kernel in the order in which the interpreter ran them."""
    return _accesses(state.kernel, state.N, state.block)


def count(state):
    return len(trace(state))


def width(state):
    """Columns that one block spans: the softmax takes a whole row, rounded up to a power of two."""
    return 1 << (state.N - 1).bit_length() if state.kernel == "softmax" else state.block


def build(fig):
    fig.subplots_adjust(0.04, 0.02, 0.7, 0.96, hspace=0.15)
    artists = {"maps": [], "blocks": [], "names": [], "ends": []}
    for ax in fig.subplots(3, 1):
        style.quiet(ax).set(xlim=(-0.7, WIDEST - 0.4))
        edges = np.arange(WIDEST + 1) - 0.5, np.arange(ROWS + 1) - 0.5
        artists["maps"].append(ax.pcolormesh(*edges, np.ones((ROWS, WIDEST, 3)), ec=style.PAPER, lw=1.5))
        artists["blocks"].append(ax.add_patch(Rectangle((0, 0), 1, 1, fill=False, lw=2.4, ec=style.INK)))
        artists["ends"].append(ax.vlines([0], -0.7, ROWS - 0.3, lw=1.2, ls=":", color=style.INK))
        artists["names"].append(ax.text(-0.8, 0, "", ha="right", va="center", fontsize=12, color=style.INK))
    words = {"ha": "left", "va": "top", "transform": fig.transFigure, **style.FONT}
    artists["program"] = fig.text(0.72, 0.92, "", fontsize=11, linespacing=1.6, **words)
    artists["bytes"] = fig.text(0.72, 0.5, "", fontsize=11, linespacing=1.6, **words)
    return artists


def update(artists, state):
    now = trace(state)[state.step - 1] if state.step else None
    names = ("x", "y", "z") if state.kernel == "add" else ("x", "y")
    parts = zip(artists["maps"], artists["blocks"], artists["names"], artists["ends"], strict=True)
    for at, (cells, block, name, end) in enumerate(parts):
        tensor = names[at] if at < len(names) else None
        for artist in (cells, name, end):
            artist.set_visible(tensor is not None)
        block.set_visible(tensor is not None and now is not None and now.tensor == tensor)
        cells.axes.set_ylim(_height(state) + 0.3, -1.3)
        if tensor is None:
            continue
        cells.set_array(_colors(state, tensor))
        name.set(text=tensor, y=(_height(state) - 1) / 2)
        end.set_segments([[(state.N - 0.5, -0.9), (state.N - 0.5, _height(state) - 0.1)]])
        if now is not None:
            block.set(x=now.columns.start - 0.5, y=now.rows.start - 0.5)
            block.set(width=width(state), height=now.rows.stop - now.rows.start)
    artists["program"].set_text(_words(state, now))
    artists["bytes"].set_text(_bytes(now))


def _height(state):
    return 1 if state.kernel == "add" else ROWS


def _colors(state, tensor):
    """Cells of one tensor: pale, tinted once touched, full while live; behind the end they are nobody's."""
    cells = np.ones((ROWS, WIDEST, 3))
    cells[: _height(state), : state.N] = to_rgb(style.PALE)
    for at, access in enumerate(trace(state)[: state.step], 1):
        if access.tensor == tensor:
            color = np.array(to_rgb(style.Q if access.kind == "load" else style.O))
            cells[access.rows, access.columns] = color if at == state.step else 0.45 * color + 0.55
    return cells


def _words(state, now):
    if now is None:
        return "nothing has run yet"
    first, last, w = now.columns.start, now.columns.start + width(state) - 1, width(state)
    inside = now.columns.stop - first
    masked = f"\n{w - inside} of {w} masked" if inside < w else f"\nall {w} inside"
    verb = "loads from" if now.kind == "load" else "stores to"
    return f"program {now.program} {verb} {now.tensor}\ncolumns {first} … {last}{masked}"


def _bytes(now):
    loaded, stored = (now.loaded, now.stored) if now else (0, 0)
    return f"loaded  {loaded} B\nstored  {stored} B"


def describe(state):
    now = trace(state)[state.step - 1] if state.step else None
    words = f"{state.kernel}, N = {state.N}, step {state.step} of {count(state)}: "
    return words + f"{_words(state, now)}; {_bytes(now)}".replace("\n", ", ").replace("  ", " ") + "."


CONTROLS = {
    "step": Scrub(count),
    "kernel": Choose(("add", "softmax", "online softmax")),
    "N": Slide(range(1, 17)),
    "block": Slide((1, 2, 4, 8)),
}

explore = explorer(__name__)
