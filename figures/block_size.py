"""Square tiles on a card: what a larger one saves, what it occupies, and where the card says no.

Kills the belief that the best tile is the largest one: up to some size the bytes decide, then arithmetic does, and
beyond another size nothing runs at all.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from figures import style
from figures.figure import Choose, Slide, Toggle, explorer
from flashlab.machine.hardware import CARDS, KiB
from flashlab.reference import block_size

N = 8192  # tokens
SIZES = tuple(range(16, 401, 16))
ROOF = 320 * KiB  # top of the lower picture
NAMES = {"Q": "Q", "K": "K", "V": "V", "S_ij": "S", "O_i": "O", "m_i": "m", "l_i": "l"}

SIZE = (8.8, 5.6)  # inches


@dataclass(frozen=True)
class State:
    """Tiles of B x B on a card; ``registers``: S, O, m and l live in registers, not in shared memory."""

    B: int = 128
    card: str = "A100 40 GB"
    d: int = 64
    dtype: str = "float16"
    registers: bool = False


def room(state, B):
    """Bytes by tile that must fit into shared memory, and those that must fit into registers."""
    tiles = block_size.working_set(B, B, state.d, state.dtype)
    kept = {name: size for name, size in tiles.items() if state.registers and name not in "QKV"}
    return {name: size for name, size in tiles.items() if name not in kept}, kept


def trace(state):
    """Over SIZES: bytes in (shared memory, registers), and the time of the bytes in times of arithmetic (or None).

    Then the card's limits of both, the largest size that fits, and the first at which arithmetic decides (0 if none).
    """
    return _trace(state.card, state.d, state.dtype, state.registers)


@lru_cache(maxsize=256)
def _trace(name, d, dtype, registers):
    card = CARDS[name]
    state = State(card=name, d=d, dtype=dtype, registers=registers)
    rooms = [tuple(sum(tiles.values()) for tiles in room(state, B)) for B in SIZES]
    limits = card.per_sm.block_bytes, card.per_sm.register_bytes
    fits = max((B for B, size in zip(SIZES, rooms, strict=True) if _fit(size, limits)), default=0)
    if getattr(card, dtype) is None:
        return rooms, None, limits, fits, 0
    clocks = [block_size.clocks(card, N, d, B, dtype) for B in SIZES]
    ratios = [clock.bytes / clock.arithmetic for clock in clocks]
    enough = [B for B, ratio in zip(SIZES, ratios, strict=True) if ratio <= 1]
    return rooms, ratios, limits, fits, min(enough, default=0)


def _fit(sizes, limits):
    return all(size <= limit for size, limit in zip(sizes, limits, strict=True))


def build(fig):
    places = {"left": 0.1, "right": 0.97, "top": 0.94, "bottom": 0.23, "hspace": 0.3}
    time, size = fig.subplots(2, 1, sharex=True, gridspec_kw=places)
    for ax in (time, size):
        style.quiet(ax, x=True, y=True)
    time.set(yscale="log", ylim=(0.3, 30), yticks=[0.5, 1, 2, 5, 10, 20], yticklabels=["½", 1, 2, 5, 10, 20])
    time.minorticks_off()
    time.tick_params(labelbottom=False)
    time.set_title("time that the bytes take (arithmetic takes 1)", loc="left", fontsize=10.5, color=style.INK)
    time.axhline(1, color=style.STANDARD, lw=1.5)
    time.axhspan(0.3, 1, color=style.PALE, alpha=0.4, lw=0)
    time.text(14, 0.5, "arithmetic decides", va="center", fontsize=9, color=style.INK)
    size.set(xlim=(10, 400), ylim=(0, ROOF / KiB), xticks=(16, *range(64, 401, 64)))
    size.set_title("in shared memory, KiB for each block of threads", loc="left", fontsize=10.5, color=style.INK)
    size.set_xlabel("B, rows and columns of a tile", color=style.INK)
    small = {"fontsize": 9.5, "color": style.INK}
    return {
        "sweet": [ax.axvspan(0, 0, color=style.K, alpha=0.25, lw=0, zorder=0) for ax in (time, size)],
        "bytes": time.plot([], [], color=style.SLOW, lw=2.5)[0],
        "room": size.plot([], [], color=style.FAST, lw=2.5)[0],
        "over": size.axhspan(0, 1, color=style.FLASH, alpha=0.12, lw=0),
        "limit": size.axhline(0, color=style.FLASH, lw=1.5),
        "limit_name": size.text(14, 0, "", va="bottom", **small),
        "here": [ax.plot([], [], "o", ms=8, mec=style.PAPER)[0] for ax in (time, size)],
        "trips": time.text(1, 1.03, "", ha="right", va="bottom", transform=time.transAxes, **small),
        "name": time.text(0, 0.97, "sweet spot", ha="center", va="top", transform=time.get_xaxis_transform(), **small),
        "bill": fig.text(0.1, 0.1, "", fontfamily="DejaVu Sans", **small),
        "verdict": fig.text(0.1, 0.075, "", va="top", fontfamily="DejaVu Sans", fontsize=9.5),
    }


def update(artists, state):
    rooms, ratios, (limit, _), fits, enough = trace(state)
    at = SIZES.index(state.B)
    refused = state.B > fits
    artists["bytes"].set_data(SIZES if ratios else [], ratios or [])
    artists["room"].set_data(SIZES, [shared / KiB for shared, _ in rooms])
    artists["over"].set(y=limit / KiB, height=(ROOF - limit) / KiB)
    artists["limit"].set_ydata([limit / KiB] * 2)
    artists["limit_name"].set(y=limit / KiB, text=f" {state.card}: {limit // KiB} KiB")
    low = enough if 0 < enough <= fits else fits
    for span in artists["sweet"]:
        span.set(x=low - 8, width=fits - low + 16, visible=fits > 0)
    artists["name"].set(x=(low + fits) / 2, visible=fits > 0)
    heights = (ratios[at] if ratios else np.nan, min(rooms[at][0], 0.985 * ROOF) / KiB)
    for dot, height in zip(artists["here"], heights, strict=True):
        dot.set_data([state.B], [height])
        dot.set_color(style.FLASH if refused else style.FAST)
    for name, words in zip(("trips", "bill", "verdict"), _words(state), strict=True):
        artists[name].set_text(words)
    artists["verdict"].set(color=style.FLASH if refused else style.INK, weight="bold" if refused else "normal")


def _words(state):
    """What the bytes cost, what is in shared memory, and whether that runs."""
    _, ratios, (limit, register_bytes), fits, enough = trace(state)
    shared, kept = room(state, state.B)
    trips = f"N = {N:,}: K and V are read {-(-N // state.B)} times"
    slow = f"{ratios[SIZES.index(state.B)]:.3g} × arithmetic" if ratios else f"no {state.dtype} rate documented"
    total, held = sum(shared.values()), sum(kept.values())
    parts = " + ".join(f"{NAMES[tile]} {size / KiB:.3g}" for tile, size in shared.items())
    bill = f"{state.B} × {state.B}:  {parts}  =  {total / KiB:.4g} KiB of {limit // KiB}"
    if kept:
        bill += f";  in registers {held / KiB:.4g} of {register_bytes // KiB}"
    if total > limit:
        verdict = block_size.refusal(total, limit).replace(". R", ".\nR")
    elif held > register_bytes:
        verdict = "More than the register file holds: the rest would spill to slow memory."
    else:
        verdict = f"It fits; the largest that does is {fits} × {fits}."
        if ratios:
            verdict += f" From B = {enough} on arithmetic decides." if enough else " The bytes decide."
    return f"{trips}: {slow}", bill, verdict


def describe(state):
    trips, bill, verdict = _words(state)
    where = "accumulators in registers" if state.registers else "everything in shared memory"
    return f"{state.card}, d = {state.d}, {state.dtype}, {where}. {trips}. {bill}. {verdict}".replace("\n", " ")


CONTROLS = {
    "B": Slide(SIZES),
    "card": Choose(tuple(CARDS)),
    "d": Slide((32, 64, 128, 256)),
    "dtype": Choose(("float16", "float32")),
    "registers": Toggle("S, O, m, l in registers"),
}

explore = explorer(__name__)
