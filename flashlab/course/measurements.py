"""Read the measurements of the files in ``READERS`` into one table: the time of a call by a version of attention.

Files of one format share a reader. Rows of one file and one call are a cell: they were timed in turns, so only
they can be compared with each other. A row is ``outdated`` if its kernel has changed since the measurement.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

from flashlab.course import data
from flashlab.course.versions import BY_NAME, Call, check_choice
from flashlab.machine.arguments import shown
from flashlab.machine.hardware import CARDS

PORTABLE, HOPPER = "flashlab portable", "flashlab Hopper"
DECODING, FLOAT8 = "flashlab decoding", "flashlab float8"
NAMES = {  # of versions, by their names in the files
    "flashlab": "flashlab", "portable": PORTABLE, "hopper": HOPPER, "float8": FLOAT8,
    "cudnn": "SDPA cuDNN", "flash": "SDPA FlashAttention-2", "fa2": "SDPA FlashAttention-2", "flex": "FlexAttention",
    "fa3": "FlashAttention-3", "fa4": "FlashAttention-4",
}  # fmt: skip
DISTRIBUTED = {
    "zigzag": "flashlab zigzag ring", "contiguous": "flashlab contiguous ring",
    "striped": "flashlab striped ring", "gather": "flashlab gather", "all-to-all": "flashlab all-to-all",
    "torch cudnn": "context_parallel cuDNN",
    "torch cudnn alltoall": "context_parallel cuDNN all-to-all",
    "torch flash": "context_parallel FlashAttention-2",
}  # fmt: skip
CACHES = {"int8": "int8 cache", "e4m3": "float8 cache", "float16": "float16"}
TOKENS, WIDTH = 16384, 2048  # B * N and H * d of the calls that ``read_turns`` reads


class Row(NamedTuple):
    """A measurement: the time of the GPU for a call by a version."""

    call: Call
    version: str
    us: float
    device: str
    date: str
    host_us: float | None = None  # the time of the call in Python, if it was measured
    file: str = ""  # its name in notebooks/data, without .json; the file has the command and the versions of software

    @property
    def outdated(self) -> bool:
        """Return whether the kernel has changed since the measurement. Rivals are releases, which do not change."""
        return self.date < since(self.version)


def since(version: str) -> str:
    """Return the day on which the kernels of a version changed last; "" for a rival."""
    check_choice("version", version, (*BY_NAME, *DISTRIBUTED.values()))
    if version not in BY_NAME:  # for several GPUs, each of which runs the kernels of a version for one GPU
        version = HOPPER if version.startswith("flashlab") else "SDPA cuDNN"
    return BY_NAME[version].since


@cache
def card_of(name: str | None) -> str | None:
    """Return a card's short name: "H200" of "NVIDIA H200" and of "H200 SXM"; another name as it is."""
    found = name and re.search(r"RTX \d+|[A-Z]+\d+", name)
    return found[0] if found else name


def capability_of(card: str) -> tuple[int, int] | None:
    """Return the compute capability of a card of ``hardware.CARDS``, found by its ``card_of``; None if unknown."""
    found = next((it for name, it in CARDS.items() if card_of(name) == card_of(card)), None)
    return found and tuple(int(number) for number in found.capability.split("."))


def check_card(call: Call) -> None:
    """Raise TypeError or ValueError for a card that does not exist, or for another compute capability than the card's.

    A card is one of ``hardware.CARDS``, found by its ``card_of``, or any other under the name that its driver has for
    it, which begins with NVIDIA. Without a GPU, both card and capability are None.
    """
    if not isinstance(call.card, str | None):
        raise TypeError(f"card must be the name of a card or None, got {shown(call.card)}")
    expected = None if call.card is None else capability_of(call.card)
    if expected is None and call.card is not None:
        names = ", ".join(CARDS)
        if not call.card.startswith("NVIDIA "):
            raise ValueError(
                f"card must be one of {names}, a name that begins with NVIDIA, or None, got {shown(call.card)}"
            )
        if not _is_capability(call.capability):
            raise ValueError(
                f"the capability of a card must be two whole numbers, such as (9, 0), got {shown(call.capability)}"
            )
    elif call.capability != expected:
        raise ValueError(f"the capability of the card {call.card} is {expected}, got {shown(call.capability)}")


def _is_capability(it):
    return isinstance(it, tuple) and len(it) == 2 and all(type(number) is int and number >= 0 for number in it)


# A reader for each format. It yields the call, the version, the row, and its microseconds.

Reader = Callable[[dict], Iterator[tuple[Call, str, dict, float]]]


