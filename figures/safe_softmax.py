"""Three dtypes, one row of scores, and the number that is subtracted before exp.

Kills three beliefs: that only too large scores are dangerous (subtract too much and it is 0 / 0), that it has to be the
maximum (a wide band of numbers will do), and that an overflow always shows as inf or NaN (it can be a row of zeros).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from figures import style
from figures.figure import Choose, Slide, explorer
from flashlab.reference import safe_softmax

DTYPES = ("float16", "bfloat16", "float32")
TOP, COUNT = 100, 8  # the largest score, and how many there are
SHIFTS, SPREADS = tuple(range(0, 221, 2)), (0, 2, 7, 14, 35, 63)
LEFT, RIGHT = -165, 115  # of the axis of exponents
OUTCOMES = {  # what the row comes out as, and its colour
    "right": (style.FAST, 0.2),
    "digits lost": style.S,
    "NaN: ∞ / ∞": style.O,
    "zeros: 1 / ∞": style.K,
    "NaN: 0 / 0": style.Q,
}

SIZE = (9.2, 4.8)  # inches


@dataclass(frozen=True)
class State:
    """``shift`` is subtracted from scores that lie ``spread`` below 100 and up to it."""

    shift: int = 0
    dtype: str = "float32"
    spread: int = 14


class Row(NamedTuple):
    """Softmax relative to each of SHIFTS."""

    scores: np.ndarray  # [n]
    exact: np.ndarray  # [n]            in float64
    e: np.ndarray  # [shifts, n]
    l: np.ndarray  # [shifts]
    P: np.ndarray  # [shifts, n]
    outcome: list[str]  # shifts


@lru_cache(maxsize=64)
def row(dtype, spread):
    """The row at every shift, by ``safe_softmax.shifted`` in this dtype. All three hold the scores exactly."""
    scores = np.round(2 * np.linspace(TOP - spread, TOP, COUNT)) / 2  # [n]
    x = torch.tensor(scores, dtype=getattr(torch, dtype))
    shifts = torch.tensor(SHIFTS, dtype=x.dtype)[:, None]  # [shifts, 1]
    e, l, P = (part.double().numpy() for part in safe_softmax.shifted(x, shifts))
    exact, eps = safe_softmax.safe(scores), torch.finfo(x.dtype).eps
    outcome = [_outcome(*parts, exact, eps) for parts in zip(e, l[:, 0], P, strict=True)]
    return Row(scores, exact, e, l[:, 0], P, outcome)


def _outcome(e, l, P, exact, eps):
    if np.isinf(e).any():
        return "NaN: ∞ / ∞"
    if np.isinf(l):
        return "zeros: 1 / ∞"
    if l == 0:
        return "NaN: 0 / 0"
    return "right" if (np.abs(P - exact) <= 2 * eps).all() else "digits lost"


def trace(state):
    """The row in the chosen dtype, at all shifts; ``SHIFTS.index(state.shift)`` is the one that is shown."""
    return row(state.dtype, state.spread)


def build(fig):
    lanes = style.quiet(fig.add_axes((0.11, 0.5, 0.875, 0.42)), x=True)
    lanes.set(xlim=(LEFT, RIGHT), ylim=(2.5, -0.5))
    fig.text(0.985, 0.395, "exponent = score − shift", ha="right", fontsize=9, color=style.INK)
    for at, dtype in enumerate(DTYPES):
        _lane(lanes, at, dtype)
    words = {LEFT + 2: "exp is 0", -95: "hatched: subnormal, few digits", 0: "exp is a number", RIGHT - 22: "exp is ∞"}
    for x, word in words.items():
        lanes.text(x, -0.56, word, ha="left" if x < -100 else "center", va="bottom", fontsize=9, color=style.INK)
    weights = style.quiet(fig.add_axes((0.11, 0.08, 0.3, 0.24)), x=True, y=True)
    weights.set(xlim=(-0.6, COUNT - 0.4), ylim=(0, 1.05), xticks=[])
    weights.set_xlabel("softmax, the eight scores in order", fontsize=9, color=style.INK)
    outcomes = style.quiet(fig.add_axes((0.565, 0.145, 0.42, 0.175)), x=True)
    outcomes.tick_params(left=False, labelleft=True)
    outcomes.set_yticks(range(3), DTYPES)
    extent = (SHIFTS[0] - 1, SHIFTS[-1] + 1, 2.5, -0.5)
    fig.text(0.565, 0.345, "and for every shift", fontsize=10, color=style.INK)
    fig.legend(handles=[Patch(color=color, label=name) for name, color in OUTCOMES.items()], loc="lower right", ncols=5,
               fontsize=8.5, frameon=False, handlelength=1, columnspacing=1, handletextpad=0.4,
               bbox_to_anchor=(0.995, -0.005))  # fmt: skip
    colors = ListedColormap(list(OUTCOMES.values()))
    frame = Rectangle((LEFT, 0), RIGHT - LEFT, 0.9, facecolor="none", edgecolor=style.INK, lw=1.4)
    return {
        "chosen": lanes.add_patch(frame),
        "dots": lanes.scatter(np.zeros(3 * COUNT), np.zeros(3 * COUNT), s=34, linewidths=1, zorder=3),
        "bars": list(weights.bar(range(COUNT), 0, color=style.P, width=0.7)),
        "exact": weights.hlines(np.zeros(COUNT), np.arange(COUNT) - 0.42, np.arange(COUNT) + 0.42, color=style.INK),
        "words": weights.text(3.5, 0.5, "", ha="center", va="center", fontsize=13, weight="bold", color=style.O),
        "verdict": fig.text(0.11, 0.345, "", fontsize=10, color=style.INK),
        "map": outcomes.imshow(np.zeros((3, len(SHIFTS))), cmap=colors, vmin=0, vmax=len(OUTCOMES) - 1, extent=extent,
                               aspect="auto", interpolation="nearest"),
        "here": [outcomes.axvline(0, color=color, lw=lw) for color, lw in ((style.PAPER, 4), (style.INK, 1.6))],
    }  # fmt: skip


def _lane(lanes, at, dtype):
    """The window of one dtype, with the exponents at its edges."""
    zero, normal, inf = safe_softmax.window(torch.finfo(getattr(torch, dtype)))
    lanes.text(LEFT - 3, at, dtype, ha="right", va="center", fontsize=10, color=style.INK)
    lanes.plot([LEFT, RIGHT], [at, at], color=style.PALE, lw=1, zorder=0)
    lanes.add_patch(Rectangle((zero, at - 0.3), normal - zero, 0.6, facecolor=(style.FAST, 0.16), hatch="////",
                              edgecolor=style.SLOW, lw=0))  # fmt: skip
    lanes.add_patch(Rectangle((normal, at - 0.3), inf - normal, 0.6, facecolor=(style.FAST, 0.3)))
    lanes.text(zero - 1, at + 0.28, f"{zero:.1f} ".replace("-", "−"), ha="right", fontsize=8.5, color=style.INK)
    lanes.text(inf + 1, at + 0.28, f" {inf:.2f}", ha="left", fontsize=8.5, color=style.INK)


def update(artists, state):
    at, now = SHIFTS.index(state.shift), trace(state)
    artists["chosen"].set_y(DTYPES.index(state.dtype) - 0.45)
    rows = [row(dtype, state.spread) for dtype in DTYPES]
    exponents = np.clip(now.scores - state.shift, LEFT + 1, None)  # [n]
    exps = np.concatenate([values.e[at] for values in rows])  # [3 n]
    artists["dots"].set_offsets([(x, lane) for lane in range(3) for x in exponents])
    artists["dots"].set_facecolor([style.O if e == np.inf else style.P if e else style.PAPER for e in exps])
    artists["dots"].set_edgecolor([style.PAPER if 0 < e < np.inf else style.INK for e in exps])
    finite = np.isfinite(now.P[at])
    for bar, p in zip(artists["bars"], np.where(finite, now.P[at], 0), strict=True):
        bar.set_height(p)
    artists["exact"].set_segments([[(x - 0.42, p), (x + 0.42, p)] for x, p in enumerate(now.exact)])
    artists["words"].set_text(_said(now, at))
    artists["verdict"].set_text(f"sum of exp: {style.number(now.l[at])}    result: {now.outcome[at]}")
    names = list(OUTCOMES)
    artists["map"].set_data([[names.index(outcome) for outcome in values.outcome] for values in rows])
    for line in artists["here"]:
        line.set_xdata([state.shift, state.shift])


def _said(now, at):
    missing = np.isnan(now.P[at]).sum()
    if missing:
        return "all NaN" if missing == COUNT else f"{missing} of {COUNT} are NaN"
    return "all zero" if not now.P[at].any() else ""


def describe(state):
    """The scores, what exp and its sum make of them in the chosen dtype, and which shifts work."""
    at, now = SHIFTS.index(state.shift), trace(state)
    zero, normal, inf = safe_softmax.window(torch.finfo(getattr(torch, state.dtype)))
    n = style.number
    right = [shift for shift, outcome in zip(SHIFTS, now.outcome, strict=True) if outcome == "right"]
    works = f"right for shifts from {min(right)} to {max(right)}" if right else "right for no shift"
    low, high = now.scores[0] - state.shift, now.scores[-1] - state.shift
    return (
        f"{COUNT} scores from {n(now.scores[0])} to {n(now.scores[-1])} in {state.dtype}, shift {state.shift}: "
        f"exponents from {n(low)} to {n(high)}. "
        f"There exp is 0 below {n(zero)}, subnormal below {n(normal)} and ∞ above {n(inf)}. "
        f"Sum of exp {n(now.l[at])}, result {now.outcome[at]}. Here softmax is {works}."
    )


CONTROLS = {
    "shift": Slide(SHIFTS),
    "dtype": Choose(DTYPES),
    "spread": Slide(SPREADS, "spread of scores"),
}

explore = explorer(__name__)
