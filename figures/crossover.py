"""Softmax attention and linear attention side by side as the text grows: FLOPs, bytes, what is kept, and time.

Kills the belief that linear attention wins as soon as it does fewer FLOPs. FLOPs cross at N = C + 2d, the bytes that
the programs ask for at a few tiles, the memory that is kept at d tokens in float16. But with so few FLOPs per byte
linear attention waits for memory: the least time crosses only where softmax attention begins to wait for arithmetic.

One causal head, by tiles of C queries and keys, in chunks of C tokens, has the whole card. The least time counts each
byte once, as if caches served all repeated reads.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from figures import style
from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide
from flashlab.machine import hardware
from flashlab.reference import linear_attention, masks, roofline, tiling

LENGTHS = [n for k in range(6, 15) for n in (2**k, 3 * 2 ** (k - 1))] + [2**15]  # 64, 96, 128, ... 32,768
CARD = "H200 SXM"
NAMES = {"flops": "FLOPs", "bytes": "bytes moved", "state": "bytes kept", "seconds": "least time"}


@dataclass(frozen=True)
class State:
    """The length at ``step``, for heads of d columns and tiles and chunks of C, in this dtype."""

    step: int = 6
    d: int = 128
    C: int = 64
    dtype: str = "float16"


def costs(N: int, d: int, C: int, dtype: str) -> dict:
    """Return what both ways take for N tokens, by measure: (softmax attention, linear attention)."""
    stored, card = hardware.stored(dtype), hardware.CARDS[CARD]
    flops = linear_attention.softmax_flops(N, d, C), linear_attention.flops(N, d, C)
    nbytes = (tiling.fa2_traffic(N, N, d, C, C, mask=masks.causal(), dtype=stored).total(),
              linear_attention.traffic(N, d, dtype=stored).total())  # fmt: skip
    kept = linear_attention.cache_bytes(N, d, dtype=stored), linear_attention.state_bytes(d, dtype=stored)
    once = tiling.fa2_traffic(N, N, d, N, N, mask=masks.causal(), dtype=stored).total(), nbytes[1]
    rates = hardware.flop_rate(card, dtype), card.dram_rate
    times = tuple(roofline.seconds(*demand, *rates) for demand in zip(flops, once, strict=True))
    return {"flops": flops, "bytes": nbytes, "state": kept, "seconds": times}


@lru_cache(maxsize=16)
def _trace(d: int, C: int, dtype: str) -> dict[str, Any]:
    by_length = [costs(N, d, C, dtype) for N in LENGTHS]
    ridge = hardware.ridge(hardware.CARDS[CARD], dtype)
    measures = [
        {
            "name": words, "what": what,
            "softmax": [it[what][0] for it in by_length], "linear": [it[what][1] for it in by_length],
            "crossing": crossing(what, d, C, dtype),
        }
        for what, words in NAMES.items()
    ]  # fmt: skip
    intensity = [it["flops"][1] / it["bytes"][1] for it in by_length]
    return {"lengths": LENGTHS, "measures": measures, "ridge": ridge, "intensity": intensity, "card": CARD,
            "d": d, "C": C}  # fmt: skip


def crossing(what: str, d: int, C: int, dtype: str) -> int:
    """Return the first whole number of chunks at which linear attention takes no more than softmax attention."""
    N = C
    while (pair := costs(N, d, C, dtype)[what])[0] < pair[1]:
        N += C
    return N


def trace(state: State) -> dict:
    """Return what both take at each length, where they cross, and the FLOPs per byte of linear attention."""
    return _trace(state.d, state.C, state.dtype)


def describe(state: State) -> str:
    """Say how the two compare at this length, and what linear attention waits for."""
    numbers = trace(state)
    flops, nbytes, kept, times = (
        style.digits(it["softmax"][state.step] / it["linear"][state.step], 3) for it in numbers["measures"]
    )
    waits = "bytes" if numbers["intensity"][state.step] < numbers["ridge"] else "arithmetic"
    return (
        f"N = {LENGTHS[state.step]:,}, d = {state.d}, C = {state.C}, {state.dtype}. Softmax over linear: FLOPs "
        f"× {flops}, bytes × {nbytes}, kept × {kept}, least time × {times}. Linear waits for {waits}."
    )


CONTROLS = {
    "step": Scrub(lambda state: len(LENGTHS) - 1, "tokens N", tuple(f"N = {N:,}" for N in LENGTHS)),
    "d": Slide((32, 64, 128, 256), "head dimension d"),
    "C": Slide((32, 64, 128), "tile, chunk C"),
    "dtype": Choose(("float8", "float16", "float32"), "precision"),
}
explore = explorer(__name__)
