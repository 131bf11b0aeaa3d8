"""The backward pass for compute capability 9.0 in one pass over the tiles: 5 products of tiles, not 7.

Programs take tiles of keys in turn (``turns``), half a tile in each of two consumers (warpgroups), and iterate over the
queries. dK_j and dV_j stay in registers until the end of a turn. dQ_i is computed a tile at a time and added to sums in
global memory, in float32; idle warps narrow them (``sums``). All tiles of keys of a head add to the same sums, in an
order that differs from run to run, and so do the last bits of dQ. ``flashlab.kernels.portable.backward`` gives the same
bits every time.

Tiles are transposed, [Bc, Br], so that P^T and dS^T multiply from the left as they come out of the registers. dS^T also
goes to shared memory, because dQ_i takes the keys of both consumers: each then makes one half of dQ_i. That product is
issued a step late, after the next S^T, so that the tensor cores are busy with it while P is computed.

Shared memory delivers 128 bytes per cycle, and products of tiles in shared memory would take all of them. With 64
columns, registers hold what every step multiplies from the left: K, V, and K^T, since dQ_i comes transposed there.

Source: FlashAttention-3, section 3, and its backward kernel's division of labour; the order of a step is that of
FlashAttention-4, but for dQ_i.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import hopper_width
from flashlab.kernels.hopper import derivatives, queries
from flashlab.kernels.hopper.descriptors import descriptor, flat_descriptor, multiprocessors, rows_descriptor
from flashlab.kernels.hopper.products import accumulator, operand, product
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_empty, wait_full
from flashlab.kernels.hopper.sums import (
    PART_COLUMNS,
    PART_ROWS,
    add,
    barrier,
    hold,
    lag_of,
    narrow,
    narrow_earlier,
    ring_of,
    size_of,
    transposed,
)
from flashlab.kernels.hopper.turns import Turns, announce, finish, take, taken, turn_of
from flashlab.kernels.launch import again, launch
from flashlab.kernels.portable.backward import (
    padded_rows,
    parts_of,
    scratch_for,
    shares_in,
    size_of_shares,
    start_rows,
    start_sums,
)

ROWS = gl.constexpr(64)  # keys of a warpgroup: what one product takes
CONSUMERS = gl.constexpr(2)
KEYS = 128  # of a program: those of its consumers
ROWS_OF_QUERIES = 64  # in a tile: the sums of dQ are ordered by such tiles
BUFFERS = gl.constexpr(4)  # of dS^T: one is written, one read, one may still be read by a slower warpgroup; and at the
# end of a turn, dK_j and dV_j leave through them, which at 128 columns takes all
REGISTERS = gl.constexpr(240)  # per thread of a consumer
OTHER_REGISTERS = gl.constexpr(24)  # of the producer, and of the warps that narrow
WARPS = gl.constexpr(2)  # that narrow


def run(gradients, incoming, saved, problem, launches):
    """Fill dq, dk, dv as ``portable.backward.run`` does, except for the last bits of dq, which may differ.

    All of one dtype, float16 or bfloat16; d and dv at most 128; Nq and Nk at least 1. Inputs must be ``tiles.ready``,
    and dq, dk, dv contiguous. launches: a ``Configuration`` for "backward", of which Br, that is ROWS_OF_QUERIES, and
    stages count, and one for "row_constants". No dropout, and of a ``Rule`` some query sees each key.

    Returns delta and what ``again`` does, as that one.
    """
    dq, *of_keys = gradients
    q, k, v, o, lse = saved
    problem, dk, dv, k, v = without_unseen(problem, *of_keys, k, v)
    c, width = launches["backward"], hopper_width(problem.d, problem.dv)
    lag, heads = lag_of(problem, KEYS, width), problem.B * problem.Hk * c.parts
    sums = size_of(heads, lag, padded_rows(problem.Nq), width, problem.group // c.parts)
    scratch = scratch_for(lse, sums, size_of_shares((dk, dv), c.parts))
    options = problem, of_keys[0].shape[2], lag, c, launches["row_constants"]
    known = again(start, (q, k, v, o, lse, *incoming), (dq, dk, dv, scratch), *options, when=problem.plain)
    return None if problem.sinks is None else parts_of(scratch, lse)[1], known


def start(q, k, v, o, lse, do, dlse, dq, dk, dv, scratch, problem, keys, lag, c, of_rows):
    """Launch the kernels. keys: of the tensors that dk and dv are the ends of; their strides depend on it."""
    lse_log2, delta, others = parts_of(scratch, lse)
    heads, group, Nq_padded = problem.B * problem.Hk * c.parts, problem.group // c.parts, delta.shape[2]
    width = hopper_width(problem.d, problem.dv)
    zeros = others[: size_of(heads, lag, Nq_padded, width, group)]
    ring, shares = ring_of(zeros, heads, Nq_padded, width), shares_in(scratch, (dk, dv), c.parts)
    of_sums = lse_log2, delta, *ring, dq
    return [
        start_rows(o, do, lse, dlse, lse_log2, delta, zeros, of_rows),
        start_products(q, do, k, v, *shares, *of_sums, Nq_padded, problem, lag, c),
        start_narrow(dq, ring[0], problem.scale, min(lag or heads, heads) * group),
        *start_sums((dk, dv), shares, c.parts),
    ]


class Sums:
    """The sums of dQ, to which several calls may add, each with other keys, and what all of them need of each row.

    do and o [B, H, Nq, dv]; lse [B, H, Nq] is that of all keys. width: columns of the kernel's tiles.
    """

    def __init__(self, do, dlse, o, lse, width, launch_of_rows):
        B, H, Nq = lse.shape
        size = size_of(B * H, None, padded_rows(Nq), width, 1)
        self.lse_log2, self.delta, zeros = parts_of(scratch_for(lse, size), lse)
        self.dQ, self.counters = ring_of(zeros, B * H, padded_rows(Nq), width)
        again(start_rows, (o, do, lse, dlse, self.lse_log2, self.delta, zeros), (), launch_of_rows)

    def add(self, of_queries, of_keys, gradients, problem, c, row=0):
        """Fill dk and dv from (q, do) and (k, v), and add their share to the sums of dQ.

        The queries are those from ``row`` on. They begin and end with a tile of c.Br, or with the last query.
        """
        problem, dk, dv, k, v = without_unseen(problem, *gradients, *of_keys)
        constants = (x.view(-1)[row:] for x in (self.lse_log2, self.delta))
        _, Nq_padded, width = self.dQ.shape
        scratch = dk.new_empty(size_of_shares((dk, dv), c.parts), dtype=torch.uint8)
        shares = shares_in(scratch, (dk, dv), c.parts)
        tensors = *of_queries, k, v, *shares, *constants, self.dQ.view(-1, width)[row:], self.counters, None
        again(start_products, tensors, (), Nq_padded, problem, None, c, when=problem.plain)
        start_sums((dk, dv), shares, c.parts)

    def narrow(self, dq, scale):
        """Fill dq [B, H, Nq, d], contiguous, with scale times the sums."""
        again(start_narrow, (dq, self.dQ), (), scale, len(self.dQ))


def start_products(q, do, k, v, dk, dv, lse_log2, delta, sums, counters, dq, Nq_padded, problem, lag, c):
    """Launch the kernel of dK, dV and the sums of dQ: lse_log2 and delta [..., rows], sums [..., rows, width].

    lag: between heads that are added to and those that are narrowed. None: none is.
    """
    width = sums.shape[-1]
    streamed = [descriptor(x, c.Br, width) for x in (q, do)]
    kept = [descriptor(x, ROWS.value, width) for x in (k, v, dk, dv)]
    constants = [flat_descriptor(x, c.Br) for x in (lse_log2, delta)]
    earlier = None, None
    if lag is not None:
        earlier = rows_descriptor(sums, PART_ROWS.value, PART_COLUMNS.value), dq
    told, _ = problem._replace(mask=masks.full(), sinks=None).told(c)
    Hk = problem.Hk * c.parts
    told = told._replace(mask=queries.told(problem, c.Br, KEYS), score=derivatives.told(problem), d=None, dv=None)
    tiles_of_keys = tiles.count(problem.Nk, KEYS)
    all_turns = tiles_of_keys * Hk * problem.B
    flags = problem.Nk % KEYS != 0, is_late(problem, width)
    return launch(
        attention_backward,
        (min(all_turns, multiprocessors(problem.device)), 1, 1),
        (*streamed, *kept, *constants, sums, counters, *earlier),
        (Turns(tiles_of_keys, Hk, all_turns), Nq_padded, told, lag, problem.d, c.Br, width, c.stages, *flags),
        warps=4,
    )


def is_late(problem, width):
    """Tell whether the second consumer leaves out the first tile of queries, which see none of its keys.

    With 128 columns it does not: that loop would spill more.
    """
    aligned = problem.Nq >= problem.Nk and (problem.Nq - problem.Nk) % KEYS == 0
    return transposed(width) and aligned and problem.mask == masks.causal()


def start_narrow(dq, sums, scale, last):
    """Launch the kernel that narrows the sums of dQ of this many heads, the last ones."""
    B, H, Nq, d = dq.shape
    heads, Nq_padded, width = sums.shape
    grid = tiles.count(Nq, ROWS_OF_QUERIES), CONSUMERS.value, last
    numbers = scale, Nq, Nq_padded, d, B * H - last, heads, ROWS_OF_QUERIES, width
    return launch(narrow, grid, (dq, sums), numbers, warps=4)


def without_unseen(problem, dk, dv, k, v):
    """Leave out the keys before the window of the first query: no query sees them, and their gradients are 0.

    Masks are aligned at the lower right, so the others keep their places.
    """
    left = None if isinstance(problem.mask, masks.Rule) else problem.mask.left
    unseen = 0 if left is None else problem.Nk - problem.Nq - left
    if unseen <= 0:
        return problem, dk, dv, k, v
    dk[:, :, :unseen] = dv[:, :, :unseen] = 0
    return problem._replace(Nk=problem.Nk - unseen), *(x[:, :, unseen:] for x in (dk, dv, k, v))


class Shared(NamedTuple):
    """Shared memory: rings of tiles, and the barriers that guard them (``stages``)."""

    K: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    V: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    Q: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    dO: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    lse: gl.shared_memory_descriptor  # [stages, Br]
    delta: gl.shared_memory_descriptor  # [stages, Br]
    dSt: gl.shared_memory_descriptor  # [CONSUMERS * BUFFERS, ROWS, Br]      those of a consumer are neighbours
    turns: gl.shared_memory_descriptor  # [2, 1]      of this program, the last two
    k_full: gl.shared_memory_descriptor  # rings of one stage, used once per turn
    v_full: gl.shared_memory_descriptor  # and, with a lag: the sums of dQ may be added to
    q_full: gl.shared_memory_descriptor  # per stage: the bytes of Q_i and lse_i have arrived
    do_full: gl.shared_memory_descriptor  # and: those of dO_i and delta_i
    ds_full: gl.shared_memory_descriptor  # per buffer: both consumers have written their part of dS^T, and so are done
    # with the step before
    k_empty: gl.shared_memory_descriptor  # once per turn: both consumers are done with K, V and dS^T
    added: gl.shared_memory_descriptor  # and: they have added to all sums


class Kept(NamedTuple):
    """The operands that all steps of a warpgroup have in common: in registers if there is room, or in shared memory."""

    K_j: gl.tensor  # [Bc, d]
    V_j: gl.tensor  # [Bc, d]
    K_0: gl.tensor  # of dQ_i, the keys of both warpgroups: half of their columns, [Bc, d / 2], or transposed, [d, Bc]
    K_1: gl.tensor


@gluon.jit
def attention_backward(
    Q, dO, K, V, dK, dV, lse_log2, delta,  # descriptors; of lse_log2 and delta flat, [B * H * Nq_padded]
    sums,  # pointer to the sums of dQ, float32, [heads, Nq_padded * width], each tile as ``sums.add`` orders it
    counters,  # pointer, int32 [1 + B * Hk]: of turns, and with a lag, of tiles of each head that are done
    parts, dQ,  # with a lag: descriptor of the sums, pointer to dQ; None without
    turns, Nq_padded, problem, lag, d,
    Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr, ragged: gl.constexpr,
    late: gl.constexpr,
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV for each tile j of keys, and add its share to dQ.

    turns: ``Turns``. Causal: the first tiles of a head have the keys that most queries see. lag: as in ``sums``, or
    None. ragged: Bc does not divide Nk. late: as ``is_late`` tells. Where a group has several parts, a head of K and V
    counts as so many heads in a row, as in the portable kernel.
    """
    shared = allocate(Q, dO, K, V, lse_log2, delta, lag, Br, width, stages)
    if lag is None:
        gl.warp_specialize(
            [
                (consume, (shared, dK, dV, sums, turns, Nq_padded, problem, lag, 0, ragged, False)),
                (consume, (shared, dK, dV, sums, turns, Nq_padded, problem, lag, 1, ragged, late)),
                (produce, (shared, Q, dO, K, V, lse_log2, delta, counters, turns, Nq_padded, problem, lag)),
            ],
            [4, 1],
            [REGISTERS, OTHER_REGISTERS],
        )
    else:
        held = hold(parts)
        gl.warp_specialize(
            [
                (consume, (shared, dK, dV, sums, turns, Nq_padded, problem, lag, 0, ragged, False)),
                (consume, (shared, dK, dV, sums, turns, Nq_padded, problem, lag, 1, ragged, late)),
                (produce, (shared, Q, dO, K, V, lse_log2, delta, counters, turns, Nq_padded, problem, lag)),
                (narrow_earlier, (shared, held, parts, sums, counters, dQ, turns, Nq_padded, problem, lag, d, WARPS)),
            ],
            [4, 1, WARPS],
            [REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS],
        )


