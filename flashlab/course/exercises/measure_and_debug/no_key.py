"""The bounds of the loop over tiles without a mask, also where no row sees a key: ``fix_4``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.course.exercises.measure_and_debug.untouched import changed
from flashlab.grading.exercise import Case, Exercise, Mistake, edited
from flashlab.kernels import DEVICE, tl, triton


class Tiles(NamedTuple):
    """The tiles that a loop visits."""

    tiles: int
    first_key: int  # of the first tile; 0 if there is no tile


@triton.jit
def whole_tiles(begin, whole, end, Bc: tl.constexpr):
    first = tl.minimum(tl.cdiv(begin, Bc) * Bc, tl.maximum(end, 0))
    last = whole // Bc * Bc
    return first, last


broken = edited(whole_tiles, "tl.maximum(end, 0)", "end")


@triton.jit
def _store_ends(ends, begin, whole, end, loop: tl.constexpr, Bc: tl.constexpr):
    first, last = loop(begin, whole, end, Bc)
    tl.store(ends, first)
    tl.store(ends + 1, last)


def _launch(function, begin, whole, end, Bc):
    ends = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    _store_ends[1,](ends, begin, whole, end, changed(function, broken), Bc)
    return _tiles_at(np.arange(*ends.tolist(), Bc))


def _tiles(begin, whole, end, Bc):
    """Return the tiles whose keys all lie in begin .. whole."""
    starts = np.arange(0, max(whole, 0), Bc)
    return _tiles_at(starts[(starts >= begin) & (starts + Bc <= whole)])


def _tiles_at(starts):
    return Tiles(len(starts), int(starts[0]) if len(starts) else 0)


def _ends(start, Br, Nq, Nk, left):
    """Return begin, whole, end: all rows start .. start + Br see keys begin .. whole, none sees keys from end on."""
    diagonal = start + Nk - Nq  # the last key of the first row
    return max(diagonal + Br - 1 - left, 0), min(diagonal + 1, Nk), min(diagonal + Br, Nk)


def _draw(rng, size):
    Nq, Nk = rng.integers(1, 40 * size + 1, 2)
    Br, Bc = 2 ** rng.integers(4, 8, 2)
    start = Br * rng.integers(0, -(-Nq // Br))
    ends = _ends(start, Br, Nq, Nk, left=rng.choice([20, 300]))
    return tuple(map(int, (*ends, Bc)))


fix_4 = Exercise(
    reference=whole_tiles,
    launch=_launch,
    exact=_tiles,
    edges=(
        Case("64 rows that see no key, tiles of 128 keys", (0, -97, -34, 128)),
        Case("64 rows that see no key, 200 rows before the first that does", (0, -200, -137, 128)),
        Case("rows of which the last ones see keys", (0, -33, 30, 128)),
        Case("no window to the left: the tiles from the first key on", (0, 200, 263, 64)),
        Case("a window: the tiles between its two ends", (70, 300, 363, 64)),
    ),
    draw=_draw,
    draws=40,
    level=2,
    minutes=5,
    mistakes=(
        Mistake("let the loop start before the first key.", "Where no row sees a key, end is negative: bound it by 0.",
                "tl.maximum(end, 0)", "tl.where(end < 0, end, end)"),
        Mistake("bounded the other end.", "whole was rounded up to 0, so a bound changes nothing: the loop starts at a "
                "negative `end`. Bound that one.",
                "tl.maximum(end, 0))\n    last = whole", "end)\n    last = tl.maximum(whole, 0)"),
        Mistake("left out the last tile that all rows see.", "Where `whole` is positive, whole // Bc is rounded "
                "down already.", "whole // Bc", "(whole - Bc + 1) // Bc"),
        Mistake("let the loop start at key 0.", "With a window the first tiles need the mask: keep begin.",
                "tl.minimum(tl.cdiv(begin, Bc) * Bc, tl.maximum(end, 0))", "0"),
        Mistake("left out tiles that all rows see.", "The loop starts at the first tile after begin. end only bounds "
                "it.", "tl.minimum(tl.cdiv", "tl.maximum(tl.cdiv"),
        Mistake("rounded whole up.", "Not all rows see the last keys of that tile. Bound a negative `end` by 0.",
                "tl.maximum(end, 0))\n    last = whole // Bc", "end)\n    last = tl.cdiv(whole, Bc)"),
    ),
    hints=(
        "For a tile of queries that sees no key the loop must be empty, whichever way -97 / 128 is rounded.",
        "The loop may start at a key that exists, and nowhere else. Which of the three arguments can be negative?",
        "tl.maximum bounds a number from below. The first key has the number 0.",
    ),
)  # fmt: skip
