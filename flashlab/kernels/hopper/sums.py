"""Add to the sums of dQ in global memory, float32, and narrow them.

Many programs add to the same sums. A tile [64, columns] is added in two parts, one per consumer: its first 64 columns
and the others, or, ``transposed``, halves of its rows. Within a part, the sums are in the order in which four warps
hold a product [64, ..] in their registers. So each thread adds four neighbours with one instruction, and a warp adds
512 adjacent bytes.

Sums of all heads do not fit L2; to write, read and narrow them would take a tenth of the time of the products. So heads
share memory: there is room for 2 * lag key/value heads. The programs with tiles of head g narrow the sums of head
g - lag, and zero them for head g + lag. A counter per head holds the number of its finished tiles. A program adds to
the sums of head g only after all tiles of head g - lag have ended; they do, because tiles are taken in order
(``stages.Turns``). At the end, a kernel of its own narrows the sums of the last ``lag`` heads.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from flashlab.kernels import dependent_launch, masks, tiles
from flashlab.kernels.hopper.products import filled
from flashlab.kernels.hopper.stages import next_turn, release, stage_of, wait_full

HALVES = gl.constexpr(2)
PART_ROWS, PART_COLUMNS = gl.constexpr(32), gl.constexpr(32)  # of 1,024 sums, narrowed at a time, for the copy engine
HELD = gl.constexpr(8)  # parts on their way
WARPS = gl.constexpr(2)  # that narrow beside the products
BESIDE = 132  # programs at a time: one per multiprocessor
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # of Triton 3.7, or of 3.6: of all threads of the role


def lag_of(problem, keys, width):
    """Return the lag, in key/value heads, between the head of a program and the head that it narrows, or None.

    keys: of a program. The lag is so large that a program need not wait: the programs of the earlier head have ended
    when it starts. Under a causal mask, the first programs of a head take twice the average time. With 128 columns
    nothing is narrowed early (None): additions to L2 are the bottleneck there, and narrowing beside them costs as much
    as it saves.
    """
    if not transposed(width):
        return None
    waves = 1.0 if problem.mask == masks.full() else 1.75
    return int(waves * BESIDE / tiles.count(problem.Nk, keys)) + 2


def size_of(heads, lag, Nq_padded, width, group):
    """Return the number of sums and counters in ``ring_of``: with a lag, or for all heads if it is None."""
    room = heads if lag is None else min(2 * lag, heads)
    return room * group * Nq_padded * width + heads + 1


def ring_of(numbers, heads, Nq_padded, width):
    """Return parts of ``numbers``: the sums [query heads, Nq_padded, width], and the counters [1 + heads].

    The first counter is that of ``stages.Turns``.
    """
    sums, counters = numbers.split([numbers.numel() - heads - 1, heads + 1])
    return sums.view(-1, Nq_padded, width), counters.view(torch.int32)


@gluon.constexpr_function
def transposed(width):
    """Return whether tiles of dQ come transposed: they do if K^T, then the left operand, fits into registers."""
    return width == 64


@gluon.constexpr_function
def columns_of(d, width):
    """Return how many columns the sums of dQ have with tiles of this width; the first d of them hold numbers."""
    return width if transposed(width) else max(80, filled(d))


@gluon.constexpr_function
def columns_of_part(d, width, w):
    """Return the columns of consumer w's product [64, ..] for dQ: 32 if ``transposed``, else 64 or (w = 1) the rest."""
    return width // 2 if transposed(width) else 64 if w == 0 else columns_of(d, width) - 64