@gluon.jit
def allocate(Q, dO, K, V, lse_log2, delta, lag, Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr):
    """Return shared memory for what the descriptors bring, and barriers in their first phase."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    dSt_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, Br], Q.dtype)
    shared = Shared(
        gl.allocate_shared_memory(K.dtype, [CONSUMERS, 1, 1, ROWS, width], K.layout),
        gl.allocate_shared_memory(V.dtype, [CONSUMERS, 1, 1, ROWS, width], V.layout),
        gl.allocate_shared_memory(Q.dtype, [stages, 1, 1, Br, width], Q.layout),
        gl.allocate_shared_memory(dO.dtype, [stages, 1, 1, Br, width], dO.layout),
        gl.allocate_shared_memory(gl.float32, [stages, Br], lse_log2.layout),
        gl.allocate_shared_memory(gl.float32, [stages, Br], delta.layout),
        gl.allocate_shared_memory(Q.dtype, [CONSUMERS * BUFFERS, ROWS, Br], dSt_layout),
        gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
    )
    mbarrier.init(shared.k_full.index(0), count=1)
    mbarrier.init(shared.v_full.index(0), count=1 if lag is None else 2)
    mbarrier.init(shared.k_empty.index(0), count=CONSUMERS)
    mbarrier.init(shared.added.index(0), count=CONSUMERS)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.q_full.index(stage), count=1)
        mbarrier.init(shared.do_full.index(stage), count=1)
    for buffer in gl.static_range(BUFFERS):
        mbarrier.init(shared.ds_full.index(buffer), count=CONSUMERS)
    fence_async_shared()
    return shared


@gluon.jit
def produce(shared, Q, dO, K, V, lse_log2, delta, counter, turns, Nq_padded, problem, lag):
    """Ask for every tile in the order in which it is used, as soon as there is room for it. counter: of turns."""
    n, t = 0, 0
    turn = take(counter)
    while turn < turns.all:
        t = produce_turn(shared, Q, dO, K, V, lse_log2, delta, turn, turns, Nq_padded, problem, lag, n, t)
        turn = take(counter)
        n += 1
    wait_empty(shared.k_empty, n)
    announce(shared.turns, n, turn)
    release(shared.k_full, n)
    finish(counter, turn, turns)


@gluon.jit
def produce_turn(shared, Q, dO, K, V, lse_log2, delta, turn, turns, Nq_padded, problem, lag, n, t):
    """Do so for the n-th turn of this program, which begins with step t. Return the step after it."""
    stages: gl.constexpr = shared.Q.shape[0]
    Br: gl.constexpr = shared.Q.shape[3]
    work = queries.work_of(turn, turns, problem, Nq_padded, lag, CONSUMERS * ROWS, Br, 1)
    start = t
    for member in range(problem.group):
        h = work.hk * problem.group + member
        head = (work.b * work.H + h) * work.Nq_padded
        begin, end = work.begin, work.end
        if problem.mask.rules is not None:
            _, end = queries.places(work, problem, h)
        for place in range(begin, end):
            i = queries.at(work, problem, h, place)
            # The stage is free when both consumers are in the step after the one that used it.
            wait_full(shared.ds_full, gl.maximum(t + 1 - stages, 0), pred=t >= stages)
            full = stage_of(shared.q_full, t)
            mbarrier.expect(full, Q.block_type.nbytes + lse_log2.block_type.nbytes)
            tma.async_copy_global_to_shared(Q, [work.b, h, i * Br, 0], full, stage_of(shared.Q, t))
            tma.async_copy_global_to_shared(lse_log2, [head + i * Br], full, stage_of(shared.lse, t))
            if t == start:
                wait_empty(shared.k_empty, n)
                announce(shared.turns, n, turn)
                ask_for_keys(K, shared.K, shared.k_full.index(0), work, problem.parts)
            full = stage_of(shared.do_full, t)
            mbarrier.expect(full, dO.block_type.nbytes + delta.block_type.nbytes)
            tma.async_copy_global_to_shared(dO, [work.b, h, i * Br, 0], full, stage_of(shared.dO, t))
            tma.async_copy_global_to_shared(delta, [head + i * Br], full, stage_of(shared.delta, t))
            if t == start:
                ask_for_keys(V, shared.V, shared.v_full.index(0), work, problem.parts)
            t += 1
    return t


@gluon.jit
def ask_for_keys(X, buffers, full, work, parts):
    """Ask for a turn's tile of K or V, in the parts of the consumers."""
    mbarrier.expect(full, CONSUMERS * X.block_type.nbytes)
    for w in gl.static_range(CONSUMERS):
        at = [work.b, work.hk // parts, (work.j * CONSUMERS + w) * ROWS, 0]
        tma.async_copy_global_to_shared(X, at, full, buffers.index(w))


@gluon.jit
def consume(
    shared, dK, dV, sums, turns, Nq_padded, problem, lag,
    w: gl.constexpr, ragged: gl.constexpr, late: gl.constexpr,
):  # fmt: skip
    """Be warpgroup w, which has the keys w * ROWS .. (w + 1) * ROWS of a tile. late: the first queries see none."""
    n, t = 0, 0
    turn = taken(shared, 0)
    while turn < turns.all:
        t = consume_turn(shared, dK, dV, sums, turn, turns, Nq_padded, problem, lag, n, t, w, ragged, late)
        n += 1
        turn = taken(shared, n)
    tma.store_wait(0)


@gluon.jit
def consume_turn(
    shared, dK, dV, sums, turn, turns, Nq_padded, problem, lag, n, t,
    w: gl.constexpr, ragged: gl.constexpr, late: gl.constexpr,
):  # fmt: skip
    """Take the n-th turn of this program, which begins with step t. Return the step after it."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    work = queries.work_of(turn, turns, problem, Nq_padded, lag, CONSUMERS * ROWS, Br)
    start = (work.j * CONSUMERS + w) * ROWS
    nothing = gl.zeros([ROWS, width], gl.float32, accumulator(width))  # [Bc, d]
    keys = queries.keys_of(problem, work.b, start, ROWS, ragged, gl.SliceLayout(1, accumulator(Br)))
    these = queries.first(work, problem, Br)
    wait_full(shared.v_full, n)
    kept = keep(shared, problem, w)
    if late:
        leave_out(shared, t, w)
        dK_j, dV_j = nothing, nothing
    else:
        dK_j, dV_j = step(shared, kept, sums, nothing, nothing, these, keys, work, problem, t, 0, w, ragged, True)
    end = t + queries.count(work, problem)
    for at in range(t + 1, end):
        tile_before = these.tile
        these = queries.following(these, work, problem, Br)
        dK_j, dV_j = step(shared, kept, sums, dK_j, dV_j, these, keys, work, problem, at, tile_before, w, ragged, False)

    wait_full(shared.ds_full, end - 1)
    dQ_i = share_of_dQ(shared, kept, end - 1, w)
    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))
    release(shared.k_empty, n)
    add(sums, these.tile, w, dQ_i)
    if lag is not None:
        barrier()
        release(shared.added, n)
    # Computed again, so that it takes no registers in the loop.
    work = queries.work_of(turn_of(shared, n), turns, problem, Nq_padded, lag, CONSUMERS * ROWS, Br)
    wait_full(shared.k_empty, n)
    store(shared, dK, dV, dK_j * problem.scale, dV_j, work, w)
    return end


@gluon.jit
def leave_out(shared, t, w: gl.constexpr):
    """Take step t without products: no score counts."""
    Br: gl.constexpr = shared.Q.shape[3]
    nothing = gl.zeros([ROWS, Br], gl.float32, accumulator(Br))  # [Bc, Br]
    wait_full(shared.q_full, t)
    wait_full(shared.do_full, t)
    let_leave()
    shared.dSt.index(w * BUFFERS + t % BUFFERS).store(nothing.to(shared.K.dtype))
    fence_async_shared()
    release(shared.ds_full, t)


@gluon.jit
def store(shared, dK, dV, dK_j, dV_j, work, w: gl.constexpr):
    """Write a warpgroup's rows of dK and dV by way of its buffers of dS^T, which nobody reads any more."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    half: gl.constexpr = width // Br  # of the buffers, at 128 columns
    out_V = shared.dSt.index(w * BUFFERS)._reinterpret(dV.dtype, [1, 1, ROWS, width], dV.layout)
    out_K = shared.dSt.index(w * BUFFERS + half)._reinterpret(dK.dtype, [1, 1, ROWS, width], dK.layout)
    matrix(out_V).store(dV_j.to(dV.dtype))
    matrix(out_K).store(dK_j.to(dK.dtype))
    fence_async_shared()
    at = [work.b, work.hk, (work.j * CONSUMERS + w) * ROWS, 0]
    tma.async_copy_shared_to_global(dV, at, out_V)
    tma.async_copy_shared_to_global(dK, at, out_K)


@gluon.jit
def let_leave():
    """Wait until what ``store`` wrote in the turn before has left the buffers."""
    tma.store_wait(0)
    barrier()


@gluon.jit
def keep(shared, problem, w: gl.constexpr):
    """Return what warpgroup w keeps of K and V. Score functions need the registers themselves."""
    Br: gl.constexpr = shared.Q.shape[3]
    half: gl.constexpr = shared.Q.shape[4] // CONSUMERS
    K_j, V_j = matrix(shared.K.index(w)), matrix(shared.V.index(w))  # [Bc, d]
    K_0, K_1 = matrix(shared.K.index(0)), matrix(shared.K.index(1))  # [Bc, d]
    if not transposed(shared.Q.shape[4]):
        return Kept(K_j, V_j, K_0.slice(w * half, half, dim=1), K_1.slice(w * half, half, dim=1))
    elif problem.score is not None:
        return Kept(K_j, V_j, K_0.permute((1, 0)), K_1.permute((1, 0)))
    else:
        left: gl.constexpr = gl.DotOperandLayout(0, accumulator(Br), 2)
        of_dQ: gl.constexpr = gl.DotOperandLayout(0, accumulator(half), 2)
        K_0, K_1 = K_0.permute((1, 0)).load(of_dQ), K_1.permute((1, 0)).load(of_dQ)
        return Kept(K_j.load(left), V_j.load(left), K_0, K_1)


@gluon.jit
def step(
    shared, kept, sums, dK_j, dV_j, these, keys, work, problem, t, tile_before,
    w: gl.constexpr, ragged: gl.constexpr, first: gl.constexpr,
):  # fmt: skip
    """Take step t: these queries contribute to dK_j and dV_j, and the tile of the step before gets its share of dQ."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    dtype: gl.constexpr = shared.K.dtype
    Q_i, dO_i = matrix(stage_of(shared.Q, t)), matrix(stage_of(shared.dO, t))  # [Br, d]
    wait_full(shared.q_full, t)
    lse_i = along_queries(stage_of(shared.lse, t), accumulator(Br))  # [1, Br], before products keep the memory busy
    St_ij = product(kept.K_j, Q_i)  # [Bc, Br]
    wait_full(shared.do_full, t)
    dPt_ij = product(kept.V_j, dO_i)  # [Bc, Br]
    St_ij = warpgroup_mma_wait(1, deps=(St_ij,))
    scarce: gl.constexpr = width > 64  # registers
    Pt_ij, sloped = weights(St_ij, lse_i, these, keys, work, problem, ragged, scarce)  # [Bc, Br] each
    Pt_left = operand(Pt_ij, dtype, width)  # [Bc, Br]
    at_once: gl.constexpr = scarce and problem.score is not None  # slopes take the registers of a Pt_left that waits
    if at_once:
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
        dPt_ij = warpgroup_mma_wait(1, deps=(dPt_ij,))
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
    else:
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
        dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))
    dSt_ij = (sloped * (dPt_ij - delta_i)).to(dtype)  # [Bc, Br]
    if first:
        let_leave()
    else:  # the other warpgroup has left the step that read what is overwritten next
        wait_full(shared.ds_full, t - 1)
    shared.dSt.index(w * BUFFERS + t % BUFFERS).store(dSt_ij)
    dSt_left = operand(dSt_ij, dtype, width)
    if not at_once:
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
    fence_async_shared()
    release(shared.ds_full, t)
    if not first:
        dQ_i = share_of_dQ(shared, kept, t - 1, w)
    dK_j = warpgroup_mma(dSt_left, Q_i, dK_j, use_acc=not first, is_async=True)
    if not first:
        dQ_i = warpgroup_mma_wait(1, deps=(dQ_i,))
        add(sums, tile_before, w, dQ_i)
    return warpgroup_mma_wait(0, deps=(dK_j, dV_j))


@gluon.jit
def weights(dot, lse_log2, these, keys, work, problem, ragged: gl.constexpr, scarce: gl.constexpr):
    """Return Pt_ij = exp2(S_ij^T - lse), with lse [1, Br], and its product with the score's derivative.

    dot: K_j Q_i^T. The second is what the gradient of dot needs; a score function costs no register beside it.
    """
    St_ij, slope = dot, 1.0  # [Bc, Br]
    if problem.score is not None:
        i, j = queries.rows_and_columns(these, keys, dot)
        St_ij, slope = derivatives.apply(problem, dot * problem.scale, work.b, these.h, i, j)  # [Bc, Br] each
    Pt_ij = gl.exp2(St_ij * problem.scale_log2 - lse_log2)  # [Bc, Br]
    if problem.mask.rules is not None:
        if queries.are_cut(these, keys, problem, dot.shape[1]):
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, ragged)
    elif ragged or problem.mask.left is not None or problem.mask.right is not None or problem.mask.table is not None:
        # Of whole tiles, too, where registers are scarce: slopes that stay in use across a branch would be too many.
        if scarce and problem.score is not None:
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, ragged)
        elif queries.are_cut(these, keys, problem, dot.shape[1]):
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, ragged)
    return Pt_ij, Pt_ij * slope


@gluon.jit
def along_queries(x, layout: gl.constexpr):
    """Return x [Br], which is in shared memory, as [1, Br] for a tile of scores of this layout."""
    return x.load(gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def share_of_dQ(shared, kept, t, w: gl.constexpr):
    """Issue this warpgroup's half of dQ_i = dS_ij K_j of step t: of its columns, or transposed, of its queries."""
    width: gl.constexpr = shared.Q.shape[4]
    columns: gl.constexpr = width // CONSUMERS
    dQ_i = gl.zeros([ROWS, columns], gl.float32, accumulator(columns))  # [Br, d / 2], or [d, Br / 2]
    for part in gl.static_range(CONSUMERS):  # the keys of one warpgroup
        dSt_ij = shared.dSt.index(part * BUFFERS + t % BUFFERS)
        if transposed(width):
            left, right = kept[2 + part], dSt_ij.slice(w * columns, columns, dim=1)
        else:
            left, right = dSt_ij.permute((1, 0)), kept[2 + part]
        dQ_i = warpgroup_mma(left, right, dQ_i, use_acc=part > 0, is_async=True)
    return dQ_i
