"""The tables of launches: rows of ``portable.json`` and ``hopper.json``, with how and when they were measured."""

import json
from importlib import resources
from typing import NamedTuple

from flashlab.kernels import masks
from flashlab.kernels.problem import Problem

PORTABLE = "forward", "key_value_gradients", "query_gradients"  # the kernels that multiply tiles
HALVES = "key_gradients", "value_gradients"  # these two may replace "key_value_gradients"
STREAM_KEYS = "forward", "query_gradients"  # all others stream queries
EXTRAS = "window", "rule", "score", "dropout"  # a window neither full nor causal, any other mask, ...
OF_KEYS = "backward", "key_value_gradients", *HALVES  # the kernels that compute dK and dV
TWO_PASSES = "key_value_gradients", "query_gradients"  # on Hopper, these two may replace "backward"
HOPPER = "forward", "forward_float8", "backward", *TWO_PASSES


class Row(NamedTuple):
    """A launch, and the conditions of its use. A condition that is None always holds."""

    kernel: str
    width: int  # columns of a tile: exactly these if measured, otherwise at most these
    Br: int
    Bc: int
    warps: int
    stages: int
    causal: bool | None = None  # True: any mask but the full one
    extras: list[str] | None = None  # a problem has at most these of ``EXTRAS``, which take registers; None: any
    N_from: int = 0  # fewest keys
    whole_tiles: bool = False  # Bc divides the keys: a tile that reaches past their end takes more registers
    products: str | None = None  # "tensor" by tensor cores, "plain" without
    bytes: int | None = None  # per element
    major: int | None = None  # compute capability
    pace: float = 1.0  # time per row and key where all multiprocessors are busy, relative to other rows
    width_v: int | None = None  # most columns of V
    sectors: bool | None = None  # whether the rows of heads are whole sectors of memory, 32 bytes
    least: float = 0  # the least work (``configurations.WORK``) with which this is faster than the portable kernels

    @property
    def launch(self):
        """The tiles, warps and stages of the row."""
        return self.Br, self.Bc, self.warps, self.stages

    def takes(self, problem):
        """Return whether the row is for a problem with these extras and heads of this size."""
        sectors = problem.d * problem.dtype.itemsize % 32 == 0
        fits = self.sectors in (None, sectors) and problem.dv <= (self.width_v or problem.dv)
        return fits and (self.extras is None or extras(problem) <= set(self.extras))


class Table(NamedTuple):
    """Rows, and their origin. A measured table holds for one card, and names it."""

    how: str
    rows: tuple[Row, ...]
    device: str = ""
    capability: tuple[int, int] = (0, 0)
    driver: str = ""
    torch: str = ""
    triton: str = ""
    date: str = ""
    dtypes: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()  # versions of Triton that compile the kernels
    columns: int = 0  # of heads: with fewer, the kernels gain nothing

    def found(self, row):
        """Return where and when a row was measured."""
        keys = f" for {row.N_from:,} keys or more" if row.N_from else ""
        return f"chosen by measurement{keys} on {self.device}, {self.date}"


def table_of(values: dict, kernels: tuple[str, ...]) -> Table:
    """Return the checked table of a JSON object.

    Raises:
        TypeError, ValueError: an unknown or missing field, or a row that cannot be a launch of one of ``kernels``.
    """
    rows = tuple(Row(**row) for row in values["rows"])
    for row in rows:
        sizes = (row.width, row.Br, row.Bc)
        if row.kernel not in kernels or any(size < 16 or size % 16 for size in sizes):
            raise ValueError(f"expected a kernel of {kernels} and sizes that are multiples of 16, got {row}")
        if not set(row.extras or ()) <= set(EXTRAS):
            raise ValueError(f"expected extras out of {EXTRAS}, got {row}")
        if row.warps not in (4, 8, 12, 16) or not 1 <= row.stages <= 4 or row.products not in (None, "tensor", "plain"):
            raise ValueError(f"expected 4 to 16 warps, 1 to 4 stages, tensor or plain products, got {row}")
    table = Table(**{**values, "rows": rows})
    return table._replace(capability=tuple(table.capability))


def _read(name):
    return json.loads(resources.files("flashlab.kernels").joinpath(name).read_text(encoding="utf-8"))


def extras(problem: Problem) -> set[str]:
    """Return which of ``EXTRAS`` a problem has."""
    window = problem.mask not in ("rule", masks.full(), masks.causal())
    has = window, problem.mask == "rule", problem.score is not None, problem.dropout is not None
    return {name for name, it in zip(EXTRAS, has, strict=True) if it}


MEASURED = tuple(table_of(values, PORTABLE + HALVES) for values in _read("portable.json")["measured"])
UNMEASURED = table_of(_read("portable.json")["unmeasured"], PORTABLE)
ON_HOPPER = table_of(_read("hopper.json"), HOPPER)
