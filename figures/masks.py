"""A mask as a schedule: which tiles are skipped, which are cut by its edge, which are whole, and what the loop moves.

Kills two beliefs: that a mask is a matrix that is laid over finished scores (it decides which tiles are loaded at all),
and that work falls with the number of visible pairs (tiles at the edge are computed whole).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide
from flashlab.machine.memory import Memory, replay
from flashlab.reference import masks, tiling
from flashlab.reference.rules import Rules

NK, D = 128, 32  # keys, and the head dimension
KINDS = {
    "sliding window": lambda size: masks.window(size - 1),
    "documents": lambda size: masks.documents(np.arange(NK) // size) & masks.causal(),
    "prefix": masks.prefix,
    "window and 4 sinks": lambda size: (masks.window(size - 1) | masks.sinks(4)) & masks.causal(),
    "padding": masks.padding,
}


@dataclass(frozen=True)
class State:
    """Nq queries, 128 keys, tiles of B x B; ``size``: keys of the window, the prefix, a document or the text."""

    step: int = 9
    mask: str = "sliding window"
    size: int = 48
    Nq: int = 128
    B: int = 16


@lru_cache(maxsize=128)
def _trace(name: str, size: int, Nq: int, B: int) -> dict[str, Any]:
    mask, shape = KINDS[name](size), (Nq, NK)
    kinds, moved, full = masks.schedule(mask, shape, B, B), _moved(Nq, B, mask), _moved(Nq, B, masks.full())
    dense, tiles = mask.dense(shape), []
    for (i, j), nbytes in moved["tiles"]:
        pairs = dense[i * B : (i + 1) * B, j * B : (j + 1) * B].sum()
        tiles.append({"i": i, "j": j, "whole": bool(kinds[i, j] == masks.WHOLE), "pairs": int(pairs), "moved": nbytes})
    return {
        "Nq": Nq,
        "Nk": NK,
        "B": B,
        "tiles": tiles,
        "spans": [_spans(row) for row in dense],
        "pairs": masks.pairs(mask, shape),
        "computed": len(tiles) * B * B,
        "skipped": int((kinds == masks.SKIPPED).sum()),
        "cut": int((kinds == masks.CUT).sum()),
        "moved": moved["total"],
        "full": full["total"],
    }


def _moved(Nq: int, B: int, mask: masks.Mask) -> dict[str, Any]:
    """Run the tile loop, and return its tiles in order with the bytes moved up to each, and all its bytes."""
    memory = Memory()
    Q, K = np.zeros((Nq, D), np.float32), np.zeros((NK, D), np.float32)
    tiling.fa2_forward(Q, K, K, B, B, Rules(mask=mask), memory=memory)
    tiles = [
        ((now.places["Q"][0][0] // B, now.place[0][0] // B), now.moved)
        for now in replay(memory.events)
        if (now.kind, now.name) == ("load", "V")
    ]
    return {"tiles": tiles, "total": memory.moved}


def _spans(row: np.ndarray) -> list[list[int]]:
    """Return the runs of visible keys of one query, as (start, stop)."""
    ends = np.flatnonzero(np.diff(np.r_[0, row.astype(int), 0]))
    return ends.reshape(-1, 2).tolist()


def trace(state: State) -> dict:
    """Return the tiles in the order of the loop, the visible keys of each query, and pairs, tiles and bytes in all."""
    return _trace(state.mask, state.size, state.Nq, state.B)


def describe(state: State) -> str:
    """Say how many pairs are visible, how many tiles that takes, and what has been moved."""
    numbers = trace(state)
    done = numbers["tiles"][: state.step]
    moved = done[-1]["moved"] if 0 < state.step < len(numbers["tiles"]) else numbers["moved"] if done else 0
    share = numbers["pairs"] / numbers["computed"] if numbers["tiles"] else 0
    visits = len(numbers["tiles"])
    return (
        f"{numbers['pairs']:,} of {state.Nq * NK:,} pairs are visible. The loop visits {visits} tiles, of which "
        f"{numbers['cut']} are cut, and skips {numbers['skipped']}. Useful share: {share:.3f}. "
        f"After tile {state.step}: {style.amount(moved)} of {style.amount(numbers['moved'])}."
    )


CONTROLS = {
    "step": Scrub(lambda state: len(trace(state)["tiles"]), "tile"),
    "mask": Choose(tuple(KINDS)),
    "size": Slide((16, 32, 48, 64, 100, 128), "its size"),
    "Nq": Slide((40, 64, 128), "queries"),
    "B": Slide((8, 16, 32), "tiles of B × B"),
}
explore = explorer(__name__)
