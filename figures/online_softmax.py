"""Scores arrive block by block; (m, l, O) is all that is kept.

Kills the belief that a softmax needs the whole row before it can begin: after each block the kept numbers are the
softmax of what has come so far, and a larger maximum costs one factor, not a second look at the past.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from figures import style
from figures.figure import Choose, Scrub, Slide, explorer
from flashlab.course import data
from flashlab.reference import online_softmax, safe_softmax
from flashlab.reference.tiling import tiles

TITLES = {
    "real": 'the second "bank" looks at its sentence',
    "rising": "rising scores: each block raises the maximum",
    "falling": "falling scores: the first block holds the maximum",
    "masked start": "rising scores, the first quarter masked",
}

SIZE = (9.0, 4.2)  # inches


@dataclass(frozen=True)
class State:
    """``step`` of at most ``blocks`` blocks have come, of ``block`` scores each, from ``source``."""

    step: int = 4
    blocks: int = 6
    block: int = 4
    source: str = "real"


class Step(NamedTuple):
    """What is known when ``seen`` scores have come."""

    seen: int
    state: online_softmax.State
    alpha: float  # the factor that the old sums took
    weights: np.ndarray  # [seen]  softmax of the scores that have come, from m and l


@lru_cache(maxsize=64)
def row(source, n):
    """At most n tokens, with a score [n] and a value [n, 1] for each."""
    if source == "real":
        real = data.captured("two_banks")
        Q, K, V = real.head()
        query = len(real.tokens) - 1 - real.tokens[::-1].index("bank")
        return real.tokens[:n], (real.scale * (K @ Q[query]))[:n], V[:n, :1]
    scores = np.linspace(4, -2, n) if source == "falling" else np.linspace(-2, 4, n)
    if source == "masked start":
        scores[: n // 4] = -np.inf
    return [str(at) for at in range(n)], scores.astype(np.float32), np.linspace(-1, 1, n, dtype=np.float32)[:, None]


@lru_cache(maxsize=64)
def _steps(source, blocks, block):
    _, scores, values = row(source, blocks * block)
    state = online_softmax.identity(1, 1)
    steps = [Step(0, state, 1.0, scores[:0])]
    for part in tiles(len(scores), block):
        before, state = state, online_softmax.update(state, scores[None, part], values[part])
        alpha = np.exp(before.m - np.where(state.m == -np.inf, 0, state.m))  # [1]
        _, lse = online_softmax.finish(state)
        seen = scores[: part.stop]
        steps.append(Step(part.stop, state, float(alpha[0]), np.exp(seen - np.where(lse == -np.inf, 0, lse))))
    return steps


def trace(state):
    """All steps of the row, from no score to all: ``online_softmax.update`` run block by block."""
    return _steps(state.source, state.blocks, state.block)


def count(state):
    """The number of blocks that there are: a sentence may end before ``blocks`` are full."""
    return len(trace(state)) - 1


def build(fig):
    scores, weights = fig.subplots(
        2, 1, gridspec_kw={"left": 0.07, "right": 0.66, "top": 0.9, "bottom": 0.19, "hspace": 0.25}
    )
    style.quiet(scores, y=True)
    style.quiet(weights, x=True, y=True)
    scores.set_ylabel("score", color=style.INK)
    weights.set_ylabel("weight", color=style.INK)
    weights.set_ylim(0, 1)
    word = {"ha": "left", "va": "top", "transform": fig.transFigure, **style.FONT}
    return {
        "now": scores.axvspan(0, 1, color=style.PALE, zorder=0),
        "scores": scores.vlines([], 0, 1, linewidth=9),
        "max": scores.axhline(0, color=style.INK, lw=1.2, ls="--"),
        "max_label": scores.text(0, 0, "", va="bottom", ha="right", fontsize=10, color=style.INK),
        "now_below": weights.axvspan(0, 1, color=style.PALE, zorder=0),
        "weights": weights.vlines([], 0, 1, linewidth=9, color=style.P),
        "whole": weights.hlines([], 0, 1, color=style.INK, linewidth=1.4),
        "l": fig.text(0.69, 0.88, "", fontsize=11, linespacing=1.7, **word),
        "rescale": fig.text(0.69, 0.55, "", fontsize=11, linespacing=1.5, weight="bold", **word),
        "o": fig.text(0.69, 0.36, "", fontsize=11, linespacing=1.7, **word),
    }


def update(artists, state):
    tokens, scores, _ = row(state.source, state.blocks * state.block)
    steps, n = trace(state), len(scores)
    now, before = steps[state.step], steps[max(state.step - 1, 0)]
    top, below = artists["scores"].axes, artists["weights"].axes
    _frame(top, below, state, tokens, scores)
    floor = top.get_ylim()[0]

    at = np.arange(n)
    shown = np.where(scores == -np.inf, floor, scores)
    artists["scores"].set_segments([[(x, floor), (x, y)] for x, y in zip(at, shown, strict=True)])
    artists["scores"].set_color([style.S if x < now.seen else style.PALE for x in at])
    for span in ("now", "now_below"):
        artists[span].set(x=before.seen - 0.5, width=now.seen - before.seen)
    m = now.state.m[0]
    artists["max"].set(ydata=[m, m], visible=bool(np.isfinite(m)))
    artists["max_label"].set(x=n - 0.5, y=max(m, floor), text=f"m = {style.number(m)}")
    artists["weights"].set_segments([[(x, 0), (x, p)] for x, p in enumerate(now.weights)])
    whole = safe_softmax.safe(scores)
    artists["whole"].set_segments([[(x - 0.4, p), (x + 0.4, p)] for x, p in enumerate(whole)])
    for name, words in zip(("l", "rescale", "o"), _words(state), strict=True):
        artists[name].set_text(words)


def _frame(top, below, state, tokens, scores):
    """Axes, which stay while a row is scrubbed."""
    n, seen = len(scores), scores[np.isfinite(scores)]
    top.set(xlim=(-0.6, n - 0.4), ylim=(seen.min() - 0.8, seen.max() + 0.9))
    below.set(xlim=(-0.6, n - 0.4))
    title = TITLES[state.source]
    if top.get_title(loc="left") != title or len(below.get_xticklabels()) != n:
        top.set_title(title, loc="left", fontsize=11, color=style.INK)
        below.set_xticks(range(n), tokens, rotation=60 if state.source == "real" else 0, fontsize=8)


def _words(state):
    """The three notes beside the picture: the denominator, the rescaling, the output."""
    steps = trace(state)
    now, before = steps[state.step], steps[max(state.step - 1, 0)]
    n, old, new = style.number, before.state, now.state
    if state.step == 0:
        return "nothing has come:\nm = −∞,  l = 0,  O = 0", "", ""
    part_l, part_o = new.l[0] - now.alpha * old.l[0], new.O[0, 0] - now.alpha * old.O[0, 0]
    l = f"block {state.step} of {count(state)}\nm  {n(old.m[0])} → {n(new.m[0])}\n"
    l += f"l  {n(now.alpha)}·{n(old.l[0])} + {n(part_l)}\n   = {n(new.l[0])}"
    rescaled = now.alpha < 1 and np.isfinite(old.m[0])
    rescale = (
        f"the maximum rose:\nthe past × alpha = {n(now.alpha)}" if rescaled else "the past stays as it is:\nalpha = 1"
    )
    if not np.isfinite(old.m[0]):
        rescale = "there is no past yet"
    output, _ = online_softmax.finish(new)
    o = f"O  {n(now.alpha)}·{n(old.O[0, 0])} + {n(part_o)}\n   = {n(new.O[0, 0])}\nO / l = {n(output[0, 0])}"
    return l, rescale, o


def describe(state):
    step, n = trace(state)[state.step], style.number
    m, l, _ = (part[0] for part in step.state)
    output, _ = online_softmax.finish(step.state)
    words = f"{state.source} scores, {step.seen} of {trace(state)[-1].seen} have come in {state.step} of "
    words += f"{count(state)} blocks: m = {n(m)}, l = {n(l)}, alpha = {n(step.alpha)}, output = {n(output[0, 0])}."
    if state.step == count(state):
        words += " The weights (bars) are those of the whole softmax (ticks)."
    return words


CONTROLS = {
    "step": Scrub(count, "blocks seen"),
    "blocks": Slide(range(1, 9)),
    "block": Slide((1, 2, 3, 4, 6, 8), "block size"),
    "source": Choose(tuple(TITLES), "scores"),
}

explore = explorer(__name__)
