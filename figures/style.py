"""Colours and sizes of all figures, chosen so that neighbours differ in lightness and stay apart in grey."""

from contextlib import AbstractContextManager
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

Q, K, V = "#1f4e8c", "#e8a33d", "#3d9970"
S, P, O = "#c9b8e0", "#8e63b0", "#a8324a"
SLOW, FAST = "#9fb4c7", "#0f5f66"
INK, PALE, PAPER = "#22272e", "#d5dae0", "#ffffff"
STANDARD, FLASH = "#8a8f98", "#a8324a"
BROWN, PINK = "#7d5a3c", "#b8559a"  # for lines of charts that are no tensors

FONT: dict[str, Any] = {"fontfamily": "DejaVu Sans", "color": INK}
DPI = 110
WEIGHTS = "Purples"  # colour map of P, darker for more


def figure(width: float = 8.0, height: float = 3.6) -> Figure:
    """Return an empty figure of this size in inches, free of pyplot's global state."""
    return Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)


def written(color: Any) -> tuple:
    """Return the colour of words beside marks of this colour: halfway to ink, so that they are legible on paper."""
    return tuple((np.array(to_rgb(color)) + to_rgb(INK)) / 2)


def quick_text() -> AbstractContextManager:
    """Return a context in which drawing a label takes about two thirds of its usual time, and looks much the same."""
    return rc_context({"text.hinting": "no_hinting"})


def quiet(ax: Any, *, x: bool = False, y: bool = False) -> Any:
    """Strip an axes of its box; keep the x or y axis only where asked for."""
    ax.set_facecolor(PAPER)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines["bottom"].set_visible(x)
    ax.spines["left"].set_visible(y)
    ax.tick_params(bottom=x, labelbottom=x, left=y, labelleft=y, colors=INK, labelsize=9)
    return ax


def number(value: float) -> str:
    """Return a value as a label: in four digits, with ∞ for inf and a proper minus sign."""
    return f"{value:.4g}".replace("inf", "∞").replace("-", "−")


def digits(value: float, count: int) -> str:
    """Return a value in at most so many digits, halves up: as ``digits`` of words.js, and unlike f"{value:.3g}"."""
    exact = Decimal(value)
    last = Decimal(1).scaleb(exact.adjusted() - count + 1) if value else Decimal(1)
    return f"{float(exact.quantize(last, ROUND_HALF_UP)):.15g}".replace("-", "−")


def times(count: int, thing: str) -> str:
    """Write how many things there are: "1 part", "2 parts"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def amount(nbytes: float) -> str:
    """Return bytes in decimal units, as bandwidths are quoted: 1 MB is 10^6 bytes."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{digits(nbytes / size, 3)} {unit}"
    return f"{nbytes:.0f} B"
