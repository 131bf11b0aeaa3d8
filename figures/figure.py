"""What a figure declares: its controls, and from them every state that a reader can reach.

Nothing here draws or knows of widgets, so the states can be enumerated anywhere: by a test, by a page builder.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from typing import Any


@dataclass(frozen=True)
class Scrub:
    """A clock over the steps 0 ... steps(state), which readers move or let run. says: a name for each step."""

    steps: Callable[[Any], int]
    label: str = "step"
    says: Sequence[str] = ()
    kind = "clock"


@dataclass(frozen=True)
class Slide:
    """A slider over the given values, in their order. idle(state): the reason if it has no effect there, or ""."""

    values: Sequence
    label: str = ""
    idle: Callable[[Any], str] = lambda state: ""
    kind = "slide"


@dataclass(frozen=True)
class Choose:
    """A menu of the given values."""

    values: Sequence
    label: str = ""
    kind = "choose"


@dataclass(frozen=True)
class Toggle:
    """On or off."""

    label: str = ""
    values: Sequence = (False, True)
    kind = "toggle"


class Caption(str):
    """The words of a figure, with handles to pull: [128 keys](N) in the template is a handle of the control N.

    The string itself has the words alone, "128 keys".
    """

    template: str

    def __new__(cls, template: str) -> "Caption":
        """Return the words alone. The attribute ``template`` keeps the handles."""
        caption = super().__new__(cls, re.sub(r"\[([^]]*)\]\(\w+\)", r"\1", template))
        caption.template = template
        return caption


def states(figure: Any) -> Iterator:
    """Yield every state that the controls of a figure can reach, each at step 0 of its clock if it has one.

    figure: a module of ``figures`` with ``State`` and ``CONTROLS``.
    """
    choices = [(0,) if isinstance(control, Scrub) else control.values for control in figure.CONTROLS.values()]
    for values in product(*choices):
        yield replace(figure.State(), **dict(zip(figure.CONTROLS, values, strict=True)))


def steps(figure: Any, state: Any) -> Iterator:
    """Yield the state at each step of its clock; the state alone if the figure has no clock."""
    clock = next((field for field, control in figure.CONTROLS.items() if isinstance(control, Scrub)), None)
    if clock is None:
        yield state
    else:
        for step in range(figure.CONTROLS[clock].steps(state) + 1):
            yield replace(state, **{clock: step})


def declared(figure: Any) -> list[dict]:
    """Return the controls of a figure as plain data, for the page."""
    return [
        {"field": field, "kind": control.kind, "label": control.label or field}
        | ({"says": list(control.says)} if isinstance(control, Scrub) else {"values": list(control.values)})
        for field, control in figure.CONTROLS.items()
    ]


def key(figure: Any, state: Any) -> str:
    """Return the name under which the page keeps the numbers of a state: all its fields but the clock."""
    fields = asdict(state)
    values = [fields[field] for field, control in figure.CONTROLS.items() if not isinstance(control, Scrub)]
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def numbers(figure: Any, state: Any) -> dict:
    """Return what the page needs to draw a state at every step: its trace, words with handles, and idle controls."""
    slides = {field: control for field, control in figure.CONTROLS.items() if isinstance(control, Slide)}
    return {
        "trace": figure.trace(state),
        "words": [getattr(words, "template", words) for words in map(figure.describe, steps(figure, state))],
        "idle": {field: why for field, slide in slides.items() if (why := slide.idle(state))},
    }


@cache
def line(function: Callable, fragment: str) -> str:
    """Return the line of a function that holds the fragment, for a tip. Raises LookupError if there is none."""
    for text in inspect.getsource(function).splitlines():
        if fragment in text:
            return text.split("  #")[0].strip()
    raise LookupError(f"{function.__name__} has no line with {fragment!r}")
