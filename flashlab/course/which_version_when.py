"""Choose a version of attention for a shape from the stored measurements.

``which`` answers with the fastest version of the cell (``measurements.cells``) that has exactly this call. Where none
has, the nearest cell of the same kind (``KINDS``) decides, and is called a neighbour: a guess, with its reason. For a
card on which nothing was measured, the answer is what others published. Otherwise no version is chosen: the answer has
the nearest cell and all versions that can compute the call. ``python -m flashlab.course.doctor`` calls it for this
machine.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from flashlab.course import measurements
from flashlab.course.measurements import READERS, Row, card_of, cells, check_card
from flashlab.course.versions import (
    BY_NAME,
    DIRECTIONS,
    FEW,
    HALVES,
    PLAIN,
    VERSIONS,
    Call,
    Limit,
    against,
    check,
    check_choice,
    check_mask,
)
from flashlab.machine.arguments import check_arguments


class Published(NamedTuple):
    """Published results of others on a card without measurements here."""

    card: str
    version: str
    direction: str
    dtypes: tuple[str, ...]
    message: str
    source: str


class Answer(NamedTuple):
    """A version, and the reasons for its choice."""

    call: Call
    version: str | None  # None: no measurement and no publication decides
    cell: tuple[Row, ...]  # the nearest measurements, of versions that can compute the call, fastest first
    differs: tuple[str, ...]  # how the cell differs from the call; nothing if exactly this was measured
    published: Published | None  # the reason for a card without measurements
    able: tuple[str, ...]  # all versions that can compute the call
    refused: dict[str, Limit]  # those that cannot, each with its first limit

    @property
    def measured(self) -> bool:
        """Return whether exactly this call was measured, by the kernels of today or earlier ones."""
        return bool(self.cell) and not self.differs

    @property
    def outdated(self) -> str:
        """Return the day of the last change to a kernel of the cell after its measurement; "" if none has changed."""
        return max((measurements.since(row.version) for row in self.cell if row.outdated), default="")

    @property
    def ties(self) -> tuple[str, ...]:
        """Return the versions that were as fast as the fastest, up to ``TIE``."""
        return tuple(row.version for row in self.cell[1:] if row.us <= TIE * self.cell[0].us)

    @property
    def because(self) -> str:
        """Return the reason, as the end of a sentence."""
        if self.published:
            return f"nothing was measured here on this card, and {self.published.message} ({self.published.source})"
        if not self.cell:
            return "nothing like it was measured"
        times = _times(self.cell)
        if self.outdated:
            times += f", with flashlab's kernels of before {self.outdated}, which have changed"
        if self.measured:
            return f"it was the fastest: {times}"
        if self.version:
            return f"this call was not measured, and it was the fastest for its neighbour, {self._shape}: {times}"
        return f"neither this nor a neighbour was measured; the nearest was, with {', '.join(self.differs)}: {times}"

    @property
    def _shape(self):
        other = self.cell[0].call
        return other.sizes + (f", {other.dtype}" if other.dtype != self.call.dtype else "")

    @property
    def waits(self) -> str:
        """Return for which versions the GPU waits, and the time of their calls in Python; "" if for none."""
        slow = [row for row in self.cell if row.host_us and row.host_us > row.us]
        times = ", ".join(f"{row.version} {row.host_us:,.0f} µs" for row in slow)
        return f" Outside a CUDA graph the GPU waits for Python: {times}." if slow else ""


def _times(cell):
    (best, *others), gpus = cell, cell[0].call.gpus
    then = f"; {', '.join(f'{row.version} {row.us:,.0f}' for row in others)}" if others else ", the only one timed"
    return f"{best.version} {best.us:,.0f} µs{then} ({gpus} {best.device}, {best.date}, {best.file}.json)"


TIE = 1.03  # rounds of one run differ by up to some 2 %


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


@check_arguments()
def which(call: Call, *, installed: Iterable[str] | None = None) -> Answer:
    """Return the version to call, and the reason.

    installed: names of the versions to choose from; all if None. Versions that cannot compute the call, by
    ``versions.against``, are left out of every cell.
    """
    check(call)
    check_card(call)
    for name in () if installed is None else installed:
        check_choice("installed", name, (*BY_NAME, *measurements.DISTRIBUTED.values()))
    if call.Nq == 1 and call.mask == "causal":
        call = call._replace(mask="full")  # one query, the last one, sees all keys
    if call.dv == call.d:
        call = call._replace(dv=None)
    allowed = None if installed is None else set(installed)
    refused = {version.name: limits[0] for version in VERSIONS if (limits := against(version, call))}

    def able(version):
        return version not in refused and (allowed is None or version in allowed)

    comparable = [cell for cell in cells() if (cell[0].call.gpus > 1) == (call.gpus > 1)]
    found = [left for cell in comparable if (left := tuple(row for row in cell if able(row.version)))]
    nearest = min(found, key=lambda cell: _order(call, cell), default=())
    other = nearest[0].call if nearest else None
    paper = None
    if other is None or card_of(other.card) != card_of(call.card):
        paper = next((it for it in PUBLISHED if _about(it, call) and able(it.version)), None)
    version = paper.version if paper else nearest[0].version if other and neighbours(call, other) else None
    several = tuple(measurements.DISTRIBUTED.values())
    names = tuple(it.name for it in VERSIONS if able(it.name)) if call.gpus == 1 else several
    return Answer(call, version, nearest, differences(call, other) if other else (), paper, names, refused)


KINDS = {  # the fields that make a call incomparable, and the words for them
    "gpus": "{} GPUs", "direction": "{}", "card": "card {}", "mask": "mask {}", "dtype": "{}",
    "d": "d = {}", "dv": "dv = {}",
}  # fmt: skip
SIZES = "B", "H", "Hk", "Nq", "Nk", "window"  # what neighbours may differ in
WEIGHTS = dict(zip(reversed(KINDS), (100 * 2**n for n in range(len(KINDS))), strict=True))  # more than all sizes


@check_arguments()
def differences(call: Call, other: Call) -> tuple[str, ...]:
    """Return in words how another call differs in fields that the time depends on."""

    def words(field):
        value = getattr(other, field)
        if field in KINDS:
            return KINDS[field].format(value)
        return f"no {field}" if value is None else f"{field} = {value:,}"

    return tuple(map(words, _different(call, other)))


def _different(call, other):
    """Return the fields that the time depends on in which two calls differ."""
    return [field for field in (*KINDS, *SIZES) if _differ(field, call, other)]


@check_arguments()
def neighbours(call: Call, other: Call) -> bool:
    """Return whether two calls differ in ``SIZES`` alone, and both have few queries or many: then one decides for the
    other. Products of float16 and of bfloat16 are equally fast."""
    few_and_many = (call.Nq <= FEW) != (other.Nq <= FEW)
    if few_and_many:
        return False
    return not any(_differ(field, call, other) and not _halves(field, call, other) for field in KINDS)


def _order(call, cell):
    """Return the sort key of a cell: the distance from a call, then more versions, kernels of today, a newer date.

    A call of another kind is further than all neighbours. A cell that only flashlab's versions are in counts as further
    by two, like a size four times as large, so that one with a rival may be preferred.
    """
    other, date = cell[0].call, cell[0].date
    fields = _different(call, other)
    apart = sum(WEIGHTS[it] * (0.0001 if _halves(it, call, other) else 1) for it in fields if it in KINDS)
    apart += WEIGHTS["mask"] * ((call.Nq <= FEW) != (other.Nq <= FEW))
    ratios = ((call.Nq, other.Nq), (call.Nk, other.Nk), (call.d, other.d), (call.B * call.H, other.B * other.H),
              (call.H * other.Hk, call.Hk * other.H))  # fmt: skip
    windows = (call.window, other.window) if call.window and other.window else (1, 1)
    apart += sum(abs(math.log2(mine / theirs)) for mine, theirs in (*ratios, windows))
    apart += 0.1 * len(fields)  # at equal distance, the cell with fewer differences
    alone = bool(apart) and all(row.version.startswith("flashlab") for row in cell)
    age = -int(date.replace("-", "")), -list(measurements.READERS).index(cell[0].file)
    return apart + 2 * alone, -len(cell), any(row.outdated for row in cell), *age


def _differ(field, call, other):
    mine, theirs = getattr(call, field), getattr(other, field)
    return card_of(mine) != card_of(theirs) if field == "card" else mine != theirs


def _halves(field, call, other):
    return field == "dtype" and {call.dtype, other.dtype} <= set(HALVES)


def _about(paper, call):
    same = (paper.card, paper.direction) == (card_of(call.card), call.direction)
    return same and call.dtype in paper.dtypes and call.mask in PLAIN and call.gpus == 1 and call.Nq > FEW


@check_arguments()
def sentence(answer: Answer) -> str:
    """Return the answer as a sentence: card, shape, version and reason."""
    call = answer.call
    where = f"{f'On the {call.card}' if call.card else 'Without a GPU'}, for {call}: "
    if answer.version is None:
        able = ", ".join(answer.able) or "no version that is known here"
        return f"{where}no choice, because {answer.because}. Can compute it: {able}."
    how = BY_NAME[answer.version].called if answer.version in BY_NAME else answer.version
    if answer.published:
        return f"{where}{how}, because {answer.because}."
    ties = f" As fast, within {TIE - 1:.0%}: {', '.join(answer.ties)}." if answer.ties else ""
    return f"{where}{how}, because {answer.because}.{ties}{answer.waits}"


def advice(call: Call) -> list[str]:
    """Return sentences for a call: the answer, the best version in torch, the versions that cannot compute it."""
    answer = which(call)
    sentences = [sentence(answer)]
    if answer.version and not BY_NAME.get(answer.version, VERSIONS[0]).comes_with_torch and not answer.published:
        inside = which(call, installed=[it.name for it in VERSIONS if it.comes_with_torch])
        if inside.version:
            sentences.append(f"With torch alone: {BY_NAME[inside.version].called}, because {inside.because}.")
    sentences += [f"{name} cannot: {limit.message} ({limit.source})." for name, limit in answer.refused.items()]
    return sentences


@check_arguments()
def table(direction: str, masks: Iterable[str] = PLAIN, *, gpus: int = 1, files: Iterable[str] | None = None) -> str:
    """Return the decisions for calls of this kind that were measured, a line each: the fastest, and the next.

    files: those of ``measurements.READERS`` whose cells count; all if None. N of one query is 1/Nk; where only a mask
    is named, the dtype is bfloat16. "× 1.08" is the time of the next as a multiple of the fastest's; where that is
    flashlab's, the next is a rival. The last lines say where and when, and whether our kernels have changed since.
    """
    check_choice("direction", direction, DIRECTIONS)
    for mask in masks:
        check_mask("masks", mask)
    for file in files or ():
        check_choice("files", file, READERS)
    some = [cell for cell in cells() if files is None or cell[0].file in files]
    calls = dict.fromkeys(cell[0].call for cell in some)
    selected = [it for it in calls if it.direction == direction and it.mask in masks and it.gpus == gpus]
    if not selected:
        raise ValueError(
            f"no call of this kind was measured: {direction}, {' or '.join(masks) or 'no mask'}, {gpus} GPUs"
        )
    runs: dict[str, set[str]] = {}
    outdated = set()
    lines = [f"{'B×H/Hk':>8} {'N':>9} {'d':>4}  {'mask, dtype':15}{'fastest':21}{'µs':>7}  next"]
    for call in sorted(selected, key=lambda it: (it.Nq == 1, it.dtype, it.mask, it.d, it.Nk, it.B)):
        best, *others = min((cell for cell in some if cell[0].call == call), key=lambda cell: _order(call, cell))
        if best.version.startswith("flashlab"):
            others = [row for row in others if not row.version.startswith("flashlab")]
        then = f"× {others[0].us / best.us:.2f} {others[0].version}" if others else "no rival timed"
        heads = f"{call.B}×{call.H}/{call.Hk}"
        N = f"{call.Nk:,}" if call.Nq == call.Nk else f"{call.Nq}/{call.Nk:,}"
        kind = "+".join(call.parts) if call.dtype == "bfloat16" else call.dtype
        lines.append(f"{heads:>8} {N:>9} {call.d:4}  {kind:15}{best.version:21}{best.us:7,.0f}  {then}")
        run = f"{best.file}.json, {best.device}"
        runs.setdefault(run, set()).add(best.date)
        outdated |= {run} if any(row.outdated for row in (best, *others)) else set()
    since = dict.fromkeys(outdated, ", before flashlab's kernels changed")
    sources = (f"{run}, {' and '.join(sorted(dates))}{since.get(run, '')}" for run, dates in sorted(runs.items()))
    lines += ["from " + ";\n     ".join(sources)]
    return "\n".join(lines)
