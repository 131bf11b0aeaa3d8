"""Which version of attention to call for a shape: looked up in the stored measurements, never guessed.

``rows`` reads what was measured. Rows of one run and one call are a cell: only they were timed in turns. ``which``
answers for any call: with the fastest version of its cell; where only lengths, heads or widths differ, with that of the
nearest cell; for a card on which nothing was measured, with what others published; and otherwise with the versions that
can compute it and the nearest cell, without a choice. ``python -m flashlab.course.doctor`` asks it for this machine.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple

from flashlab.course import data
from flashlab.course.versions import BY_NAME, FEW, HALVES, PLAIN, VERSIONS, Call, Limit, against
from flashlab.machine.hardware import CARDS


class Row(NamedTuple):
    """A measurement: how long a version took for a call."""

    call: Call
    version: str
    us: float
    file: str  # in notebooks/data, without its suffix; it holds versions and command
    device: str
    date: str


class Published(NamedTuple):
    """What others have published of a card on which nothing was measured here."""

    card: str
    version: str
    direction: str
    dtypes: tuple[str, ...]
    says: str
    source: str


class Answer(NamedTuple):
    """A version, and what the choice rests on."""

    call: Call
    version: str | None  # None: nothing that was measured or published says which
    cell: tuple[Row, ...]  # the nearest measurements, of versions that can compute the call, fastest first
    differs: tuple[str, ...]  # how the cell differs from the call; nothing if exactly this was measured
    published: Published | None  # what it rests on instead, for a card without measurements
    able: tuple[str, ...]  # all versions that can compute the call
    refused: dict[str, Limit]  # those that cannot, each with its first limit

    @property
    def measured(self) -> bool:
        """Whether exactly this call was measured."""
        return bool(self.cell) and not self.differs

    @property
    def ties(self) -> tuple[str, ...]:
        """Return the versions that were as fast as the fastest, but for ``TIE``."""
        return tuple(row.version for row in self.cell[1:] if row.us <= TIE * self.cell[0].us)

    @property
    def because(self) -> str:
        """Return the reason, as the end of a sentence."""
        if self.published:
            return f"nothing was measured here on this card, and {self.published.says} ({self.published.source})"
        if not self.cell:
            return "nothing like it was measured"
        if self.measured:
            return f"it was the fastest: {_times(self.cell)}"
        return f"this was not measured; the nearest was, with {', '.join(self.differs)}: {_times(self.cell)}"


def _times(cell):
    (best, *others), gpus = cell, cell[0].call.gpus
    then = f"; {', '.join(f'{row.version} {row.us:,.0f}' for row in others)}" if others else ", the only one timed"
    return f"{best.version} {best.us:,.0f} µs{then} ({gpus} {best.device}, {best.date}, {best.file}.json)"


TIE = 1.03  # rounds of one run differ by up to some 2 %


# What was measured

PORTABLE, HOPPER, DECODING = "flashlab portable", "flashlab Hopper", "flashlab decoding"
NAMES = {
    "portable": PORTABLE, "hopper": HOPPER, "flashlab": DECODING, "cudnn": "SDPA cuDNN",
    "flash": "SDPA FlashAttention-2", "flex": "FlexAttention", "fa4": "FlashAttention-4",
}  # fmt: skip
TOKENS, WIDTH = 16384, 2048  # of the round robins: B N, and H d
ITEMS = {"int8": "int8 cache", "e4m3": "float8 cache", "float16": "float16"}
DISTRIBUTED = {
    "zigzag": "flashlab zigzag ring", "contiguous": "flashlab contiguous ring",
    "striped": "flashlab striped ring", "gather": "flashlab gather", "all-to-all": "flashlab all-to-all",
    "torch cudnn": "context_parallel cuDNN",
    "torch cudnn alltoall": "context_parallel cuDNN all-to-all",
    "torch flash": "context_parallel FlashAttention-2",
}  # fmt: skip


def _date(report, row):
    return row.get("date", report["date"])  # a file may have rows of several days


def _round_robin(report):
    for row in report["rows"]:
        if row["impl"] in NAMES:  # the others are rungs
            N, d, H = row["N"], row["d"], WIDTH // row["d"]
            mask = row.get("kind", "causal" if row["causal"] else "full")
            call = Call(max(TOKENS // N, 1), H, N, d, N, H, mask=mask, direction=row["pass"])
            yield call, NAMES[row["impl"]], 1e3 * row["ms"], _date(report, row)


def _decoding(report):
    for row in report["rows"]:
        name, dtype = NAMES.get(row["impl"]), "bfloat16"
        if row["part"] == "8 bits" and row["impl"] in ITEMS:
            name, dtype = DECODING, ITEMS[row["impl"]]
        if row["part"] in ("plain", "8 bits") and name:
            call = Call(row["B"], row["H"], 1, 128, row["N"], row["Hk"], dtype=dtype)
            yield call, name, row["us"], _date(report, row)


def _ring(report, groups):
    H, Hk, d = report["H"], report["Hk"], report["d"]
    for row in report["rows"]:
        if row["variant"] in DISTRIBUTED and row["P"] in groups:
            N = row["P"] * row["tokens"]
            call = Call(1, H, N, d, N, Hk, mask="causal", direction=row["direction"], gpus=row["P"])
            yield call, DISTRIBUTED[row["variant"]], 1e3 * row["ms"], _date(report, row)


READERS: dict[str, Callable[[dict], Iterator[tuple[Call, str, float, str]]]] = {
    "h200_attention": _round_robin, "h200_hopper": _round_robin, "h200_masks": _round_robin,
    "h200_decoding": _decoding,
    "h200_ring_before": partial(_ring, groups=[4]), "h200_ring": partial(_ring, groups=[1, 2]),  # the later one of each
}  # fmt: skip


@cache
def rows() -> tuple[Row, ...]:
    """Return every stored measurement of a version; those of training are the sums of its two passes, with the date of
    the older one."""
    found = []
    for file, read in READERS.items():
        report = data.measured(file)
        here = [Row(call, version, us, file, report["device"], date) for call, version, us, date in read(report)]
        forward = {(row.call, row.version): row for row in here if row.call.direction == "forward"}
        for row in here:
            first = forward.get((row.call._replace(direction="forward"), row.version))
            if row.call.direction == "backward" and first is not None:
                both, date = row.call._replace(direction="both"), min(first.date, row.date)
                found.append(row._replace(call=both, us=first.us + row.us, date=date))
        found += here
    return tuple(found)


@cache
def cells() -> tuple[tuple[Row, ...], ...]:
    """Return the cells: the rows of one run and one call, fastest first."""
    gathered: dict[tuple, list[Row]] = {}
    for row in rows():
        gathered.setdefault((row.file, row.call), []).append(row)
    return tuple(tuple(sorted(cell, key=lambda row: row.us)) for cell in gathered.values())


# What others published

PAPERS = {name: f"https://arxiv.org/abs/{number}" for name, number in
          {"FA2": "2307.08691", "FA3": "2407.08608", "FA4": "2603.05451"}.items()}  # fmt: skip
PUBLISHED = (
    Published("A100", "FlashAttention-2", "forward", HALVES,
              "its paper reports up to 230 TFLOP/s, 73 % of the peak", PAPERS["FA2"]),
    Published("A100", "FlashAttention-2", "backward", HALVES,
              "its paper reports up to 63 % of the peak", PAPERS["FA2"]),
    Published("A100", "FlashAttention-2", "both", HALVES,
              "its paper reports 225 TFLOP/s in training, end to end", PAPERS["FA2"]),
    Published("H100", "FlashAttention-3", "forward", HALVES,
              "its paper reports 1.5 to 2.0 times the speed of FlashAttention-2", PAPERS["FA3"]),
    Published("H100", "FlashAttention-3", "backward", HALVES,
              "its paper reports 1.5 to 1.75 times the speed of FlashAttention-2", PAPERS["FA3"]),
    Published("H100", "FlashAttention-3", "forward", ("float8",),
              "its paper reports close to 1.2 PFLOP/s", PAPERS["FA3"]),
    Published("B200", "FlashAttention-4", "forward", HALVES,
              "its paper reports 1.1 to 1.3 times the speed of cuDNN 9.13", PAPERS["FA4"]),
)  # fmt: skip


# The answer


def which(call: Call, *, installed: Iterable[str] | None = None) -> Answer:
    """Return which version to call, and why.

    installed: names of the versions to choose from; all if None. What cannot compute the call, by ``versions.against``,
    is left out of every cell.
    """
    if call.Nq == 1 and call.mask == "causal":
        call = call._replace(mask="full")  # one query, the last one, sees all keys
    allowed = None if installed is None else set(installed)
    refused = {version.name: limits[0] for version in VERSIONS if (limits := against(version, call))}

    def able(version):
        return version not in refused and (allowed is None or version in allowed)

    kind = [cell for cell in cells() if (cell[0].call.gpus > 1) == (call.gpus > 1)]
    found = [left for cell in kind if (left := tuple(row for row in cell if able(row.version)))]
    nearest = min(found, key=lambda cell: _order(call, cell), default=())
    other = nearest[0].call if nearest else None
    paper = None
    if other is None or card_of(other.card) != card_of(call.card):
        paper = next((it for it in PUBLISHED if _about(it, call) and able(it.version)), None)
    version = paper.version if paper else nearest[0].version if other and not _decisive(call, other) else None
    names = tuple(it.name for it in VERSIONS if able(it.name)) if call.gpus == 1 else tuple(DISTRIBUTED.values())
    return Answer(call, version, nearest, differences(call, other) if other else (), paper, names, refused)


def differences(call: Call, other: Call) -> tuple[str, ...]:
    """Say in which points another call differs, as far as the time depends on them."""
    words = {"card": "card {}", "gpus": "{} GPUs", "direction": "{}", "mask": "mask {}", "dtype": "{}"}
    told = [words[field].format(getattr(other, field)) for field in words if _differ(field, call, other)]
    sizes = [name for name in ("B", "H", "Hk", "Nq", "Nk", "d") if getattr(call, name) != getattr(other, name)]
    return *told, *(f"{name} = {getattr(other, name):,}" for name in sizes)


def card_of(name: str | None) -> str | None:
    """Return a card's name without maker and memory: "H200" of "NVIDIA H200" and of "H200 SXM"."""
    found = name and re.search(r"RTX \d+|[A-Z]+\d+", name)
    return found[0] if found else name


