"""The bounds of the two loops: ``bounds``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels import DEVICE, tl, triton


class Loops(NamedTuple):
    """The two loops of all programs: the tiles that they visit, and where they end."""

    visits: np.ndarray  # [Tr, Tc] 1 for a tile met in loop 1, 2 in loop 2, 0 for none
    seen: np.ndarray  # [Tr] keys that a tile's last row sees


@triton.jit
def causal_bounds(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least
    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)  # the last row sees most
    return unmasked, seen


@triton.jit
def _visit(kinds, ends, Nq, Nk, Tc, bounds: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr):
    """Run both loops without their work: add 1 to a tile met in loop 1, 2 in loop 2; strays count in the margins."""
    i = tl.program_id(0)
    unmasked, seen = bounds(i, Nq, Nk, Br, Bc)
    tl.store(ends + i, seen)
    for start in range(0, unmasked, Bc):
        at = kinds + i * (Tc + 2) + tl.where(start < 0, 0, tl.where(start < Nk, 1 + start // Bc, 1 + Tc))
        tl.store(at, tl.load(at) + 1)
    for start in range(unmasked, seen, Bc):
        at = kinds + i * (Tc + 2) + tl.where(start < 0, 0, tl.where(start < Nk, 1 + start // Bc, 1 + Tc))
        tl.store(at, tl.load(at) + 2)


def _launch_bounds(function, Nq, Nk, Br, Bc):
    Tr, Tc = triton.cdiv(Nq, Br), triton.cdiv(Nk, Bc)
    kinds = torch.zeros(Tr, Tc + 2, dtype=torch.int32, device=DEVICE)  # [Tr, Tc + 2]
    ends = torch.zeros(Tr, dtype=torch.int32, device=DEVICE)  # [Tr]
    _visit[(Tr,)](kinds, ends, Nq, Nk, Tc, attempted(function), Br, Bc)
    for column, place in ((0, "before the first key"), (-1, "past the last key")):
        if kinds[:, column].any():
            raise IndexError(f"a loop visited a tile {place}")
    return Loops(kinds[:, 1:-1].cpu().numpy(), ends.clamp(min=0).cpu().numpy())  # a loop to less than 0 is empty


def both_loops(Nq, Nk, Br, Bc):
    """Return what the two loops should do."""
    last = np.minimum(np.arange(Br, Nq + Br, Br), Nq)  # [Tr] one past each tile's last row
    return Loops(kinds_of_tiles(Nq, Nk, Br, Bc), np.maximum(last + Nk - Nq, 0))


def kinds_of_tiles(Nq, Nk, Br, Bc):
    """Return 0 for a tile that no query sees, 1 for one that all of its rows see in full, 2 for the others [Tr, Tc]."""
    i, j = np.ogrid[: -(-Nq // Br) * Br, : -(-Nk // Bc) * Bc]
    sees = (j <= i + Nk - Nq) & (j < Nk)  # [Tr * Br, Tc * Bc]
    cut = sees.reshape(len(i) // Br, Br, -1, Bc)
    real = (sees & (i < Nq)).reshape(cut.shape)
    return np.where(cut.all((1, 3)), 1, np.where(real.any((1, 3)), 2, 0))


def _bounds_cases():
    cases = [
        ("four queries and keys, tiles of 2 × 2", (4, 4, 2, 2)),
        ("tiles taller than wide", (8, 8, 4, 2)),
        ("tiles wider than tall", (8, 8, 2, 4)),
        ("more keys than queries: the last query sees the last key", (4, 9, 2, 2)),
        ("lengths that no tile divides", (5, 5, 4, 2)),
        ("fewer keys than queries: whole tiles of queries see nothing", (9, 3, 4, 2)),
        ("one query: the newest word", (1, 9, 2, 4)),
        *_lengths_and_tiles(),
    ]
    return [Case(name, sizes) for name, sizes in cases]


def _lengths_and_tiles():
    some = [(1, 1), (8, 8), (7, 9), (9, 7), (8, 9), (6, 8), (3, 13), (13, 3)]
    for Nq, Nk in some + [(Nq, Nk) for Nq in (3, 8) for Nk in range(1, 12)]:  # every remainder of both
        for Br, Bc in ((2, 4), (4, 2), (1, 2), (8, 2), (2, 8), (4, 4)):
            yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}", (Nq, Nk, Br, Bc)
    for Nq, Nk, Br, Bc in ((100, 30, 16, 8), (30, 100, 8, 16), (128, 128, 64, 32)):
        yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}", (Nq, Nk, Br, Bc)
    yield "Nq = 3, Nk = 70001, tiles of 2 × 1024", (3, 70_001, 2, 1024)
    yield "Nq = 70001, Nk = 3, tiles of 1024 × 512", (70_001, 3, 1024, 512)


_cut_at_0 = edited(causal_bounds, "return unmasked, seen", "return tl.maximum(unmasked, 0), seen")

bounds = Exercise(
    reference=causal_bounds,
    launch=_launch_bounds,
    exact=both_loops,
    cases=_bounds_cases,
    level=2,
    minutes=15,
    hints=(
        "Query r sees the keys j <= r + Nk - Nq. Which row of the tile sees least, and which sees most?",
        "Row i * Br sees i * Br + Nk - Nq + 1 keys: all whole tiles among them need no mask. The last row, "
        "(i + 1) * Br - 1, sees (i + 1) * Br + Nk - Nq, unless there are fewer.",
        "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc; "
        "seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk).",
    ),
    mistakes=(
        Mistake("off by one: row i * Br sees key i * Br + Nk − Nq too, so it sees one key more.",
                "i * Br + Nk - Nq + 1", "i * Br + Nk - Nq"),
        Mistake("one key too many: row i * Br sees i * Br + Nk − Nq + 1 keys.",
                "i * Br + Nk - Nq + 1", "i * Br + Nk - Nq + 2"),
        Mistake("the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.",
                "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least\n"
                "    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)",
                "unmasked, seen = tl.maximum(i * Br + Nq - Nk + 1, 0) // Bc * Bc, "
                "tl.minimum((i + 1) * Br + Nq - Nk, Nk)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least\n"
                "    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)",
                "shift = tl.maximum(Nk - Nq, 0)\n"
                "    unmasked, seen = (i * Br + shift + 1) // Bc * Bc, tl.minimum((i + 1) * Br + shift, Nk)"),
        Mistake("the last row of the tile decides what is unmasked; it must be the first one.",
                "i * Br + Nk - Nq + 1", "(i + 1) * Br + Nk - Nq"),
        Mistake("the first row decides where to stop; it must be the last one, which sees most.",
                "(i + 1) * Br + Nk - Nq, Nk", "i * Br + Nk - Nq + 1, Nk"),
        Mistake("off by one: the last row is (i + 1) * Br − 1 and sees (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq, Nk", "(i + 1) * Br + Nk - Nq + 1, Nk"),
        Mistake("aligned at the upper left: with Nq ≠ Nk add Nk − Nq.",
                "(i + 1) * Br + Nk - Nq, Nk", "(i + 1) * Br, Nk"),
        Mistake("the first loop ended within a tile: round down to whole tiles.", " // Bc * Bc", ""),
        Mistake("a negative bound: where no row sees anything, both loops are empty.",
                "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc", "(i * Br + Nk - Nq + 1) // Bc * Bc"),
        Mistake("the last row may see up to Nk keys and no more: there are no others.",
                "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq"),
        Mistake("nothing is skipped: tiles that no row sees need not be visited.",
                "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "Nk"),
        Mistake(
            "the bounds were returned in the wrong order: unmasked first, then seen.",
            "return unmasked, seen",
            "return seen, unmasked",
        ),
        Mistake(
            "the last key was dropped: seen is one more than the last key that the tile sees.",
            "(i + 1) * Br + Nk - Nq, Nk",
            "(i + 1) * Br + Nk - Nq - 1, Nk",
        ),
        Mistake(
            "aligned at the upper left, in both bounds: with Nq ≠ Nk add Nk − Nq.",
            "unmasked = tl.maximum(",
            "Nq = Nk + 0 * Nq\n    unmasked = tl.maximum(",
        ),
        Mistake("aligned at the upper left, in the first bound: with Nq ≠ Nk add Nk − Nq.",
                "i * Br + Nk - Nq + 1", "i * Br + 1"),
        Mistake("only the last tile was masked: where Br > Bc the diagonal crosses several.",
                "return unmasked, seen", "return tl.maximum((seen - 1) // Bc * Bc, 0), seen"),
        Mistake("one tile too many was masked: round down once, and subtract nothing.",
                "// Bc * Bc", "// Bc * Bc - Bc", of=_cut_at_0),
        Mistake("seen was rounded down to whole tiles: the last row sees part of the last tile, too.",
                "return unmasked, seen", "return unmasked, seen // Bc * Bc"),
        Mistake(
            "rounded up: the tile that the first row sees in part needs the mask.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "(tl.maximum(i * Br + Nk - Nq + 1, 0) + Bc - 1) // Bc * Bc",
        ),
        Mistake(
            "tiles were counted: the bounds are keys, so multiply by Bc.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc",
        ),
        Mistake("Br stands where Bc belongs: tiles of keys have Bc.", "// Bc * Bc", "// Br * Br"),
        Mistake("seen was rounded up to whole tiles: the last row need not see all keys of the last tile.",
                "    return unmasked, seen", "    return unmasked, (seen + Bc - 1) // Bc * Bc"),
        Mistake(
            "every tile was masked: those that the first row sees in full need no mask.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "0 * i",
        ),
    ),
)  # fmt: skip