@gluon.jit
def add(sums, tile, w: gl.constexpr, dQ, d: gl.constexpr, width: gl.constexpr):
    """Add dQ [64, columns], the sums of a product in the registers of four warps, to part w of a tile."""
    columns: gl.constexpr = dQ.shape[1]
    size: gl.constexpr = dQ.shape[0] * columns
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    x = gl.reshape(dQ, [4, 2, 8, columns // 8, 4, 2])
    x = gl.reshape(gl.permute(x, (3, 0, 2, 4, 1, 5)), [size])
    x = gl.convert_layout(x, flat, assert_trivial=True)
    at = tile.to(gl.int64) * (64 * columns_of(d, width)) + w * (64 * columns_of_part(d, width, 0))
    gl.atomic_add(sums + at + gl.arange(0, size, layout=flat), x, sem="relaxed")


class Held(NamedTuple):
    """Shared memory for sums that are on their way to be narrowed, and the barriers that guard it."""

    parts: gl.shared_memory_descriptor  # [HELD, PART_ROWS, PART_COLUMNS]
    full: gl.shared_memory_descriptor


@gluon.jit
def hold(parts):
    """Return a new ``Held``; parts: descriptor of the sums."""
    held = Held(
        gl.allocate_shared_memory(gl.float32, [HELD, PART_ROWS, PART_COLUMNS], parts.layout),
        gl.allocate_shared_memory(gl.int64, [HELD, 1], mbarrier.MBarrierLayout()),
    )
    for stage in gl.static_range(HELD):
        mbarrier.init(held.full.index(stage), count=1)
    fence_async_shared()
    return held


@gluon.jit
def narrow_earlier(shared, held, parts, sums, counters, dQ, turns, problem, lag, d):
    """In each turn, narrow a share of the sums of the head ``lag`` before, and zero them for the one ``lag`` after.

    Arrive at v_full when the program may add. Count the turn when the consumers have added and released ``added``.
    parts: descriptor of the sums. Tiles are ``transposed``.
    """
    ended, n, m = counters + 1, 0, 0
    turn = next_turn(shared, 0, WARPS)
    while turn < turns.all:
        g = turn // turns.tiles
        earlier = g - lag
        if earlier >= 0:
            while gl.atomic_add(ended + earlier, 0, sem="acquire") < turns.tiles:
                pass
        barrier()
        release(shared.v_full, n)
        if earlier >= 0:
            m = narrow_share(shared, held, parts, sums, dQ, earlier, turn % turns.tiles, m, turns, problem, lag, d)
        wait_full(shared.added, n)
        barrier()
        gl.atomic_add(ended + g, 1, sem="acq_rel")
        n += 1
        turn = next_turn(shared, n, WARPS)


@gluon.jit
def narrow_share(shared, held, parts, sums, dQ, head, j, m, turns, problem, lag, d):
    """Narrow and zero the share of tile j in the sums of this head. Return m, the parts so far, plus its own."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    of_tile: gl.constexpr = Br * width // (PART_ROWS * PART_COLUMNS)  # parts
    Nq, group, each = hidden(problem.Nq), hidden(problem.group), hidden(turns.tiles)
    d = hidden(d // 8) * 8  # rows of whole 16 bytes
    tiles_of_head = hidden(turns.Nq_padded) // Br
    first = head % (2 * hidden(lag)) * group * tiles_of_head
    count = gl.maximum(gl.cdiv(group * tiles_of_head - j, each), 0) * of_tile
    fence_async()
    for i in gl.static_range(HELD):
        ask(held, parts, first + j + i // of_tile * each, i, m, of_tile, i < count)
    for i in range(0, count):
        tile, part = j + i // of_tile * each, i % of_tile
        wait_full(held.full, m + i)
        x = stage_of(held.parts, m + i).load(gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0]))
        barrier()
        later = i + HELD
        ask(held, parts, first + j + later // of_tile * each, later, m, of_tile, later < count)
        at = sums + ((first + tile) * of_tile + part).to(gl.int64) * (PART_ROWS * PART_COLUMNS)
        to = dQ + (head * group + tile // tiles_of_head).to(gl.int64) * Nq * d
        narrow_part(x * problem.scale, at, to, tile % tiles_of_head * Br + part * 16, Nq, d)
    return m + count


@gluon.jit
def ask(held, parts, tile, i, m, of_tile: gl.constexpr, pred):
    """Ask for a tile's part i % of_tile, the i-th part of a share, after m parts of earlier shares."""
    full = stage_of(held.full, m + i)
    mbarrier.expect(full, parts.block_type.nbytes, pred=pred)
    at = [(tile * of_tile + i % of_tile) * PART_ROWS, 0]
    tma.async_copy_global_to_shared(parts, at, full, stage_of(held.parts, m + i), pred=pred)


@gluon.jit
def narrow_part(x, at, dQ, start, Nq, d):
    """Write x, the sums at ``at``, as 16 rows of dQ, the gradient of one head, from row ``start`` on. Zero the sums."""
    size: gl.constexpr = PART_ROWS * PART_COLUMNS
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    gl.store(at + gl.arange(0, size, layout=flat), gl.zeros([size], gl.float32, flat))
    x = gl.permute(gl.reshape(x.to(dQ.dtype.element_ty), [2, 4, 8, 4, 2, 2]), (0, 3, 5, 1, 4, 2))
    whole: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    x = gl.convert_layout(gl.reshape(x, [16, 64]), whole)
    row = start + gl.arange(0, 16, layout=gl.SliceLayout(1, whole))  # [16]
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, whole))  # [d]
    to = dQ + row[:, None] * d + column[None, :]
    gl.store(to, x, mask=(row < Nq)[:, None] & (column < d)[None, :])


