"""Square tiles on a card, by their size: what a larger one saves, what it occupies, and where the card says no.

Kills the belief that the best tile is the largest one: up to some size the bytes decide, then arithmetic does, and
beyond another size nothing runs at all.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from figures.explore import explorer
from figures.figure import Caption, Choose, Scrub, Slide, Toggle
from figures.style import digits
from flashlab.machine.hardware import CARDS, KiB, stored
from flashlab.reference import block_size, tiling

N = 8192  # tokens
SIZES = tuple(range(16, 401, 16))


@dataclass(frozen=True)
class State:
    """Tiles of B x B on a card, B = SIZES[step]; ``registers``: S, O, m and l live there, not in shared memory."""

    step: int = SIZES.index(128)
    card: str = "A100 40 GB"
    d: int = 64
    dtype: str = "float16"
    registers: bool = False


def room(B: int, d: int, dtype: str, registers: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes by tile that must fit into shared memory, and those that must fit into registers."""
    tiles = block_size.working_set(B, B, d, dtype)
    in_registers = {name: size for name, size in tiles.items() if registers and name not in "QKV"}
    return {name: size for name, size in tiles.items() if name not in in_registers}, in_registers


@lru_cache(maxsize=256)
def _trace(name: str, d: int, dtype: str, registers: bool) -> dict[str, Any]:
    card = CARDS[name]
    limits = {"shared": card.per_sm.block_bytes, "registers": card.per_sm.register_bytes}
    has_rate = getattr(card, dtype) is not None
    sizes: list[dict] = []
    for B in SIZES:
        shared, in_registers = room(B, d, dtype, registers)
        sums = {"shared": sum(shared.values()), "registers": sum(in_registers.values())}
        clocks = block_size.clocks(card, N, d, B, dtype) if has_rate else None
        times = {
            "ratio": clocks and clocks.bytes / clocks.arithmetic,
            "shared": sums["shared"] / limits["shared"],
            "registers": sums["registers"] / limits["registers"] if registers else None,
        }
        sizes.append(
            {
                "B": B,
                "shared": list(map(list, shared.items())),
                "registers": list(map(list, in_registers.items())),
                "takes": {name: f"{nbytes / KiB:.4g}" for name, nbytes in sums.items()},
                "refused": _refused(sums, limits),
                "reads": -(-N // B),
                "moved": tiling.fa2_traffic(N, N, d, B, B, dtype=stored(dtype)).total(),
                "times": times,
            }
        )
    return {
        "card": name,
        "d": d,
        "dtype": dtype,
        "N": N,
        "limits": limits,
        "sizes": sizes,
        "fits": max((size["B"] for size in sizes if not size["refused"]), default=0),
        "enough": min((size["B"] for size in sizes if has_rate and size["times"]["ratio"] <= 1), default=0),
    }


def _refused(sums: dict[str, int], limits: dict[str, int]) -> str | None:
    if sums["shared"] > limits["shared"]:
        return block_size.refusal(sums["shared"], limits["shared"])
    if sums["registers"] > limits["registers"]:
        return "More than the register file holds: the rest would spill to slow memory."
    return None


def trace(state: State) -> dict:
    """Return for each size its tiles in bytes, the card's refusal, the bytes that it moves, and the curves.

    ``times``: the curves: the time of the bytes divided by that of arithmetic (None without a documented rate), and the
    bytes of the tiles divided by the size of their memory. ``fits``: the largest B that the card accepts; ``enough``:
    the smallest B at which arithmetic decides; 0 if there is none.
    """
    return _trace(state.card, state.d, state.dtype, state.registers)


def describe(state: State) -> Caption:
    """Say how much memory the tiles take, whether they fit, and how the time of bytes compares with arithmetic's."""
    numbers = trace(state)
    size = numbers["sizes"][state.step]
    words = f"[{size['B']} × {size['B']}](step) on {_article(state.card)}, [d = {state.d}](d): "
    words += size["refused"] or f"{size['takes']['shared']} of {numbers['limits']['shared'] // KiB} KiB, it fits."
    ratio = size["times"]["ratio"]
    slow = f"bytes take {digits(ratio, 3)} × arithmetic" if ratio else f"no {state.dtype} rate documented"
    return Caption(f"{words} K and V are read {size['reads']} times: {slow}.")


def _article(card: str) -> str:
    return f"{'an' if card[0] in 'AHLR' else 'a'} {card}"


CONTROLS = {
    "step": Scrub(lambda state: len(SIZES) - 1, "B", [f"B = {B}" for B in SIZES]),
    "card": Choose(tuple(CARDS)),
    "d": Slide((32, 64, 128, 256)),
    "dtype": Choose(("float16", "float32")),
    "registers": Toggle("S, O, m, l in registers"),
}
explore = explorer(__name__)
