"""Linear memory, quadratic time: how long a context one card can hold, and how long it would take.

Kills two beliefs at once: that attention's memory must grow with the square of N, and that FlashAttention made
attention linear. Memory is the most that one layer's attention holds at once. Time is the longer of
two times at the card's peak rates: that for the FLOPs of the matrix products, and that for the bytes moved. A real
program needs more memory and more time.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from figures import style
from figures.explore import explorer
from figures.figure import Caption, Choose, Scrub, Slide, Toggle
from flashlab.machine import costs
from flashlab.machine.hardware import CARDS
from flashlab.reference import io_complexity, roofline, standard_attention

LENGTHS = tuple(2**n * quarters // 4 for n in range(9, 24) for quarters in range(4, 8)) + (2**24,)
DTYPES = {"float16": 2, "float32": 4, "float8": 1}  # bytes
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}
WAYS = {"standard": False, "fused": True}


@dataclass(frozen=True)
class State:
    """A context of N = LENGTHS[step] tokens on ``card``: one layer, ``batch`` x ``heads`` heads of d dimensions."""

    step: int = LENGTHS.index(49152)
    card: str = "A100 80 GB"
    batch: int = 1
    heads: int = 16
    d: int = 64
    dtype: str = "float16"
    training: bool = True


@lru_cache(maxsize=64)
def _trace(name: str, batch: int, heads: int, d: int, dtype: str, training: bool) -> dict[str, Any]:
    card = CARDS[name]
    rate = getattr(card, dtype)
    layer = {"heads": batch * heads, "training": training}
    ways: dict[str, dict] = {}
    for way, fused in WAYS.items():
        size: dict[str, Any] = {"itemsize": DTYPES[dtype], "fused": fused, **layer}
        longest = io_complexity.longest(card.dram_bytes, d, **size)
        needs = [io_complexity.need(N, d, **size) for N in LENGTHS]
        ways[way] = {
            "needs": [{**need._asdict(), "total": need.total} for need in needs],
            "seconds": [_seconds(N, d, rate, card.dram_rate, **size) for N in LENGTHS],
            "longest": longest,
            "takes": _seconds(longest, d, rate, card.dram_rate, **size),
        }
        ways[way]["clocks"] = [_clock(N, d, rate, card.dram_rate, **size) for N in LENGTHS]
        ways[way]["lasts"] = [duration(seconds) for seconds in ways[way]["seconds"]] if rate else None
        ways[way]["ends"] = duration(ways[way]["takes"]) if rate else None
    return {"card": name, "room": card.dram_bytes, "dtype": dtype, "lengths": list(LENGTHS), "ways": ways}


def _seconds(N: int, d: int, flop_rate: float | None, byte_rate: float, *, heads: int, **way: Any) -> float | None:
    """Return a lower bound of the time for all heads together at these rates; None if the FLOP rate is not known."""
    return heads * roofline.seconds(*_demand(N, d, **way), flop_rate, byte_rate) if flop_rate else None


def _clock(N: int, d: int, flop_rate: float | None, byte_rate: float, *, heads: int, **way: Any) -> str | None:
    """Return what decides ``_seconds``: bytes, products, or products with S computed again; None where that is None."""
    flops, nbytes = _demand(N, d, **way)
    if not flop_rate:
        return None
    if flops / nbytes < flop_rate / byte_rate:
        return "bytes"
    return "products, S again" if way["fused"] and way["training"] else "products"


def _demand(N: int, d: int, *, itemsize: int, training: bool, fused: bool) -> tuple[int, int]:
    """Return the FLOPs and the bytes of one head.

    The fused way moves each tensor once per pass: no kernel moves less.
    """
    once = (4 + 8 * training) * N * d * itemsize  # Q, K, V, O; then Q, K, V, O, dO, dQ, dK, dV
    nbytes = once if fused else standard_attention.moved(N, d, itemsize, backward=training)
    return costs.flops(N, N, d, training=training, rebuilt=fused), nbytes


def trace(state: State) -> dict:
    """Return the bytes of each way, its least time for each length and what decides it, and where memory runs out."""
    return _trace(state.card, state.batch, state.heads, state.d, state.dtype, state.training)


def duration(seconds: float) -> str:
    """Return a time in the largest unit that it reaches."""
    unit = max((unit for unit in UNITS if seconds >= UNITS[unit]), key=lambda unit: UNITS[unit], default="µs")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def _tokens(N: int) -> str:
    return f"{N / 1e6:.3g} million tokens" if N >= 1e6 else f"{N:,} tokens"


def describe(state: State) -> Caption:
    """Say what each way needs at this length, where it runs out, and how long it takes at least."""
    numbers = trace(state)
    words = [_way(name, way, numbers, state.step) for name, way in numbers["ways"].items()]
    kind = "training step" if state.training else "forward pass"
    return Caption(f"A {kind} of [{LENGTHS[state.step]:,} tokens](step). {'. '.join(words)}.")


def _way(name: str, way: dict, numbers: dict, step: int) -> str:
    need = way["needs"][step]["total"]
    fits = "" if need <= numbers["room"] else ", too much"
    time = f"takes at least {way['lasts'][step]}" if way["lasts"] else f"no {numbers['dtype']} rate is known"
    return f"{name.capitalize()}: {style.amount(need)}{fits}, runs out at {_tokens(way['longest'])}, {time}"


CONTROLS = {
    "step": Scrub(lambda state: len(LENGTHS) - 1, "tokens", [f"N = {N:,}" for N in LENGTHS]),
    "card": Choose(tuple(CARDS)),
    "batch": Slide((1, 4, 16, 64)),
    "heads": Slide((1, 8, 16, 32, 64)),
    "d": Slide((64, 128, 256)),
    "dtype": Choose(tuple(DTYPES)),
    "training": Toggle("forward and backward"),
}
explore = explorer(__name__)
