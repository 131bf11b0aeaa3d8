"""Attention's parts under the roof of a GPU, and what fusing them does: one mark slides up as the tile grows.

Kills two beliefs. First, that only the softmax waits for memory: in float16 at d = 64 the matrix products of standard
attention, each a kernel by itself, are left of the ridge, too, and no length of the text brings the three kernels
across it. Second, that fusing is enough: at d = 64, one kernel with tiles of 16 queries moves more bytes than three.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide
from figures.style import digits
from flashlab.machine import hardware
from flashlab.reference import roofline

PARTS = {"softmax": "softmax alone", "QKᵀ": "QKᵀ alone, and PV", "standard": "standard: all three"}
TILES = (16, 32, 64, 128, 256)
counted = cache(roofline.attention)  # its counts are the same for all cards, and a page has all cards


@dataclass(frozen=True)
class State:
    """One head: ``N`` queries and keys of dimension ``d``, in ``dtype``, on ``card`` (a name in ``hardware.CARDS``).

    ``step``: 0 before fusing, then one fused kernel with ever larger tiles of queries, at last with all of them.
    """

    step: int = 4
    card: str = "A100 40 GB"
    d: int = 64
    N: int = 1024
    dtype: str = "float16"


def tiles(N: int) -> list[int]:
    """Return the sizes of tiles of queries for the fused kernel. The last one is the length of the text."""
    return [Br for Br in TILES if Br < N] + [N]


def trace(state: State) -> dict:
    """Return the roof (None where the card's rate for the dtype is not known) and the marks under it.

    A mark: its intensity in FLOP/B, the FLOP/s that it can reach, and its share of the peak. Rates are per second.
    """
    card = hardware.CARDS[state.card]
    peak = getattr(card, state.dtype)
    standard = counted(state.N, state.d, state.dtype)

    def mark(name: str, work: roofline.Work) -> dict[str, Any]:
        reach = peak and roofline.reachable(work, peak, card.dram_rate)
        return {
            "name": name,
            "intensity": roofline.intensity(work),
            "nbytes": work.nbytes,
            "reach": reach,
            "share": reach and reach / peak,
        }

    return {
        "card": state.card,
        "dtype": state.dtype,
        "missing": None if peak else hardware.missing(card, state.dtype),
        "peak": peak,
        "slope": card.dram_rate,
        "ridge": peak and hardware.ridge(card, state.dtype),
        "parts": [mark(name, standard[part]) for part, name in PARTS.items()],
        "fused": [
            {
                "Br": Br,
                **mark(f"fused, tiles of {Br} queries", counted(state.N, state.d, state.dtype, Br)["fused"]),
            }
            for Br in tiles(state.N)
        ],
    }


def count(state: State) -> int:
    """Return the number of fused kernels."""
    return len(tiles(state.N))


def describe(state: State) -> str:
    """Say where the mark is that slides, and how far the card is used."""
    numbers = trace(state)
    now = numbers["fused"][state.step - 1] if state.step else numbers["parts"][-1]
    if why := numbers["missing"]:
        return f"No {state.dtype} rate for {state.card}: {why}. So this has no place: {now['name']}."
    side = "bytes" if now["intensity"] < numbers["ridge"] else "arithmetic"
    return (
        f"{state.card}, {state.dtype}, N = {state.N}, d = {state.d}; {now['name']}: {digits(now['intensity'], 3)} "
        f"FLOPs per byte, {now['share']:.1%} of the peak: it waits for {side}. The ridge is at {numbers['ridge']:.0f}."
    )


CONTROLS = {
    "step": Scrub(count, "fuse"),
    "card": Choose(tuple(hardware.CARDS)),
    "dtype": Choose(("float8", "float16", "float32")),
    "d": Slide((16, 32, 64, 128, 256)),
    "N": Slide((256, 512, 1024, 2048, 4096, 8192, 16384)),
}
explore = explorer(__name__)
