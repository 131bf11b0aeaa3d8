"""Scores arrive block by block; (m, l, O) is all that is kept.

Kills the belief that a softmax needs the whole row before it can begin: a larger maximum costs one factor on what is
kept, not a second look at the past, and the division waits for the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, line
from flashlab.course import data
from flashlab.reference import online_softmax, safe_softmax
from flashlab.reference.tiling import tiles

TITLES = {
    "real": 'the second "bank" looks at its sentence',
    "rising": "rising scores: each block raises the maximum",
    "falling": "falling scores: the first block holds the maximum",
    "masked start": "rising scores, the first quarter masked",
}
LIFTS = tuple(range(-4, 3))
CODE = {
    "m": line(online_softmax.update, "m_new = "),
    "alpha": line(online_softmax.update, "alpha = "),
    "P": line(online_softmax.update, "P_ij = "),
    "l": line(online_softmax.update, "l_i = "),
    "O": line(online_softmax.update, "O_i = "),
    "divide": line(online_softmax.finish, "return "),
}


@dataclass(frozen=True)
class State:
    """``step`` blocks of ``block`` scores have come, of at most ``tokens`` from ``source``; the last step divides.

    ``lift`` is added to the largest score.
    """

    step: int = 4
    tokens: int = 23
    block: int = 4
    source: str = "real"
    lift: int = 0


@lru_cache(maxsize=64)
def row(source: str, n: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the tokens, a score [n] and a value [n, 1] for each, n at most."""
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
def _trace(source: str, n: int, block: int, lift: float) -> dict[str, Any]:
    tokens, scores, values = row(source, n)
    largest = int(scores.argmax())
    seen = scores[scores > -np.inf]
    limits = min(0, seen.min(), scores.max() + LIFTS[0]), max(0, scores.max() + LIFTS[-1])
    scores = scores + lift * (np.arange(len(scores)) == largest)  # [n]
    unit = np.eye(len(scores), dtype=np.float32)  # [n, n]   as values: the output is then the row of weights itself
    columns = np.concatenate([values, unit], 1)  # [n, 1 + n]
    state = online_softmax.identity(1, columns.shape[1])
    steps = [_step(0, 0, state, 1.0)]
    for part in tiles(len(scores), block):
        before, state = state, online_softmax.update(state, scores[None, part], columns[part])
        alpha = np.exp(before.m - np.where(state.m == -np.inf, 0, state.m))  # [1]
        added = state.l - alpha * before.l, state.O[:, 0] - alpha * before.O[:, 0]  # [1], [1]
        steps.append({**_step(part.start, part.stop, state, alpha[0]), "added": _plain([x[0] for x in added])})
    output, _ = online_softmax.finish(state)  # [1, 1 + n]
    return {
        "title": TITLES[source],
        "tokens": list(tokens),
        "scores": _plain(scores),
        "values": _plain(values[:, 0]),
        "steps": steps,
        "weights": _plain(output[0, 1:]),
        "output": _plain(output[0, :1])[0],
        "softmax": _plain(safe_softmax.safe(scores)),
        "code": CODE,
        "largest": largest,
        "limits": _plain(limits),
    }


def _step(start: int, stop: int, state: online_softmax.State, alpha: float) -> dict[str, Any]:
    """Return what is kept after ``stop`` scores, as plain data. P: e^(s - m) of these scores, not yet divided."""
    m, l, O, alpha = (_plain(part) for part in (state.m, state.l, state.O[0], [alpha]))
    return {"new": [start, stop], "m": m[0], "l": l[0], "O": O[0], "P": O[1 : 1 + stop], "alpha": alpha[0]}


def _plain(values: Iterable[float]) -> list[float | None]:
    """Return floats in seven digits, None for minus infinity."""
    return [None if value == -np.inf else float(f"{value:.7g}") for value in values]


def trace(state: State) -> dict:
    """Return the row and every step of it: ``online_softmax.update`` run block by block, then ``finish``."""
    return _trace(state.source, state.tokens, state.block, state.lift)


def count(state: State) -> int:
    """Return the number of blocks, plus one for the division."""
    return len(trace(state)["steps"])


def describe(state: State) -> str:
    """Say what came, what happened to the past, and what is kept."""
    numbers, n = trace(state), _number
    steps = numbers["steps"]
    if state.step == len(steps):
        words = f"All {steps[-1]['new'][1]} scores have come. Divide once, by ℓ = {n(steps[-1]['l'])}: "
        return f"{words}the bars are the softmax, the output is {n(numbers['output'])}."
    now, before = steps[state.step], steps[max(state.step - 1, 0)]
    if state.step == 0:
        return "No score has come: m = −∞, ℓ = 0, O = 0."
    words = f"Block {state.step} of {len(steps) - 1}: "
    if before["m"] is None:
        words += "there is no past yet. "
    elif now["alpha"] < 1:
        words += f"the maximum rises from {n(before['m'])} to {n(now['m'])}, "
        words += f"so the past shrinks by alpha = {n(now['alpha'])}. "
    else:
        words += "the maximum stays, so the past keeps its height: alpha = 1. "
    return f"{words}Kept: m = {n(now['m'])}, ℓ = {n(now['l'])}, O = {n(now['O'])}."


def _number(value: float | None) -> str:
    return "−∞" if value is None else f"{value:.4g}".replace("-", "−")


CONTROLS = {
    "step": Scrub(count),
    "source": Choose(tuple(TITLES), "scores"),
    "tokens": Slide((8, 12, 16, 23)),
    "block": Slide((1, 2, 3, 4, 6, 8), "block size"),
    "lift": Slide(LIFTS, "largest score +"),
}
explore = explorer(__name__)
