"""The bounds of the two loops: ``bounds``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise, Mistake
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
    """Run both loops without their work: add 1 to a tile of loop 1, 2 to one of loop 2; margins count tiles outside."""
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
    cut = sees.reshape(len(i) // Br, Br, -1, Bc)  # [Tr, Br, Tc, Bc]
    real = (sees & (i < Nq)).reshape(cut.shape)  # [Tr, Br, Tc, Bc]
    return np.where(cut.all((1, 3)), 1, np.where(real.any((1, 3)), 2, 0))


def _draw(rng, size):
    """Draw lengths of up to ``size`` tiles, and tiles of any size: Nq, Nk, Br, Bc."""
    Br, Bc = (2 ** int(rng.integers(0, 6)) for _ in range(2))
    return *(int(rng.integers(1, size * B + 1)) for B in (Br, Bc)), Br, Bc


bounds = Exercise(
    reference=causal_bounds,
    launch=_launch_bounds,
    exact=both_loops,
    edges=(
        Case("eight queries and keys, tiles of 4 × 4", (8, 8, 4, 4)),
        Case("tiles taller than wide", (8, 8, 4, 2)),
        Case("more keys than queries: the last query sees the last key", (4, 9, 2, 2)),
        Case("fewer keys than queries: whole tiles of queries see nothing", (9, 3, 4, 2)),
    ),
    draw=_draw,
    draws=80,
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
        Mistake("left out the last key that the first row sees.",
                "Row i * Br sees key i * Br + Nk − Nq, too: one key more.", "i * Br + Nk - Nq + 1", "i * Br + Nk - Nq"),
        Mistake("took the last row for the first bound.", "Keys need no mask where the first row, too, sees them.",
                "i * Br + Nk - Nq + 1", "(i + 1) * Br + Nk - Nq"),
        Mistake("took the first row for the second bound.", "The last row sees most: stop after its keys.",
                "(i + 1) * Br + Nk - Nq, Nk", "i * Br + Nk - Nq + 1, Nk"),
        Mistake("let query r see the keys j ≤ r.", "It sees the keys j ≤ r + Nk − Nq: add Nk − Nq in both bounds.",
                "unmasked = tl.maximum(", "Nq = Nk + 0 * Nq\n    unmasked = tl.maximum("),
        Mistake("let the first loop end within a tile.", "Round its bound down to whole tiles.", " // Bc * Bc", ""),
        Mistake("returned a first bound below 0.", "Where the first row sees no key, it is 0.",
                "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc", "(i * Br + Nk - Nq + 1) // Bc * Bc"),
    ),
)  # fmt: skip