def read_turns(report: dict) -> Iterator[tuple[Call, str, dict, float]]:
    """Read the rows of ``flashlab.bench``, and of its ``hopper``, ``masks`` and ``float8``.

    Rows of the lessons' kernels are skipped.
    """
    for row in report["rows"]:
        N, d, H = row["N"], row["d"], WIDTH // row["d"]
        mask = row.get("kind", "causal" if row["causal"] else "full")
        window = report["window"] - 1 if mask == "window" else None
        call = Call(max(TOKENS // N, 1), H, N, d, N, H, mask=mask, direction=row["pass"], window=window)
        if row["impl"] in NAMES:
            dtype = "float8" if row["impl"] == "float8" else "bfloat16"
            yield call._replace(dtype=dtype), NAMES[row["impl"]], row, 1e3 * row["ms"]


def read_columns(report: dict) -> Iterator[tuple[Call, str, dict, float]]:
    """Read the rows of ``flashlab.bench.choice``: a call each, with a column for each version."""
    for row in report["rows"]:
        mask = "causal" if row["causal"] else "full"
        call = Call(row["B"], row["H"], row["N"], row["d"], row["N"], row["Hk"], mask=mask, direction=row["pass"])
        yield from ((call, NAMES[name], row, row[name]) for name in NAMES if name in row)


def read_decoding(report: dict) -> Iterator[tuple[Call, str, dict, float]]:
    """Read steps of decoding with a cache of 16 or 8 bits, or of latents.

    Rows with pages or prefixes are skipped: no ``Call`` describes them.
    """
    for row in report["rows"]:
        name, dtype = NAMES.get(row["impl"]), "bfloat16"
        if row["part"] == "8 bits" and row["impl"] in CACHES:
            name, dtype = "flashlab", CACHES[row["impl"]]
        widths = {"d": 576, "dv": 512} if row["part"] == "latent" else {"d": 128}
        if row["part"] in ("plain", "8 bits", "latent") and name:
            call = Call(row["B"], row["H"], 1, Nk=row["N"], Hk=row.get("Hk", 1), dtype=dtype, **widths)
            yield call, DECODING if name == "flashlab" else name, row, row["us"]


def read_ring(report: dict, groups: list[int]) -> Iterator[tuple[Call, str, dict, float]]:
    """Read the rows of ``flashlab.bench.ring`` on these numbers of GPUs."""
    H, Hk, d = report["H"], report["Hk"], report["d"]
    for row in report["rows"]:
        if row["variant"] in DISTRIBUTED and row["P"] in groups:
            N = row["P"] * row["tokens"]
            call = Call(1, H, N, d, N, Hk, mask="causal", direction=row["direction"], gpus=row["P"])
            yield call, DISTRIBUTED[row["variant"]], row, 1e3 * row["ms"]


def read_models(report: dict) -> Iterator[tuple[Call, str, dict, float]]:
    """Read the rows of ``flashlab.bench.models``. ``host_us`` is the time in Python, for which the GPU may wait."""
    for row in report["rows"]:
        features = {"window": row["window"] is not None, "softcap": row["cap"], "sinks": row["sinks"]}
        plain = "causal" if row["causal"] and row["Nq"] > 1 else "full"
        mask = " and ".join(name for name, present in features.items() if present) or plain
        shape = {name: row[name] for name in ("B", "H", "Nq", "d", "Nk", "Hk", "window")}
        call = Call(**shape, dv=row["dv"] if row["dv"] != row["d"] else None, mask=mask)
        call = call._replace(direction="forward" if row["pass"] == "decode" else row["pass"])
        decoding = row["pass"] == "decode" and row["impl"] == "flashlab"
        yield call, DECODING if decoding else NAMES[row["impl"]], row, row["gpu_us"]


def read_training(report: dict) -> Iterator[tuple[Call, str, dict, float]]:
    """Read the one step of training of ``flashlab.bench.recomputation``."""
    it = report["configuration"]
    call = Call(it["B"], it["H"], it["N"], it["d"], it["N"], it["H"], it["dtype"], "dropout", "both")
    yield call, NAMES["flash"], {}, 1e3 * report["flash"]["ms"]


READERS: dict[str, Reader] = {  # if two have a call, measured on the same day, ``which`` takes the later in this list
    "h200_recomputation": read_training, "h200_attention": read_turns, "h200_choice": read_columns,
    "h200_float8": read_turns, "h200_float8_hopper_causal": read_turns, "h200_float8_hopper": read_turns,
    "h200_ring_before": partial(read_ring, groups=[4]), "h200_ring": partial(read_ring, groups=[1, 2]),
    "h200_decoding": read_decoding, "h200_masks": read_turns, "h200_wide": read_turns, "h200_hopper": read_turns,
    "models": read_models,
}  # fmt: skip


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows of the readers, and for each call with both passes their sum, with the date of the older one."""
    return tuple(row for file in READERS for row in _of(file))


def _of(file):
    report, found = data.measured(file), {}
    about = report.get("about", report)
    for call, version, row, us in READERS[file](report):
        device = row.get("card", about["device"])
        call = call._replace(card=card_of(device), capability=capability_of(device))
        date = row.get("date", about["date"])  # a file may have rows of several days
        found.setdefault((call, version), Row(call, version, us, device, date, row.get("host_us"), file))
    for (call, version), backward in list(found.items()):
        forward = found.get((call._replace(direction="forward"), version))
        if call.direction == "backward" and forward is not None:
            host = None if None in (forward.host_us, backward.host_us) else forward.host_us + backward.host_us
            both, date = call._replace(direction="both"), min(forward.date, backward.date)
            found[both, version] = Row(both, version, forward.us + backward.us, backward.device, date, host, file)
    return found.values()


@cache
def cells() -> tuple[tuple[Row, ...], ...]:
    """Return the cells: the rows of one file and one call, fastest first."""
    gathered: dict[tuple, list[Row]] = {}
    for row in rows():
        gathered.setdefault((row.file, row.call), []).append(row)
    return tuple(tuple(sorted(cell, key=lambda row: row.us)) for cell in gathered.values())
