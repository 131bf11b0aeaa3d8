"""Choose the kernels and tiles of a call from tables, without a search at run time.

For measured cards, ``portable.json`` and ``hopper.json`` hold the fastest launches, with how and when they were
measured. For other cards, ``portable.json`` lists launches by kernel and width of a head; the choice is the first
that fits the shared memory. ``shared_bytes`` bounds the shared memory before the launch, so no launch runs out of it
on a GPU with 64 KB or more per program.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from flashlab.kernels import masks, tiles
from flashlab.kernels.limits import Card, against_decoding, against_hopper, against_tensors
from flashlab.kernels.problem import Problem, check
from flashlab.kernels.tables import (
    HALVES,
    MEASURED,
    OF_KEYS,
    ON_HOPPER,
    STREAM_KEYS,
    TWO_PASSES,
    UNMEASURED,
    Row,
    extras,
)

WORK = {  # by direction, the size of a call
    "forward": "the busiest multiprocessor has the work of {:,.0f} pairs of a query and a key",
    "backward": "Nk = {:,}",
}


class Configuration(NamedTuple):
    """One launch: rows and columns of a tile of scores, warps per program, stages of the pipeline that loads tiles."""

    Br: int
    Bc: int
    warps: int
    stages: int
    why: str = ""
    parts: int = 1  # of each group of query heads that share keys; a program computes dK and dV from one part


class Choice(NamedTuple):
    """The kernels that compute one direction of a call, their launches, and the reason."""

    implementation: str  # "portable", "hopper" or "decode"
    launches: dict[str, Configuration]  # by kernel; empty for decoding, which chooses its tiles itself
    why: str


STREAMED = Configuration(64, 0, 4, 1, "it only streams: any tile will do")  # the kernel ``row_constants``
# Cost of the change to the next tile in a Hopper program, in blocks of keys: about the fixed time of a tile over the
# time of a block, fitted to h200_hopper.json, d = 128. Tried by hand on an H200 (22 November 2026), not stored:
# schedules built with costs from 0 to 4 blocks differed by noise only.
BOUNDARY = 1.7
LATE = 1.1  # tolerance of ``parts_of_groups``: fewer parts may end so much later, as adding up parts takes time, too
INTERPRETED = Configuration(64, 64, 4, 1, "in the interpreter any tile fits, and few large ones are fastest")


def first(rows: tuple[Row, ...], fits: Callable[[Row], bool]) -> Row | None:
    """Return the first row that fits, or None."""
    return next((row for row in rows if fits(row)), None)


def configuration(
    direction: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: masks.Window | masks.Rule | None = None,
    kernel: str | None = None,
) -> Choice:
    """Return the ``Choice`` of kernels that ``flash_attention`` makes for these tensors, with its reason.

    Args:
        direction: "forward" or "backward".
        q, k, v, causal, mask, kernel: as for ``flash_attention``. Of q, k and v, only shapes, dtype and device count.

    Raises:
        TypeError, ValueError: arguments that ``flash_attention`` refuses, an unknown direction, or kernel "hopper" or
            "decode" for a problem that these kernels cannot compute.
    """
    if direction not in ("forward", "backward"):
        raise ValueError(f'direction must be "forward" or "backward", got {direction!r:.40}')
    check(q, k, v)
    problem = Problem.of(q, k, v, masks.either(causal, mask), 1.0)
    problem.mask.check(problem)
    return choose(direction, problem, kernel)


def choose(direction: str, problem: Problem, kernel: str | None = None, learning: bool = False) -> Choice:
    """Return the ``Choice`` for one direction of a problem; arguments as for ``configuration``.

    learning: slopes or biases get gradients.
    """
    check_kernel(kernel)
    deterministic = direction == "backward" and torch.are_deterministic_algorithms_enabled()
    this = card(problem.device)
    hopper = this is not None and this.capability == ON_HOPPER.capability
    special = against_tensors(direction, problem, learning) if hopper else None
    kind = in_a_large_batch(problem.kind) if direction == "forward" and problem.batch_invariant else problem.kind
    return choose_for(this, direction, kind, kernel, deterministic, special)


def in_a_large_batch(kind: Problem) -> Problem:
    """Return a ``Problem.kind`` with a large batch instead of its own: of texts, or of tokens of packed texts."""
    return kind._replace(B=1024) if kind.texts is None else kind._replace(Nq=2**17, Nk=2**17)


def check_kernel(kernel):
    """Raise ValueError if this is not the name of a kernel, or None."""
    if not (kernel is None or isinstance(kernel, str) and kernel in ("portable", "hopper", "decode")):
        raise ValueError(f'kernel must be "portable", "hopper", "decode" or None, got {kernel!r:.40}')


@functools.lru_cache(maxsize=4096)
def choose_for(
    card: Card | None, direction: str, problem: Problem, kernel: str | None, deterministic: bool, special=None
) -> Choice:
    """Choose for any card, as ``choose``; None is the interpreter.

    deterministic: torch forbids results that vary. special: the reason of ``against_tensors``, if there is one.
    """
    if direction == "forward" and kernel in (None, "decode"):
        against = against_decoding(card, problem, kernel == "decode")
        if against is None:
            return Choice(
                "decode", {}, "decode: few queries, so programs divide their keys; decode.tiles sets the tiles"
            )
        if kernel == "decode":
            raise ValueError(f'kernel="decode" cannot do this: {against}')
    kernel = None if kernel == "decode" else kernel  # decoding has no backward kernels
    against = against_hopper(card, problem, direction) or special
    if kernel == "hopper" and against:
        raise ValueError(f'kernel="hopper" cannot do this: {against}')
    if kernel == "portable":
        against = against or 'kernel="portable" was passed'
    if kernel is None:
        against = against or slower_on_hopper(direction, problem, card.multiprocessors, deterministic)
    names = on_hopper_kernels(direction, problem, deterministic)
    if kernel is None and deterministic and names == ("backward",):
        against = against or "torch.use_deterministic_algorithms is on, and the Hopper kernel's dQ varies in last bits"
    launches = {"row_constants": STREAMED} if direction == "backward" else {}
    if against is None:
        launches |= {name: on_hopper(name, problem, card.multiprocessors) for name in names}
        return Choice("hopper", divided(launches, card, problem), f"hopper: {launches[names[0]].why}")
    for name in ("forward",) if direction == "forward" else of_backward(card, problem):
        launches[name] = portable(name, card, problem)
    return Choice("portable", divided(launches, card, problem), f"portable: {against}")


def divided(launches: dict, card: Card | None, problem: Problem) -> dict:
    """Return the launches, those of dK and dV with as many ``parts_of_groups`` as this card needs."""
    of_keys = [name for name in OF_KEYS if name in launches]
    if card is None or not of_keys:
        return launches
    parts = parts_of_groups(problem, launches[of_keys[0]], card.multiprocessors)
    return launches | {name: launches[name]._replace(parts=parts) for name in of_keys}


def parts_of_groups(problem: Problem, c: Configuration, multiprocessors: int) -> int:
    """Return the number of parts into which the backward pass divides each group of query heads that share keys.

    A program computes c.Bc rows of dK and dV, from the query heads of one part. The rule: the fewest parts of equal
    size with which the last program ends at most ``LATE`` times as late as with a part per head. Without a mask,
    programs come in rounds. Under a mask they take half as long on average, and the last one begins when an equal share
    of all the work is done.

    Tried by hand on an H200 (22 and 23 November 2026), not stored: for 29 shapes, with groups of 4 to 16, and both
    kernels, the rule found the fastest of 1, 2, 4, .. parts 43 times of 58, and otherwise one that took up to 6 %
    longer; with 1.15 instead of 1.1 up to 9 %, with 1.05 up to 13 %.
    """
    at_once = multiprocessors * max(1, 8 // c.warps)  # 8 warps need all registers of a multiprocessor
    programs = problem.B * problem.Hk * tiles.count(problem.Nk, c.Bc)

    def end(parts):  # in times of a program that computes a whole group
        rounds = programs * parts / at_once
        return (math.ceil(rounds) if problem.mask == masks.full() else (rounds + 1) / 2) / parts

    equal = (parts for parts in range(1, problem.group) if problem.group % parts == 0)
    return next((parts for parts in equal if end(parts) <= LATE * end(problem.group)), problem.group)


def of_backward(card: Card | None, problem: Problem) -> tuple[str, ...]:
    """Return the portable kernels of a backward pass: dK and dV together, or apart where that was faster, and dQ."""
    halves = all(measured(name, card, problem) for name in HALVES)
    return (*(HALVES if halves else ("key_value_gradients",)), "query_gradients")


@functools.cache
def card(device) -> Card | None:
    """Return the ``Card`` behind a torch device; None for the CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major, properties.minor
    return Card(capability, properties.shared_memory_per_block_optin, properties.multi_processor_count)