@gluon.jit
def hidden(x):
    """Return x, hidden from the compiler, so that values derived from it take no registers of other roles."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fence_async():
    """Let the copy engine see all writes to global memory that this thread sees."""
    gl.inline_asm_elementwise("fence.proxy.async; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@triton.jit
def narrow(
    dQ, sums,  # pointers: dQ [B, H, Nq, d] contiguous, and the sums that ``add`` leaves
    scale, Nq, Nq_padded, d, first, heads,
    Br: tl.constexpr, width: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Write scale * sums, in the order of dQ, as one part of a tile: program (i, w, head), from the last head on.

    first: the first query head that is still to be narrowed. heads: how many the sums have room for.
    """
    dependent_launch.begin(early)
    i, w = tl.program_id(0), tl.program_id(1)
    h = tl.num_programs(2) - 1 - tl.program_id(2)  # L2 still has the last sums
    head = first + h.to(tl.int64)
    sums += (head % heads * Nq_padded + i * Br) * width
    dQ += head * Nq * d
    if transposed(width):
        size: tl.constexpr = Br * width // HALVES
        x = tl.load(sums + w * size + tl.arange(0, size))
        x = tl.permute(tl.reshape(x, [width // 16, 4, 8, 4, 2, 2]), (0, 3, 5, 1, 4, 2))
        dQ_i = tl.reshape(x, [Br // HALVES, width]) * scale  # [Br / 2, d]
        narrowed(dQ, dQ_i, i * Br + w * (Br // HALVES), 0, Nq, d)
    elif w == 0:
        narrowed(dQ, columns_in_order(sums, Br, 64) * scale, i * Br, 0, Nq, d)
    else:
        narrowed(dQ, columns_in_order(sums + Br * 64, Br, width - 64) * scale, i * Br, 64, Nq, d)


@triton.jit
def columns_in_order(sums, rows: tl.constexpr, columns: tl.constexpr):
    """Return a part of a tile of sums, [rows, columns], that ``add`` left at this address."""
    x = tl.load(sums + tl.arange(0, rows * columns))
    return tl.reshape(tl.permute(tl.reshape(x, [columns // 8, 4, 8, 4, 2, 2]), (1, 4, 2, 0, 3, 5)), [rows, columns])


@triton.jit
def narrowed(dQ, x, row, column, Nq, d):
    """Write x [rows, columns] in the dtype of dQ [Nq, d], from this row and column on."""
    i, j = row + tl.arange(0, x.shape[0])[:, None], column + tl.arange(0, x.shape[1])[None, :]
    tl.store(dQ + i * d + j, x.to(dQ.dtype.element_ty), mask=(i < Nq) & (j < d))
