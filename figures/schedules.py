"""The tiles of a pass, dealt out to persistent programs: who computes which, in which order, and who waits at the end.

Kills two beliefs: that equal numbers of tiles are equal work (under a causal mask the program with the longest tiles
ends last, and all others wait for it), and that the order whose last program ends earliest is the best one (it has the
keys and values of most heads in use at once, and these do not fit into the L2 cache).

Tiles, their lengths and their owners come from ``kernels.hopper.schedule`` and ``hopper.rungs.persistent``, as the
kernels have them. Tiles are sixteen times as long as in the kernels, so that a picture has room for all. Time is
counted in blocks of keys: the beginning and end of a tile take none.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, line
from figures.style import digits, times
from flashlab.kernels import masks
from flashlab.kernels.hopper import schedule
from flashlab.kernels.hopper.rungs import persistent
from flashlab.kernels.packed import Texts
from flashlab.kernels.problem import Problem
from flashlab.machine.hardware import CARDS

CARD = CARDS["H200 SXM"]
HEADS, N, D = 8, 16384, 128
SIZE = 2048  # queries of a tile, and keys of a block
OFFSETS = (0, 9216, 13312, 16384)  # of the packed texts
ORDERS = ("dealt like cards", "longest first", "few heads at a time")
MASKS = ("causal", "packed texts", "no mask")
PROGRAMS = (5, 6, 7, 8, 9)
CODE = {
    ORDERS[0]: line(persistent.dealt, "range(program"),
    ORDERS[1]: line(schedule.assign, "heapq.heapreplace"),
    ORDERS[2]: line(schedule.ordered_tiles, "longest_first = -counts, group"),
}


@dataclass(frozen=True)
class State:
    """``step`` blocks of time have passed: by default as many as a schedule without idle programs would take."""

    step: int = 36
    order: str = ORDERS[0]
    mask: str = MASKS[0]
    programs: int = 8


@lru_cache(maxsize=8)
def problem(mask: str) -> Problem:
    """Return the call: a causal mask, causal inside packed texts, or none."""
    x = torch.empty(1, HEADS, N, D, dtype=torch.bfloat16, device="meta")  # only its shape counts
    causal = masks.causal()
    if mask == "packed texts":
        offsets = torch.tensor(OFFSETS)
        texts = Texts(offsets, offsets)
        return Problem.of(x, x, x, texts.apart(causal), 1.0, texts=texts)
    return Problem.of(x, x, x, causal if mask == "causal" else masks.full(), 1.0)


@lru_cache(maxsize=8)
def blocks(mask: str) -> np.ndarray:
    """Return how many blocks of keys each tile of a head meets, [Tr]."""
    if mask == "packed texts":
        return schedule.intervals_of_tiles(problem(mask), SIZE, SIZE)[0, :, 1]
    return schedule.blocks(np.arange(N // SIZE), SIZE, SIZE, problem(mask))


@lru_cache(maxsize=64)
def run(order: str, mask: str, programs: int) -> list[dict]:
    """Return the tiles in their order, each with its head, its place in the head, blocks, program and start."""
    work, Tr = blocks(mask), N // SIZE
    if order == ORDERS[2]:
        i, _, h, _ = schedule.ordered_tiles(problem(mask), SIZE, None if mask == "no mask" else work).T
    else:
        h, i = np.divmod(np.arange(HEADS * Tr), Tr)  # head after head
    if order == ORDERS[1]:
        longest = np.argsort(-work[i], kind="stable")
        h, i = h[longest], i[longest]
    if order == ORDERS[0]:
        owners = np.empty(len(i), int)
        for program, own in enumerate(persistent.dealt(len(i), programs)):
            owners[own] = program
    else:
        owners = schedule.assign(work[i].tolist(), programs)
    free = [0] * programs
    tiles = []
    for head, place, program in zip(h.tolist(), i.tolist(), owners.tolist(), strict=True):
        length = int(work[place])
        tiles.append({"head": head, "i": place, "blocks": length, "program": program, "start": free[program]})
        free[program] += length
    return tiles


def end(tiles: list[dict]) -> int:
    """Return the time at which the last program ends."""
    return max(tile["start"] + tile["blocks"] for tile in tiles)


def heads(tiles: list[dict], time: int) -> list[int]:
    """Return the heads whose tiles are computed in the block of time that begins now."""
    return sorted({tile["head"] for tile in tiles if tile["start"] <= time < tile["start"] + tile["blocks"]})


def _most(tiles: list[dict]) -> int:
    """Return the number of heads that are in use at once, at most."""
    return max(len(heads(tiles, time)) for time in range(end(tiles)))


@lru_cache(maxsize=64)
def _trace(order: str, mask: str, programs: int) -> dict[str, Any]:
    tiles = run(order, mask, programs)
    orders = {name: run(name, mask, programs) for name in ORDERS}
    return {
        "programs": programs,
        "tiles": tiles,
        "mean": float(HEADS * blocks(mask).sum() / programs),
        "end": end(tiles),
        "times": list(range(end(tiles) + 1)),
        "longest": max(map(end, orders.values())),
        "orders": [{"name": name, "end": end(it), "heads": _most(it)} for name, it in orders.items()],
        "order": order,
        "heads": [heads(tiles, time) for time in range(end(tiles) + 1)],
        "bytes": 2 * 2 * N * D,  # K and V of a head
        "cache": CARD.l2_bytes,
        "card": CARD.name,
        "code": CODE[order],
    }


def trace(state: State) -> dict:
    """Return the tiles in their order, the ends and heads of all orders, and which heads are in use at each time.

    ``mean``: the blocks per program if all have equally many, a lower bound of every order's end; ``longest``: the
    latest end; ``times``: the time of each step; ``heads``: those in use at each time.
    """
    return _trace(state.order, state.mask, state.programs)


def _idle(tiles: list[dict], programs: int, time: int) -> int:
    return programs - sum(tile["start"] <= time < tile["start"] + tile["blocks"] for tile in tiles)


def describe(state: State) -> str:
    """Say when the last program ends, the lower bound, and at this time the idle programs and the heads in use."""
    numbers, tiles = trace(state), run(state.order, state.mask, state.programs)
    idle, used = _idle(tiles, state.programs, state.step), len(numbers["heads"][state.step])
    order = state.order[0].upper() + state.order[1:]
    now = "all programs have ended"
    if used:
        who = f"{idle} of {state.programs} programs idle" if idle else f"all {state.programs} programs work"
        now = f"{who}, {times(used, 'head')} in use"
    return (
        f"{order}, {state.mask}: the last program ends at {numbers['end']}, and no order ends before "
        f"{digits(numbers['mean'], 3)}. At {state.step}: {now}."
    )


CONTROLS = {
    "step": Scrub(lambda state: end(run(state.order, state.mask, state.programs)), "time, in blocks"),
    "order": Choose(ORDERS),
    "mask": Choose(MASKS),
    "programs": Slide(PROGRAMS),
}
explore = explorer(__name__)