WEIGHTS = {"gpus": 1e6, "direction": 1e5, "card": 1e4, "mask": 1e3, "dtype": 1e2}  # what may differ last, first


def _order(call, cell):
    """Sort cells by how far they are from a call, then those with most versions first, then the newest."""
    other, date = cell[0].call, cell[0].date
    apart = sum(weight for field, weight in WEIGHTS.items() if _differ(field, call, other))
    ratios = ((call.Nq, other.Nq), (call.Nk, other.Nk), (call.d, other.d), (call.B * call.H, other.B * other.H),
              (call.H * other.Hk, call.Hk * other.H))  # fmt: skip
    apart += sum(abs(math.log2(mine / theirs)) for mine, theirs in ratios)
    return apart, -len(cell), -int(date.replace("-", ""))


def _decisive(call, other):
    """Return whether two calls differ in more than sizes, or have few queries and many: then one does not decide for
    the other. Products of float16 and of bfloat16 are equally fast."""
    alike = {call.dtype, other.dtype} <= set(HALVES)
    few = (call.Nq <= FEW) != (other.Nq <= FEW)
    return few or any(_differ(field, call, other) for field in WEIGHTS if not (field == "dtype" and alike))


def _differ(field, call, other):
    mine, theirs = getattr(call, field), getattr(other, field)
    return card_of(mine) != card_of(theirs) if field == "card" else mine != theirs