def portable(kernel: str, card: Card | None, problem: Problem) -> Configuration:
    """Return the ``Configuration`` of a portable kernel: measured on this card, or else the first that fits it.

    Raises:
        ValueError: none fits.
    """
    if card is None:
        return INTERPRETED
    if len(extras(problem) - {"window"}) > 1:
        other = problem._replace(mask=masks.window(0), score=None, dropout=None)
        return _with_smaller_tiles(kernel, portable(kernel, card, other))
    if found := measured(kernel, card, problem):
        return found
    width = width_of(kernel, problem)
    products = "plain" if problem.precision == "ieee" or card.capability < (8, 0) else "tensor"
    itemsize = 4 if products == "plain" else problem.dtype.itemsize  # without tensor cores, operands are widened

    def fits(row):
        same = (row.kernel, row.products, row.bytes) == (kernel, products, itemsize) and width <= row.width
        here = row.major in (None, card.capability[0]) and row.takes(problem)
        return same and here and shared_bytes(kernel, row, width, itemsize) <= card.shared_bytes

    if row := first(UNMEASURED.rows, fits):
        needed = shared_bytes(kernel, row, width, itemsize)
        return Configuration(
            *row.launch, f"not measured: the first listed that fits, {needed} of {card.shared_bytes} bytes"
        )
    raise ValueError(f"no configuration of {kernel} for heads of {width} columns fits {card.shared_bytes} bytes")


