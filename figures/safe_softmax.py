"""Three dtypes, one row of scores, and the number that is subtracted before exp.

Kills three beliefs: that only too large scores are dangerous (subtract too much and it is 0 / 0), that it has to be the
maximum (a wide band of numbers will do), and that an overflow always shows as inf or NaN (it can be a row of zeros).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, line
from flashlab.reference import safe_softmax

DTYPES = ("float16", "bfloat16", "float32")
TOP, COUNT = 100, 8  # the largest score, and how many there are
SHIFTS, SPREADS = range(221), (0, 2, 7, 14, 35, 63)
CODE = {
    "e": line(safe_softmax.shifted, "e = "),
    "l": line(safe_softmax.shifted, "l = "),
    "P": line(safe_softmax.shifted, "return "),
}


@dataclass(frozen=True)
class State:
    """``shift`` is subtracted from scores between 100 - ``spread`` and 100."""

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
    outcome: list[str]  # [shifts]


@lru_cache(maxsize=64)
def row(dtype: str, spread: float) -> Row:
    """Return the row at every shift, by ``safe_softmax.shifted`` in this dtype. All three hold the scores exactly."""
    scores = np.round(2 * np.linspace(TOP - spread, TOP, COUNT)) / 2  # [n]
    x = torch.tensor(scores, dtype=getattr(torch, dtype))
    shifts = torch.tensor(SHIFTS, dtype=x.dtype)[:, None]  # [shifts, 1]
    e, l, P = (part.double().numpy() for part in safe_softmax.shifted(x, shifts))
    exact, eps = safe_softmax.safe(scores), torch.finfo(x.dtype).eps
    outcome = [_outcome(*parts, exact, eps) for parts in zip(e, l[:, 0], P, strict=True)]
    return Row(scores, exact, e, l[:, 0], P, outcome)


def _outcome(e: np.ndarray, l: float, P: np.ndarray, exact: np.ndarray, eps: float) -> str:
    if np.isinf(e).any():
        return "NaN: ∞ / ∞"
    if np.isinf(l):
        return "zeros: 1 / ∞"
    if l == 0:
        return "NaN: 0 / 0"
    return "right" if (np.abs(P - exact) <= 2 * eps).all() else "digits lost"


def window(dtype: str) -> safe_softmax.Window:
    """Return where exp leaves the dtype: 0 below the first, subnormal below the second, inf above the third."""
    return safe_softmax.window(torch.finfo(getattr(torch, dtype)))


def trace(state: State) -> dict:
    """Return the row in all three dtypes at all shifts; e, l and P in that of the state."""
    own = row(state.dtype, state.spread)
    return {
        "scores": _plain(own.scores),
        "exact": _plain(own.exact),
        "lanes": [_lane(dtype, row(dtype, state.spread)) for dtype in DTYPES],
        "e": [_plain(e) for e in own.e],
        "l": _plain(own.l),
        "P": [_plain(P) for P in own.P],
        "outcome": own.outcome,
        "code": CODE,
    }


def _lane(dtype: str, row: Row) -> dict[str, Any]:
    """Return a dtype's window, what exp gives of each score at each shift (a letter), and the outcomes in stretches."""
    normal = torch.finfo(getattr(torch, dtype)).tiny
    kinds = np.select([row.e == np.inf, row.e >= normal, row.e > 0], ["i", "n", "s"], "0")  # [shifts, n]
    stretches = [(name, [at for at, _ in group]) for name, group in groupby(enumerate(row.outcome), lambda one: one[1])]
    return {
        "dtype": dtype,
        "window": window(dtype)._asdict(),
        "kinds": ["".join(kind) for kind in kinds],
        "outcomes": [{"name": name, "first": at[0], "last": at[-1]} for name, at in stretches],
    }


def _plain(values: np.ndarray) -> list[float | str]:
    """Return numbers in four digits, and NaN and inf as words."""
    return [float(f"{x:.4g}") if np.isfinite(x) else "NaN" if np.isnan(x) else "∞" for x in values]


def describe(state: State) -> str:
    """Say what exp and its sum make of the scores in the chosen dtype, and which shifts work."""
    now = row(state.dtype, state.spread)
    zero, _, inf = window(state.dtype)
    low, high = now.scores[[0, -1]] - state.shift
    right = [shift for shift, outcome in zip(SHIFTS, now.outcome, strict=True) if outcome == "right"]
    exponents = f"exponents from {_number(low)} to {_number(high)}" if low < high else f"all exponents {_number(low)}"
    return (
        f"{state.dtype}, shift {state.shift}: {exponents}; exp is 0 below {_number(zero)}, ∞ above {_number(inf)}. "
        f"Sum {_number(now.l[state.shift])}. Result: {now.outcome[state.shift]}. "
        f"Right for shifts from {right[0]} to {right[-1]}."
    )


def _number(value: float) -> str:
    return "∞" if value == np.inf else f"{value:.4g}".replace("e-0", "e-").replace("-", "−")


CONTROLS = {
    "shift": Scrub(lambda state: SHIFTS[-1], "shift", [f"shift {shift}" for shift in SHIFTS]),
    "dtype": Choose(DTYPES),
    "spread": Slide(SPREADS, "spread of scores"),
}

explore = explorer(__name__)
