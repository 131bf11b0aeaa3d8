"""A ring of P processors, step by step, in three placements: whose keys are where, who computes, who waits.

Kills two beliefs: that dividing the tokens evenly divides the work (under a causal mask contiguous stretches leave
almost half of the processors' time idle), and that a better placement sends more (all three send the same bytes).

The events are recorded in runs of ``reference.ring``; tests compare them with those of real processes.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Scrub, Slide, Toggle
from flashlab.machine import ranks
from flashlab.reference import masks, ring

N, D = 96, 8  # tokens, which 2 P divides for every P below, and columns


@dataclass(frozen=True)
class State:
    """Step ``step`` of a ring of P processors."""

    step: int = 4
    P: int = 8
    causal: bool = True


@lru_cache(maxsize=16)
def _trace(P: int, causal: bool) -> dict[str, Any]:
    X = np.ones((N, D), np.float32)
    runs = []
    for name in ranks.PLACEMENTS:
        placement, events = ranks.placement_of(name, N, P), []
        ring.forward(X, X, X, placement, mask=masks.causal() if causal else None, events=events)
        runs.append({"name": name, "tokens": _tokens(placement, P), "steps": _steps(events, P)} | _sums(events, P))
    whole = N * (N + 1) // 2 if causal else N * N
    return {"P": P, "N": N, "block": (N // P) ** 2, "ideal": whole / P, "runs": runs}


def _tokens(placement: tuple[ranks.Runs, ...], P: int) -> list[int]:
    """Return the owners of 2 P neighbouring places: of the 2 P stretches, or of the first 2 P tokens if striped."""
    owner = {position: rank for rank, runs in enumerate(placement) for run in runs for position in run}
    stride = 1 if placement[0][0].step > 1 else N // (2 * P)
    return [owner[place * stride] for place in range(2 * P)]


def _steps(events: list[ring.Event], P: int) -> list[list[dict]]:
    """Return, for each step, what each rank does: whose keys it has, scores it computes, bytes it sends."""
    steps = [[{"owner": 0, "scores": 0, "sent": 0} for _ in range(P)] for _ in range(P)]
    for event in events:
        place = steps[event.step][event.rank]
        place["owner"] = event.owner
        place["scores" if event.kind == "compute" else "sent"] = event.amount
    return steps


def _sums(events: list[ring.Event], P: int) -> dict[str, int]:
    """Return how long all steps take together, in scores, if in each step all processors wait for the slowest."""
    most = [0] * P
    for event in events:
        if event.kind == "compute":
            most[event.step] = max(most[event.step], event.amount)
    return {"makespan": sum(most)}


def trace(state: State) -> dict:
    """Return the three runs, step by step."""
    return _trace(state.P, state.causal)


def describe(state: State) -> str:
    """Say how much of the processors' time was idle so far, and what each has sent."""
    numbers = trace(state)
    idle = ", ".join(f"{run['name']} {_idle(run, state.step):.0%}" for run in numbers["runs"])
    sent = sum(step[0]["sent"] for step in numbers["runs"][0]["steps"][: state.step])
    mask = "causal mask" if state.causal else "no mask"
    return f"{state.P} processors, {mask}, step {state.step}. Idle so far: {idle}. Each has sent {style.amount(sent)}."


def _idle(run: dict, step: int) -> float:
    steps = run["steps"][: step + 1]
    time = sum(max(rank["scores"] for rank in step) for step in steps)
    work = sum(rank["scores"] for step in steps for rank in step)
    return 1 - work / (time * len(steps[0])) if time else 0.0


CONTROLS = {
    "step": Scrub(lambda state: state.P - 1),
    "P": Slide((2, 3, 4, 6, 8), "processors P"),
    "causal": Toggle("causal mask"),
}
explore = explorer(__name__)
