"""Attention's parts under the roof of a GPU: how much arithmetic each does for a byte, and how fast it can then go.

Kills the belief that only the softmax waits for memory: at d = 64 and 128 the matrix products of standard attention,
each a kernel by itself, stand left of the ridge too; and longer sequences do not move the whole to the right.
"""

from dataclasses import dataclass

from figures import style
from figures.figure import Choose, Slide, explorer
from flashlab.machine import hardware
from flashlab.reference import roofline

INTENSITY, RATE = (0.4, 3e4), (0.03, 3e4)  # FLOP per byte; TFLOP/s
OFFSET = 2.6  # of a mark from the roof: fused above it, standard below
LABELS = {
    "softmax": "softmax alone",
    "QKᵀ": "QKᵀ alone, and PV",
    "standard": "standard: all three",
    "fused": "fused, tiles of 128 queries",
    "fused, read once": "fused, all read once",
}

SIZE = (8.6, 4.0)  # inches


@dataclass(frozen=True)
class State:
    """One head: ``N`` queries and keys of dimension ``d``, in ``dtype``, on ``card`` (a name in ``hardware.CARDS``)."""

    card: str = "A100 40 GB"
    d: int = 64
    N: int = 1024
    dtype: str = "float16"


def trace(state):
    """(ridge in FLOP/B, peak in FLOP/s, {part: (intensity in FLOP/B, FLOP/s it can reach)}).

    Ridge, peak and reach are None where the card's rate for the dtype is not known.
    """
    card = hardware.CARDS[state.card]
    peak = getattr(card, state.dtype)
    parts = {}
    for name, work in roofline.attention(state.N, state.d, state.dtype).items():
        if name in LABELS:
            reach = peak and roofline.reachable(work, peak, card.dram_rate)
            parts[name] = roofline.intensity(work), reach
    return peak and hardware.ridge(card, state.dtype), peak, parts


def build(fig):
    """The roof on logarithmic axes, a numbered mark for each part, and the parts' numbers beside it."""
    ax = style.quiet(fig.add_axes((0.075, 0.14, 0.52, 0.77)), x=True, y=True)
    ax.set(xscale="log", yscale="log", xlim=INTENSITY, ylim=RATE)
    ax.set_xlabel("FLOPs for each byte from DRAM", fontsize=9.5, color=style.INK)
    ax.set_title("TFLOP/s within reach", loc="left", fontsize=9.5, color=style.INK)
    for x, ha, words in ((0.02, "left", "waits for bytes"), (0.99, "right", "waits for arithmetic")):
        ax.text(x, 0.94, words, ha=ha, fontsize=9, fontstyle="italic", color=style.INK, transform=ax.transAxes)
    marks, numbers, values = [], [], []
    for row, name in enumerate(LABELS):
        color, y = _color(name), 0.85 - 0.17 * row
        number = {"s": str(row + 1), "fontsize": 9, "fontweight": "bold", "color": style.PAPER, "ha": "center"}
        marks += ax.plot([], [], "o", ms=14, color=color, mec=style.PAPER, zorder=3)
        numbers.append(ax.text(1, 1, va="center_baseline", zorder=4, **number))
        fig.text(0.64, y, bbox={"boxstyle": "circle,pad=0.25", "fc": color, "ec": "none"}, **number)
        fig.text(0.665, y, LABELS[name], fontsize=10, fontweight="bold", color=style.INK)
        values.append(fig.text(0.665, y - 0.065, "", fontsize=9.5, color=style.INK))
    return {
        "waiting": ax.fill_betweenx(RATE, INTENSITY[0], 1, color=style.SLOW, alpha=0.25, lw=0),
        "roof": ax.plot([], [], color=style.INK, lw=2, zorder=1)[0],
        "ridge": ax.text(1, RATE[0] * 1.3, "", fontsize=9, color=style.INK),
        "points": ax.plot([], [], "o", ms=5, color=style.INK, zorder=2)[0],
        "marks": marks,
        "numbers": numbers,
        "values": values,
    }


def update(artists, state):
    """The roof, the ridge, and every mark with its numbers."""
    ridge, peak, parts = trace(state)
    top, corner = (peak / 1e12, ridge) if peak else (0, INTENSITY[0])
    artists["roof"].set_data([INTENSITY[0], corner, INTENSITY[1]], [INTENSITY[0] * top / corner, top, top])
    artists["waiting"].set_data(RATE, INTENSITY[0], corner)
    artists["ridge"].set_x(corner * 1.12)
    artists["ridge"].set_text(f"ridge: {ridge:.0f} FLOP/B" if peak else f"no {state.dtype} rate known for this card")
    artists["points"].set_data(*zip(*((x, (y or 0) / 1e12) for x, y in parts.values()), strict=True))
    for row, name in enumerate(LABELS):
        intensity, reach = parts[name]
        y = (reach or 0) / 1e12 * (OFFSET if name.startswith("fused") else 1 / OFFSET)
        artists["marks"][row].set_data([intensity], [y])
        artists["numbers"][row].set_position((intensity, y or 1))
        artists["numbers"][row].set_visible(y > 0)
        share = f"  {_three(reach / 1e12)} TFLOP/s  {reach / peak:.1%}" if peak else ""
        artists["values"][row].set_text(f"{_three(intensity)} FLOP/B{share}")


def describe(state):
    """Every part with its intensity, its reach, and its side of the ridge."""
    ridge, peak, parts = trace(state)
    where = f"{state.card}, N = {state.N}, d = {state.d}, {state.dtype}"
    if not peak:
        return f"{where}: no {state.dtype} rate: {hardware.missing(hardware.CARDS[state.card], state.dtype)}."
    said = (
        f"{label} {_three(intensity)} FLOP/B, {_three(reach / 1e12)} TFLOP/s "
        f"({'waits for bytes' if intensity < ridge else 'waits for arithmetic'})"
        for label, (intensity, reach) in ((label, parts[name]) for name, label in LABELS.items())
    )
    return f"{where}; peak {peak / 1e12:.4g} TFLOP/s, ridge {ridge:.0f} FLOP/B. " + "; ".join(said) + "."


CONTROLS = {
    "card": Choose(tuple(hardware.CARDS)),
    "dtype": Choose(("float8", "float16", "float32")),
    "d": Slide((16, 32, 64, 128, 256)),
    "N": Slide((256, 512, 1024, 2048, 4096, 8192, 16384)),
}

explore = explorer(__name__)


def _color(name):
    return style.FLASH if name.startswith("fused") else style.STANDARD


def _three(value):
    """Three digits, all of them where there are more before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
