"""Linear memory, quadratic time: how long a context one card can hold, and how long it would take.

Kills two beliefs at once: that attention's memory must grow with the square of N, and that FlashAttention made
attention linear. Memory is what one layer's attention holds at its peak and time what the card's peak rate of matrix
products allows: both are the least possible, and a real program needs more.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from figures import style
from figures.figure import Choose, Slide, Toggle, explorer
from flashlab.machine import costs
from flashlab.machine.hardware import CARDS
from flashlab.reference import io_complexity

LENGTHS = tuple(2**n for n in range(9, 25))
DTYPES = {"float16": 2, "float32": 4, "float8": 1}  # bytes
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}
WAYS = {"standard": False, "fused": True}
LOOKS = {"standard": {"color": style.STANDARD, "lw": 2.2}, "fused": {"color": style.FLASH, "lw": 2.6}}
BYTES, SECONDS = (1e5, 1e16), (1e-5, 1e6)  # limits of the axes: as many decades on both, so that slopes compare
SIZES = {"1 MB": 1e6, "1 GB": 1e9, "1 TB": 1e12, "1 PB": 1e15}
MARKS = {"1 ms": 1e-3, "1 s": 1, "1 min": 60, "1 h": 3600, "1 day": 86400}

SIZE = (9.9, 5.0)  # inches


@dataclass(frozen=True)
class State:
    """A context of N tokens on ``card``: one layer, ``batch`` x ``heads`` heads of d dimensions."""

    N: int = 131072
    card: str = "A100 80 GB"
    batch: int = 1
    heads: int = 16
    d: int = 64
    dtype: str = "float16"
    training: bool = True


class Curve(NamedTuple):
    """One way of computing attention, for all lengths."""

    nbytes: list[int]
    seconds: list[float] | None  # None where the card's rate is not known
    longest: int  # the last N that fits
    at: tuple  # bytes and seconds at the state's N


def trace(state):
    """The curve of each way."""
    card = CARDS[state.card]
    rate = getattr(card, state.dtype)
    layer = {"heads": state.batch * state.heads, "training": state.training}
    curves = {}
    for name, fused in WAYS.items():
        size = {"itemsize": DTYPES[state.dtype], "fused": fused, **layer}
        nbytes = [io_complexity.need(N, state.d, **size).total for N in LENGTHS]
        flops = [layer["heads"] * costs.flops(N, N, state.d, training=state.training, rebuilt=fused) for N in LENGTHS]
        seconds = [products / rate for products in flops] if rate else None
        longest = io_complexity.longest(card.dram_bytes, state.d, **size)
        at = LENGTHS.index(state.N)
        curves[name] = Curve(nbytes, seconds, longest, (nbytes[at], seconds and seconds[at]))
    return curves


def build(fig):
    memory = style.quiet(fig.add_axes((0.075, 0.12, 0.395, 0.66)), x=True, y=True)
    time = style.quiet(fig.add_axes((0.585, 0.12, 0.395, 0.66)), x=True, y=True)
    for ax, limits, ticks in ((memory, BYTES, SIZES), (time, SECONDS, MARKS)):
        ax.set(xscale="log", yscale="log", xlim=(LENGTHS[0], LENGTHS[-1]), ylim=limits)
        ax.set_xticks([2**n for n in (10, 14, 17, 20, 23)], ["1 K", "16 K", "128 K", "1 M", "8 M"])
        ax.set_yticks(list(ticks.values()), list(ticks))
        ax.minorticks_off()
        ax.grid(color=style.PALE, lw=0.6)
        ax.set_xlabel("tokens N", color=style.INK)
    fig.text(0.02, 0.95, "memory: fused, it grows with N", fontsize=12, weight="bold", **style.FONT)
    fig.text(0.53, 0.95, "time at the card's peak: it grows with N²", fontsize=12, weight="bold", **style.FONT)
    artists = {
        "card": memory.axhline(1, color=style.INK, lw=1.2, ls="--"),
        "card_label": memory.text(LENGTHS[0] * 1.15, 1, "", va="bottom", fontsize=9, color=style.INK),
        "cursors": [ax.axvline(1, color=style.INK, lw=0.8) for ax in (memory, time)],
        "N": memory.text(1, BYTES[0] * 1.8, "", fontsize=9, color=style.INK),
        "unknown": time.text(0.5, 0.5, "", transform=time.transAxes, ha="center", fontsize=10, color=style.INK),
    }
    axes = memory, time
    for at, (name, look) in enumerate(LOOKS.items()):
        y = 0.9 - 0.05 * at
        artists |= {
            f"{name} memory": memory.plot([], [], **look)[0],
            f"{name} beyond": memory.plot([], [], **{**look, "lw": 1.2}, ls=":")[0],
            f"{name} time": time.plot([], [], **look)[0],
            f"{name} too long": time.plot([], [], **{**look, "lw": 1.2}, ls=":")[0],
            f"{name} ends": [ax.plot([], [], "X", color=look["color"], ms=9, mec=style.PAPER)[0] for ax in axes],
            f"{name} holds": fig.text(0.02, y, "", fontsize=10, va="center", color=look["color"]),
            f"{name} takes": fig.text(0.53, y, "", fontsize=10, va="center", color=look["color"]),
        }
    return artists


def update(artists, state):
    card, curves = CARDS[state.card], trace(state)
    artists["card"].set_ydata([card.dram_bytes] * 2)
    artists["card_label"].set_y(card.dram_bytes * 1.15)
    artists["card_label"].set_text(f"{state.card}: {style.amount(card.dram_bytes)}")
    for cursor in artists["cursors"]:
        cursor.set_xdata([state.N] * 2)
    right = state.N > LENGTHS[len(LENGTHS) // 2]
    artists["N"].set(text=f" N = {state.N:,} ", x=state.N, ha="right" if right else "left")
    known = getattr(card, state.dtype) is not None
    artists["unknown"].set_text("" if known else f"no {state.dtype} rate is known\nfor the {state.card}")
    for name, curve in curves.items():
        fits = np.array(LENGTHS) <= curve.longest
        beyond = ~np.append(fits[1:], False)  # the first that does not fit joins on
        x = np.array(LENGTHS, float)
        artists[f"{name} memory"].set_data(*_until(x, curve.nbytes, curve.longest, card.dram_bytes))
        artists[f"{name} beyond"].set_data(x[beyond], np.array(curve.nbytes, float)[beyond])
        seconds = np.array(curve.seconds if known else [np.nan] * len(LENGTHS))
        last = _power(x, seconds, curve.longest)
        artists[f"{name} time"].set_data(*_until(x, seconds, curve.longest, last))
        artists[f"{name} too long"].set_data(x[beyond], seconds[beyond])
        for mark, y in zip(artists[f"{name} ends"], (card.dram_bytes, last), strict=True):
            mark.set_data([curve.longest], [y])
        artists[f"{name} holds"].set_text(_holds(name, curve, state))
        artists[f"{name} takes"].set_text(_takes(name, curve))


def _until(x, y, longest, last):
    """The part of a curve up to the longest context, which it reaches at ``last``."""
    kept = x <= longest
    return np.append(x[kept], longest), np.append(np.array(y, float)[kept], last)


def _power(x, seconds, N):
    """Seconds at N, on a curve that grows with N squared."""
    return seconds[0] * (N / x[0]) ** 2


def _holds(name, curve, state):
    fits = "" if state.N <= curve.longest else ", too much"
    return f"{name}: {style.amount(curve.at[0])}{fits}; runs out at {_tokens(curve.longest)}"


def _takes(name, curve):
    if curve.at[1] is None:
        return ""
    whole = _power(LENGTHS, curve.seconds, curve.longest)
    return f"{name}: at least {duration(curve.at[1])}; where it runs out {duration(whole)}"


def _tokens(N):
    if N >= 1e6:
        return f"{N / 1e6:.3g} million tokens"
    return f"{N:,} tokens"


def duration(seconds):
    """A time in the largest unit that it reaches."""
    unit = max((unit for unit in UNITS if seconds >= UNITS[unit]), key=UNITS.get, default="µs")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def describe(state):
    kind = "training step" if state.training else "forward pass"
    words = f"One layer's attention on one {state.card}, {kind}, batch {state.batch}, {state.heads} heads, "
    words += f"d = {state.d}, {state.dtype}, N = {state.N:,}. "
    for name, curve in trace(state).items():
        time = _takes(name, curve).removeprefix(f"{name}: ") or f"no {state.dtype} rate is known"
        words += f"{_holds(name, curve, state)}; {time}. "
    return words + "Twice the tokens: twice the fused memory, four times the time."


CONTROLS = {
    "N": Slide(LENGTHS, "tokens"),
    "card": Choose(tuple(CARDS)),
    "batch": Slide((1, 4, 16, 64)),
    "heads": Slide((1, 8, 16, 32, 64)),
    "d": Slide((64, 128, 256)),
    "dtype": Choose(tuple(DTYPES)),
    "training": Toggle("forward and backward"),
}

explore = explorer(__name__)
