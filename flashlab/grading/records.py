"""Records of a run, and their text: how the process of a check sends its results to the notebook.

Each record is one line of JSON, with the bytes of arrays in base64. Reading a line builds numbers, texts, arrays,
tuples and ``RECORDS``. It runs no code of the sender, which unpickling would.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flashlab.grading.exercise import Broken

PRINTED = 2000  # characters kept of the output of one value


class Leaf(NamedTuple):
    """One result. ``kind``: "array" (of numpy or torch) or "number", or in words what else it is."""

    kind: str
    value: np.ndarray | None


class Outcome(NamedTuple):
    """The record of a function's run with the arguments of a case: plain data."""

    leaves: tuple[Leaf, ...] = ()
    fields: tuple[str, ...] = ()  # names of the results, if they have names
    whole: str = ""  # what was returned, in words
    error: str = ""  # what it raised
    where: str = ""  # the learner's line that raised it
    changed: bool = False  # whether it changed its inputs
    broke: Broken | None = None  # the law that it broke
    missing: bool = False  # whether it is a stub


class Expected(NamedTuple):
    """The reference's answer to a case: in the dtype of the inputs, in float64, and how much it changes by
    roundings of the inputs, or on the way."""

    rounded: Outcome
    exact: tuple[np.ndarray, ...]
    sways: tuple[float, ...]


@dataclass
class Run:
    """The values that work yielded, and its end."""

    values: list = field(default_factory=list)
    printed: list[str] = field(default_factory=lambda: [""])  # before each value, and after the last
    # "" if it finished, "patience" if that ended first, "memory" if the machine ran out of it, "killed" if SIGKILL came
    # from an unknown sender, or in words how its process ended
    end: str | None = None
    seconds: float = 0.0  # of computing; ``in_place``, by the clock on the wall
    waited: float = 0.0  # seconds by the clock on the wall


RECORDS = {it.__name__: it for it in (Broken, Expected, Leaf, Outcome)}


def dump(value):
    """Return a value as one line. It consists of None, numbers, texts, arrays, tuples and ``RECORDS``."""
    return json.dumps(_plain(value)).encode() + b"\n"


def load(line):
    """Return the value of a line of ``dump``. Raises ValueError for any other line."""
    try:
        return json.loads(line, object_hook=_built)
    except Exception as error:
        raise ValueError("the results cannot be read: something else was written between them") from error


def _plain(value):
    if isinstance(value, np.ndarray):
        return {"array": [value.dtype.str, value.shape, b64encode(value.tobytes()).decode()]}
    if isinstance(value, tuple):
        return {type(value).__name__: [_plain(part) for part in value]}
    return value


def _built(found):
    ((kind, parts),) = found.items()
    if kind == "array":
        return _array(*parts)
    return tuple(parts) if kind == "tuple" else RECORDS[kind](*parts)


def _array(dtype, shape, data):
    if np.dtype(dtype).kind not in "biufc":
        raise ValueError(f"expected an array of numbers, got {dtype}")
    return np.ndarray(shape, dtype, b64decode(data))
