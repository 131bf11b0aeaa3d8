"""How much each memory of a GPU holds, as areas, and how fast it hands it over, as streams. Both are to scale.

Kills two beliefs. First, that HBM is the fast memory: it is the slow one of the card, and its "high bandwidth" is high
beside other DRAM. Second, that a program has all of the "20 MB" of fast memory: a block of threads has at most the
memory of one SM, which is less than a pixel when the DRAM is in view.
"""

from dataclasses import dataclass

from figures.explore import explorer
from figures.figure import Choose, Scrub, Toggle
from flashlab.machine import hardware

DOUBLING = 8  # steps of the zoom that double the edge of a square
# Bytes in a square as high as the window: 1 TiB to 256 KiB.
WINDOWS = tuple(2 ** (40 - 2 * zoom / DOUBLING) for zoom in range(11 * DOUBLING + 1))
SHORT = ("regs", "smem", "L2", None, "CPU")  # short names of the levels; that of the DRAM is its kind
DRAM = 3  # the place of the DRAM among the levels


@dataclass(frozen=True)
class State:
    """``zoom``: ``DOUBLING`` steps halve the edge of the visible square; ``card``: a name in ``hardware.CARDS``;
    ``one_sm``: show the share of one streaming multiprocessor."""

    zoom: int = 2 * DOUBLING
    card: str = "A100 40 GB"
    one_sm: bool = False


def trace(state: State) -> dict:
    """Return the levels of the card, fastest first, what one block of threads can have, and the windows."""
    card = hardware.CARDS[state.card]
    levels = hardware.levels(card, one_sm=state.one_sm)
    dram = levels[DRAM]
    return {
        "card": state.card,
        "sms": 1 if state.one_sm else card.sms,
        "block": {"nbytes": card.per_sm.block_bytes, "part": dram.nbytes / card.per_sm.block_bytes},
        "windows": WINDOWS,
        "levels": [
            {
                "short": short or level.name,
                "name": level.name,
                "nbytes": level.nbytes,
                "part": level.nbytes and dram.nbytes / level.nbytes,
                "rate": level.rate,
                "times": level.rate and level.rate / dram.rate,
                "cycles": level.cycles,
                "ns": level.cycles and hardware.nanoseconds(card, level.cycles),
            }
            for short, level in zip(SHORT, levels, strict=True)
        ],
    }


def describe(state: State) -> str:
    """Say what fills the window, and what a program has of the fast memory."""
    numbers = trace(state)
    smem, dram = numbers["levels"][1], numbers["levels"][DRAM]
    window = WINDOWS[state.zoom]
    whose = "one SM" if state.one_sm else f"all {numbers['sms']} SMs"
    parts = [_share(level["nbytes"] / window) for level in (dram, smem)]
    return (
        f"{state.card}, full-height square: {_size(window)}. {dram['name']} is {parts[0]}, the shared memory and "
        f"L1 of {whose} {parts[1]}. A block of threads gets {_size(numbers['block']['nbytes'])}. "
        f"Shared memory is {smem['times']:.3g} times as fast as {dram['name']}."
    )


def _share(part: float) -> str:
    """Write a share of the square in words."""
    return f"{part:,.0f} squares" if part >= 10 else f"{part:.2g} squares" if part > 1 else f"{100 * part:.2g}% of it"


def _size(nbytes: float) -> str:
    """Return a size in binary units, which is what NVIDIA means by KB, MB and GB of memory."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes / 2**10:.0f} KiB"


CONTROLS = {
    "zoom": Scrub(lambda _: len(WINDOWS) - 1, "zoom", [f"{_size(window)} in view" for window in WINDOWS]),
    "card": Choose(tuple(hardware.CARDS)),
    "one_sm": Toggle("one SM's share"),
}
explore = explorer(__name__)