def measured(kernel: str, card: Card | None, problem: Problem) -> Configuration | None:
    """Return the ``Configuration`` of a portable kernel that was fastest on this card, or None."""
    sought = kernel, width_of(kernel, problem), problem.mask != masks.full()

    def was_fastest(row):
        fits = (row.kernel, row.width, row.causal) == sought and problem.Nk >= row.N_from
        return fits and row.takes(problem) and not (row.whole_tiles and problem.Nk % row.Bc)

    for table in MEASURED:
        if card is not None and table.capability == card.capability and str(problem.dtype) in table.dtypes:
            if row := first(table.rows, was_fastest):
                return Configuration(*row.launch, table.found(row))
    return None


def width_of(kernel: str, problem: Problem) -> int:
    """Return the columns of a portable kernel's tiles; in the backward pass, 192 too (``portable.pieces``)."""
    return max(problem.widths if kernel == "forward" else problem.widths_in_pieces)


def _with_smaller_tiles(kernel, c):
    """Return the configuration with half the rows or columns to stream and 8 warps or more, for fewer registers."""
    streamed = "Bc" if kernel in STREAM_KEYS else "Br"
    half = max(16, getattr(c, streamed) // 2)
    why = "not measured: smaller tiles, since several extras at once take more registers"
    return c._replace(**{streamed: half}, warps=max(8, c.warps), why=why)


def shared_bytes(kernel: str, c: Configuration | Row, width: int, itemsize: int) -> int:
    """Return a bound on the shared memory that a portable kernel takes with tiles of this width.

    Two tiles stay for the whole program (one in the forward pass, and for dV alone). Two are streamed, each through
    ``stages`` buffers; without a pipeline they share one. Barriers and room to transpose tiles are added.
    The tests compile the kernels and compare.
    """
    streamed, kept = (c.Bc, c.Br) if kernel in STREAM_KEYS else (c.Br, c.Bc)
    tiles_kept = 1 if kernel in ("forward", "value_gradients") else 2
    tiles_streamed = 1 if c.stages == 1 else 2 * c.stages
    output = 4 * width * c.Br if itemsize == 1 else 0  # O, in float32 at most, takes the place of the tiles
    return max(itemsize * width * (tiles_kept * kept + tiles_streamed * streamed), output) + 8 * c.stages * c.Br + 2048


def hopper_width(d: int, dv: int, bits: int = 16) -> int:
    """Return the columns of the Hopper kernels' tiles: 64, 128, 256, or in 16 bits 192 (``hopper.pieces``)."""
    return 192 if bits == 16 and 128 < max(d, dv) <= 192 else max(64, tiles.width_of(max(d, dv)))


def on_hopper_kernels(direction: str, problem: Problem, deterministic: bool = False) -> tuple[str, ...]:
    """Return the names of the Hopper kernels that compute one direction of a problem.

    deterministic: the same inputs must give the same bits; up to 64 columns the portable kernels are faster then.
    """
    wide = 64 if deterministic else 128
    return TWO_PASSES if direction == "backward" and max(problem.d, problem.dv) > wide else (direction,)


def on_hopper(kernel: str, problem: Problem, multiprocessors: int = 132) -> Configuration:
    """Return the ``Configuration`` of a Hopper kernel; in the forward pass each consumer has 64 of the Br rows.

    Raises:
        ValueError: the table has none.
    """
    row = row_on_hopper(kernel, problem, multiprocessors)
    return Configuration(*row.launch, ON_HOPPER.found(row))


def row_on_hopper(kernel: str, problem: Problem, multiprocessors: int) -> Row:
    """Return the row of a Hopper kernel; of several, that whose busiest multiprocessor ends first."""
    name = kernel if problem.scales is None else "forward_float8"
    width = hopper_width(problem.d, problem.dv, 8 * problem.dtype.itemsize)
    sought = name, width, problem.mask != masks.full()
    rows = [row for row in ON_HOPPER.rows if (row.kernel, row.width, row.causal) == sought and row.takes(problem)]
    rows = [row for row in rows if problem.Nk >= row.N_from]
    if not rows:
        raise ValueError(f"hopper.json has no row for {sought} and {problem.Nk} keys")
    return min(rows, key=lambda row: row.pace * row.Bc * busiest(row, problem, multiprocessors))


def busiest(row: Row, problem: Problem, multiprocessors: int) -> float:
    """Estimate the work of the busiest multiprocessor in a forward pass, in pairs of a row and a block of keys.

    A persistent program per multiprocessor computes tile after tile; ``hopper.schedule`` assigns them.
    """
    last = tiles.count(problem.Nk, row.Bc)  # blocks of keys of the last tile
    heads, Tr, rows = problem.B * problem.H, tiles.count(problem.Nq, row.Br), min(row.Br, problem.Nq)
    if problem.mask == masks.full():  # all tiles are equal, and are assigned in rounds
        return tiles.count(heads * Tr, multiprocessors) * (last + BOUNDARY) * rows
    first = max(1, tiles.count(problem.Nk - problem.Nq + rows, row.Bc))
    left, right = problem.mask if isinstance(problem.mask, masks.Window) else (None, None)
    in_window = last if None in (left, right) else tiles.count(left + right + row.Br, row.Bc) + 1
    most, mean = min(last, in_window), min((first + last) / 2, in_window)
    share = heads * Tr * (mean + BOUNDARY) / multiprocessors  # long and short tiles balance each other
    return max(share, most + BOUNDARY) * rows


def slower_on_hopper(
    direction: str, problem: Problem, multiprocessors: int = 132, deterministic: bool = False
) -> str | None:
    """Return why the portable kernels are faster at this size, by measurement; None if they are not.

    The Hopper kernels take longer to start, and less time per tile.
    """
    if max(problem.d, problem.dv) < ON_HOPPER.columns:
        return f"heads of fewer than {ON_HOPPER.columns} columns gain nothing on Hopper"
    row = row_on_hopper(on_hopper_kernels(direction, problem, deterministic)[0], problem, multiprocessors)
    work = busiest(row, problem, multiprocessors) * row.Bc if direction == "forward" else problem.Nk
    if work < row.least:
        return f"{WORK[direction].format(work)}; the Hopper kernels were faster from {row.least:,} on"
    return None
