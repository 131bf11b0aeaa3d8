"""Three units of a B200's multiprocessor on a clock: products, exponentials, and everything else.

Kills two beliefs: that twice the products make attention twice as fast (at d = 64 the tensor core would be idle half of
the time), and that a polynomial replaces the exponential unit because it is faster (it works beside it, and where
products are the limit it gains nothing: the best share moves with the head dimension).

Every box is an event of ``flashlab.reference.roles``, which computes attention of a real text while its clock runs.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, line
from flashlab.course import data
from flashlab.machine.sm import Event
from flashlab.reference import roles
from flashlab.reference.next_machine import Rates

SHARES = tuple(f"{n}/16" if n else "0" for n in range(7))
WIDTHS = {"64": (64, 64), "128": (128, 128), "192, values 128": (192, 128)}
CARDS = {
    "B200": Rates(),
    "B200, exponentials of a B300": Rates(exponentials=32),
    "B200, products of an H100": Rates(flops=4096),
}
ROWS = "tensor core", "exponential unit", "vector units"  # as the simulator calls them
LANES = dict(zip(ROWS, ("products", "exponentials", "all else"), strict=True))
SHOWN, COUNTED = 103, 32  # keys per block: of the run that the clock shows (5 blocks), of the counted runs (16)
CODE = {
    "S": line(roles.multiply, "_ask_scores(pipe, w, j + 1)"),
    "PV": line(roles.multiply, "pipe.weighted"),
    "maximum": line(roles.softmax, 'Work("maximum"'),
    "weights": line(roles.softmax, 'Work("weights"'),
    "rescale": line(roles.correct, 'Work("rescale"'),
    "divide": line(roles.correct, 'Work("divide"'),
}


@dataclass(frozen=True)
class State:
    """``step`` moments have passed at which something began or ended."""

    step: int = 34
    share: str = "2/16"
    d: str = "128"
    card: str = "B200"


def design(state: State) -> roles.Design:
    """Return the design of this state."""
    d, dv = WIDTHS[state.d]
    return roles.Design(float(Fraction(state.share)), d=d, dv=dv, rates=CARDS[state.card])


@cache
def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Q [256, d], K and V [512, d] of a real text."""
    Q, K, V = data.captured("alice").head()
    return Q[:256], K, V


@lru_cache(maxsize=128)
def _run(design: roles.Design, Bc: int) -> roles.Run:
    return roles.forward(*_inputs(), design, Bc=Bc)


def run(state: State) -> roles.Run:
    """Return the run that the clock shows."""
    return _run(design(state), SHOWN)


@lru_cache(maxsize=128)
def _times(design: roles.Design) -> list[int]:
    run = _run(design, SHOWN)
    return sorted({0, run.cycles, *(time for event in run.events if event.unit in ROWS for time in event[:2])})


def times(state: State) -> list[int]:
    """Return the cycles at which something begins or ends, from 0 to the end of the last copy."""
    return _times(design(state))


def count(state: State) -> int:
    """Return the number of moments after the first."""
    return len(times(state)) - 1


def counted(state: State) -> list[dict]:
    """Return for each share how long a block takes in the steady state, and how long each unit works for it."""
    return _counted(state.d, state.card)


@lru_cache(maxsize=16)
def _counted(d: str, card: str) -> list[dict]:
    rows = []
    for share in SHARES:
        it = design(State(0, share, d, card))
        units = [sum(n * cycles for n, cycles in (it.scores, it.weighted)), it.weights[1], it.maximum + it.weights[0]]
        steady = round(_run(it, COUNTED).steady)
        rows.append({"share": share, "cycles": steady, "units": [len(roles.TILES) * cycles for cycles in units]})
    return rows


def best(state: State) -> str:
    """Return the smallest share whose time is at most half a per cent above the least time."""
    rows = counted(state)
    least = min(row["cycles"] for row in rows)
    return next(row["share"] for row in rows if row["cycles"] <= 1.005 * least)


def trace(state: State) -> dict:
    """Return the boxes of the three units, and the times with each share."""
    events = [event for event in run(state).events if event.unit in ROWS]
    return {
        "cycles": run(state).cycles,
        "times": times(state),
        "lanes": list(LANES.values()),
        "code": CODE,
        "boxes": [_box(event) for event in events],
        "shares": counted(state),
        "selected": SHARES.index(state.share),
        "best": best(state),
        "most": max(2 * sum(2 * 128 * 128 * d for d in WIDTHS["192, values 128"]) // CARDS[state.card].flops, 2200),
    }


def _box(event: Event) -> dict[str, Any]:
    place = 2 if event.by == "correct" else tile(event)
    return {
        "lane": ROWS.index(event.unit), "place": place, "start": event.start, "end": event.end,
        "kind": event.kind, "name": name(event), "words": words(event),
    }  # fmt: skip


def tile(event: Event) -> int:
    """Return which of the two tiles of queries an event of a product or a softmax belongs to."""
    return int(event.by[-1]) if event.by.startswith("softmax") else int("[1]" in event.where)


def name(event: Event) -> str:
    """Return an event's short name, such as S₃."""
    names = {"S": "S", "PV": "PV", "maximum": "m", "weights": "P"}
    return names[event.kind] + chr(0x2080 + event.j) if event.kind in names else ""


def words(event: Event) -> str:
    """Say what an event is."""
    if event.by == "correct":
        return "rescaling O" if event.kind == "rescale" else "dividing O by ℓ"
    what = {"exponential unit": "exponentials of ", "vector units": "sums for "}.get(event.unit, "")
    what = "" if event.kind == "maximum" else what
    return f"{what}{name(event)} of tile {tile(event)}"


def _verb(event: Event, first: bool) -> str:
    many = words(event).startswith(("exponentials", "sums"))
    return ("begin" if first else "end") + ("" if many else "s")


def describe(state: State) -> str:
    """Say what begins or ends at this moment, what a block takes, and which share would be best."""
    now, whole, block = times(state)[state.step], run(state), counted(state)[SHARES.index(state.share)]
    here = [e for e in whole.events if e.unit in ROWS and now in e[:2]]
    happened = [f"{words(e)} {_verb(e, e.start == now)}" for e in here][:1]
    happened = happened or ["copies come" if now == 0 else "the last copy of O ends"]
    products, exponentials, others = block["units"]
    return (
        f"Cycle {now:,} of {whole.cycles:,}: {happened[0]}. A block takes {block['cycles']:,} cycles: "
        f"{products:,} of products, {exponentials:,} of exponentials, {others:,} of all else. "
        f"The best share here is {best(state)}."
    )


CONTROLS = {
    "step": Scrub(count, "moment"),
    "share": Slide(SHARES, "share by polynomial"),
    "d": Slide(tuple(WIDTHS), "head dimension"),
    "card": Choose(tuple(CARDS)),
}

explore = explorer(__name__)
