"""One query and 132 SMs: what splitting the keys buys, what one program too many costs, and what the merge weighs.

Kills the belief that a short query keeps a large card busy, and the one that more parts are always better.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from figures.explore import explorer
from figures.figure import Caption, Scrub, Slide, Toggle, line
from figures.style import amount, digits, times
from flashlab.course import data
from flashlab.machine.hardware import CARDS
from flashlab.machine.memory import Memory
from flashlab.reference import decoding

CARD = CARDS["H200 SXM"]
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64)
GROUP, D = 8, 128
TEXT, QUERY = 512, 511  # the number of keys of the real row, and its query


@dataclass(frozen=True)
class State:
    """B texts of N keys with Hk key/value heads, split into PARTS[step] parts; ``wrong``: the merge mixes bases."""

    step: int = 0  # one part: most SMs have no work
    B: int = 1
    Hk: int = 8
    N: int = 8192
    wrong: bool = False


@cache
def _lse(S: int) -> np.ndarray:
    """Return the lse of S parts of a real row [S]. Their lengths differ by a key at most."""
    Q, K, V = data.captured("alice").head()
    parts = np.array_split(np.arange(TEXT), S)
    runs = [decoding.split(Q[None, QUERY:], K[p], V[p], len(p), 64, memory=Memory()) for p in parts]
    return np.concatenate([run.lse[:, 0, 0] for run in runs])


@cache
def _trace(B: int, Hk: int, N: int, wrong: bool) -> dict[str, Any]:
    rule = decoding.splits(B * Hk, N, slots=CARD.sms)
    parts = []
    for S in PARTS:
        plan = decoding.plan(CARD, B, Hk, N, S, g=GROUP, d=D)
        right, mixed = (decoding.weights(_lse(S), wrong=it) for it in (False, True))  # [S], [S]
        busiest = plan.programs % CARD.sms or CARD.sms  # SMs that have a program in the last wave
        parts.append(
            {
                "S": S,
                "programs": plan.programs,
                "waves": plan.waves,
                "busiest": busiest,
                "share": plan.share,
                "keys": -(-N // S),
                "us": plan.seconds * 1e6,
                "kv": amount(plan.kv_bytes),
                "parts": amount(plan.part_bytes),
                "peak": plan.kv_bytes / plan.seconds / CARD.dram_rate,
                "weights": [float(f"{weight:.4g}") for weight in (mixed if wrong else right)],
                "right": [float(f"{weight:.4g}") for weight in right],
                "heaviest": float(max(right.max(), mixed.max())),
            }
        )
    code = line(decoding.weights, "np.exp(lse_s - lse)")
    return {"sms": CARD.sms, "N": N, "B": B, "Hk": Hk, "rule": rule, "wrong": wrong, "parts": parts, "code": code}


def trace(state: State) -> dict:
    """Return for each number of parts the programs, their waves and time, and the weights of a real row's parts.

    ``busiest``: the number of SMs that have a program in every wave, the others have one less; ``peak``: the share of
    the card's bandwidth at which K and V are read, over the whole time; ``rule``: the number of parts by the rule;
    ``right``: the weights in the right base; ``heaviest``: the largest weight in either base.
    """
    return _trace(state.B, state.Hk, state.N, state.wrong)


def describe(state: State) -> Caption:
    """Say how many programs run in how many waves, the time, and what the largest part weighs."""
    numbers = trace(state)
    part = numbers["parts"][state.step]
    weight, us = f"{100 * np.max(part['weights']):.3g}%", f"{float(digits(part['us'], 3)):,g}"
    return Caption(
        f"[{times(state.B, 'text')}](B) of [{state.N:,} keys](N) in [{times(part['S'], 'part')}](step): "
        f"{times(part['programs'], 'program')} on {CARD.sms} SMs, {times(part['waves'], 'wave')}, "
        f"{100 * part['share']:.0f}% of their time used, {us} µs, {part['parts']} for parts. "
        f"The heaviest of a real row's parts weighs {weight}{', by the wrong base' if state.wrong else ''}."
    )


CONTROLS = {
    "step": Scrub(lambda state: len(PARTS) - 1, "parts", [times(S, "part") for S in PARTS]),
    "B": Slide((1, 4, 16, 64), "texts B"),
    "Hk": Slide((1, 8, 32), "key/value heads"),
    "N": Slide((1024, 8192, 131072), "keys N"),
    "wrong": Toggle("lse of the wrong base"),
}
explore = explorer(__name__)