def _about(paper, call):
    same = (paper.card, paper.direction) == (card_of(call.card), call.direction)
    return same and call.dtype in paper.dtypes and call.mask in PLAIN and call.gpus == 1 and call.Nq > FEW


def capability_of(card: str) -> tuple[int, int] | None:
    """Return the compute capability of a card of ``hardware.CARDS`` by the first word of its name; None if unknown."""
    found = next((it for name, it in CARDS.items() if card_of(name) == card_of(card)), None)
    return found and tuple(int(number) for number in found.capability.split("."))


def sentence(answer: Answer) -> str:
    """Say the answer: on this card, for this shape, which version, because of what."""
    call = answer.call
    where = f"{f'On the {call.card}' if call.card else 'Without a GPU'}, for {call}: "
    if answer.version is None:
        able = ", ".join(answer.able) or "no version that is known here"
        return f"{where}no choice, because {answer.because}. Can compute it: {able}."
    how = BY_NAME[answer.version].called if answer.version in BY_NAME else answer.version
    ties = f" As fast, within {TIE - 1:.0%}: {', '.join(answer.ties)}." if answer.ties and not answer.published else ""
    return f"{where}{how}, because {answer.because}.{ties}"


def advice(call: Call) -> list[str]:
    """Return all there is to say for a call, a sentence each: the answer, what comes with torch, what cannot do it."""
    answer = which(call)
    said = [sentence(answer)]
    if answer.version and not BY_NAME.get(answer.version, VERSIONS[0]).comes_with_torch and not answer.published:
        inside = which(call, installed=[it.name for it in VERSIONS if it.comes_with_torch])
        if inside.version:
            said.append(f"With torch alone: {BY_NAME[inside.version].called}, because {inside.because}.")
    said += [f"{name} cannot: {limit.says} ({limit.source})." for name, limit in answer.refused.items()]
    return said


def table(direction: str, masks: Iterable[str] = PLAIN, *, gpus: int = 1) -> str:
    """Return the decisions for all calls of this kind that were measured, a line each: the fastest, and the next.

    N of one query is 1/Nk; where only a mask is named, the dtype is bfloat16. The last lines say where and when.
    """
    calls = dict.fromkeys(cell[0].call for cell in cells())
    wanted = [it for it in calls if it.direction == direction and it.mask in masks and it.gpus == gpus]
    runs: dict[str, set[str]] = {}
    lines = [f"{'B×H/Hk':>9} {'N':>9} {'d':>4}  {'mask, dtype':13}{'fastest':20}{'µs':>8}  next"]
    for call in sorted(wanted, key=lambda it: (it.Nq == 1, it.dtype, it.mask, it.d, it.Nk, it.B)):
        best, *others = which(call).cell
        then = f"× {others[0].us / best.us:.2f} {others[0].version}" if others else "nothing else timed"
        heads = f"{call.B}×{call.H}/{call.Hk}"
        N = f"{call.Nk:,}" if call.Nq == call.Nk else f"{call.Nq}/{call.Nk:,}"
        kind = call.mask if call.dtype == "bfloat16" else call.dtype
        lines.append(f"{heads:>9} {N:>9} {call.d:4}  {kind:13}{best.version:20}{best.us:8,.0f}  {then}")
        runs.setdefault(f"{best.file}.json, {best.device}", set()).add(best.date)
    lines += ["from " + ";\n     ".join(f"{run}, {' and '.join(sorted(dates))}" for run, dates in sorted(runs.items()))]
    return "\n".join(lines)
