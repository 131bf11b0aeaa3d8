"""The backward pass for compute capability 9.0 in one pass over the tiles: 5 products of tiles, not 7.

A program owns a tile of keys, half of it in each of two consumers (warpgroups), and iterates over the queries. dK_j and
dV_j stay in registers until the end. dQ_i is computed a tile at a time and added to sums in global memory, in float32;
a last kernel narrows them. Every program of a head adds to the same sums, in an order that differs from run to run, and
so do the last bits of dQ. ``flashlab.kernels.portable.backward`` is the one that gives the same bits every time.

Tiles are transposed, [Bc, Br], so that P^T and dS^T multiply from the left as they come out of the registers. dS^T also
goes to shared memory, because dQ_i takes the keys of both consumers: each then makes one half of dQ_i. That product is
issued a step late, after the next S^T, so that the tensor cores are busy with it while P is computed.

Source: FlashAttention-3, section 3, and its backward kernel's division of labour.
"""

from typing import NamedTuple

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
from flashlab.kernels.hopper.descriptors import descriptor, flat_descriptor
from flashlab.kernels.hopper.products import accumulator, operand, product
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_full
from flashlab.kernels.hopper.sums import add, narrow
from flashlab.kernels.launch import launch
from flashlab.kernels.portable.backward import constants_of_rows

ROWS = gl.constexpr(64)  # keys of a warpgroup: what one product takes
CONSUMERS = gl.constexpr(2)
KEYS = 128  # of a program: those of its consumers
BUFFERS = gl.constexpr(3)  # of dS^T: one is written, one read, and one may still be read by a slower warpgroup
REGISTERS = gl.constexpr(240)  # per thread of a consumer
PRODUCER_REGISTERS = gl.constexpr(24)
NEVER = gl.constexpr(2**30)  # a query that no sequence has


def run(gradients, incoming, saved, problem, launches):
    """Fill dq, dk, dv as ``portable.backward.run`` does, except for the last bits of dq, which may differ.

    All of one dtype, float16 or bfloat16; d and dv at most 128; Nq and Nk at least 1. Inputs must be ``tiles.ready``,
    and dq, dk, dv contiguous. launches: a ``Configuration`` for "backward", of which Br, which is 64, and stages count,
    and one for "row_constants".
    """
    dq, dk, dv = gradients
    do, dlse = incoming
    q, k, v, o, lse = saved
    B, H, Hk, Nq, Nk, d, columns = problem[:7]
    c, width = launches["backward"], hopper_width(d, columns)
    lse_log2, delta = constants_of_rows(do, dlse, o, lse, launches["row_constants"])
    Nq_padded = delta.shape[2]
    sums = lse.new_zeros(B, H, Nq_padded, width)
    streamed = [descriptor(x, c.Br, width) for x in (q, do)]
    kept = [descriptor(x, ROWS.value, width) for x in (k, v, dk, dv)]
    constants = [flat_descriptor(x, c.Br) for x in (lse_log2, delta)]
    launch(
        attention_backward,
        (tiles.count(Nk, KEYS), Hk, B),
        (*streamed, *kept, *constants, sums),
        (Hk, problem.group, Nq, Nq_padded, Nk, problem.scale, problem.scale_log2)
        + (c.Br, width, c.stages, problem.mask, Nk % KEYS != 0),
        warps=4,
    )
    sizes = (problem.scale, Nq, Nq_padded, d, c.Br, width)
    launch(narrow, (tiles.count(Nq, c.Br), CONSUMERS.value, B * H), (dq, sums), sizes, warps=4)


class Shared(NamedTuple):
    """Shared memory: rings of tiles, and the barriers that guard them (``stages``)."""

    K: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]      at the end, dK_j on its way out
    V: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]      at the end, dV_j
    Q: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    dO: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    lse: gl.shared_memory_descriptor  # [stages, Br]
    delta: gl.shared_memory_descriptor  # [stages, Br]
    dSt: gl.shared_memory_descriptor  # [BUFFERS * CONSUMERS, ROWS, Br]
    k_full: gl.shared_memory_descriptor  # used once, as a ring of one stage
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # per stage: the bytes of Q_i and lse_i have arrived
    do_full: gl.shared_memory_descriptor  # and: those of dO_i and delta_i
    ds_full: gl.shared_memory_descriptor  # per buffer: both consumers have written their part of dS^T, and so are done
    # with the step before
    k_empty: gl.shared_memory_descriptor  # both consumers are done with K


class Work(NamedTuple):
    """The work of a program: its tile of keys, the tiles of queries that it meets, and the problem's sizes."""

    j: gl.tensor
    b: gl.tensor
    hk: gl.tensor
    H: gl.tensor
    group: gl.tensor  # query heads per key/value head: the program takes them one after the other
    begin: gl.tensor  # of each, tiles begin .. end of queries
    end: gl.tensor
    Nq: gl.tensor
    Nq_padded: gl.tensor
    Nk: gl.tensor
    scale: gl.tensor
    scale_log2: gl.tensor


class Visible(NamedTuple):
    """The queries that see the keys of a warpgroup."""

    since: gl.tensor  # [Bc]      the first query that sees each key
    by_all: gl.tensor  # the first query that sees all of them


@gluon.jit
def attention_backward(
    Q, dO, K, V, dK, dV, lse_log2, delta,  # descriptors; of lse_log2 and delta flat, [B * H * Nq_padded]
    sums,  # pointer to the sums of dQ, float32, [B, H, Nq_padded * width], each tile as ``sums.add`` orders it
    Hk, group, Nq, Nq_padded, Nk, scale, scale_log2,
    Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr, mask: gl.constexpr, ragged: gl.constexpr,
):  # fmt: skip
    """Compute, in program (j, hk, b), rows j * Bc .. (j + 1) * Bc of dK and dV, and add its share to dQ.

    Causal: the first programs have the keys that most queries see. ragged: Bc does not divide Nk.
    """
    shared = allocate(Q, dO, K, V, lse_log2, delta, Br, width, stages)
    j, hk, b = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    keys: gl.constexpr = CONSUMERS * ROWS
    begin, end = masks.bounds(masks.Window(mask.right, mask.left), j * keys, keys, Nk, Nq)  # of the queries
    begin, end = gl.to_tensor(begin) // Br, gl.cdiv(end, Br)
    work = Work(j, b, hk, Hk * group, group, begin, end, Nq, Nq_padded, Nk, scale, scale_log2)
    gl.warp_specialize(
        [
            (consume, (shared, dK, dV, sums, work, 0, mask, ragged)),
            (consume, (shared, dK, dV, sums, work, 1, mask, ragged)),
            (produce, (shared, Q, dO, K, V, lse_log2, delta, work)),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )


@gluon.jit
def allocate(Q, dO, K, V, lse_log2, delta, Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr):
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
        gl.allocate_shared_memory(Q.dtype, [BUFFERS * CONSUMERS, ROWS, Br], dSt_layout),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
    )
    mbarrier.init(shared.k_full.index(0), count=1)
    mbarrier.init(shared.v_full.index(0), count=1)
    mbarrier.init(shared.k_empty.index(0), count=CONSUMERS)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.q_full.index(stage), count=1)
        mbarrier.init(shared.do_full.index(stage), count=1)
    for buffer in gl.static_range(BUFFERS):
        mbarrier.init(shared.ds_full.index(buffer), count=CONSUMERS)
    fence_async_shared()
    return shared


@gluon.jit
def produce(shared, Q, dO, K, V, lse_log2, delta, work):
    """Ask for every tile in the order in which it is used, as soon as there is room for it."""
    stages: gl.constexpr = shared.Q.shape[0]
    Br: gl.constexpr = shared.Q.shape[3]
    ask_for_keys(K, shared.K, shared.k_full.index(0), work)
    t = 0
    for member in range(work.group):
        h = work.hk * work.group + member
        head = (work.b * work.H + h) * work.Nq_padded
        for i in range(work.begin, work.end):
            # The stage is free when both consumers are in the step after the one that used it.
            wait_full(shared.ds_full, gl.maximum(t + 1 - stages, 0), pred=t >= stages)
            full = stage_of(shared.q_full, t)
            mbarrier.expect(full, Q.block_type.nbytes + lse_log2.block_type.nbytes)
            tma.async_copy_global_to_shared(Q, [work.b, h, i * Br, 0], full, stage_of(shared.Q, t))
            tma.async_copy_global_to_shared(lse_log2, [head + i * Br], full, stage_of(shared.lse, t))
            if t == 0:
                ask_for_keys(V, shared.V, shared.v_full.index(0), work)
            full = stage_of(shared.do_full, t)
            mbarrier.expect(full, dO.block_type.nbytes + delta.block_type.nbytes)
            tma.async_copy_global_to_shared(dO, [work.b, h, i * Br, 0], full, stage_of(shared.dO, t))
            tma.async_copy_global_to_shared(delta, [head + i * Br], full, stage_of(shared.delta, t))
            t += 1


@gluon.jit
def ask_for_keys(X, buffers, full, work):
    """Ask for the program's tile of K or V, in the parts of its consumers."""
    mbarrier.expect(full, CONSUMERS * X.block_type.nbytes)
    for w in gl.static_range(CONSUMERS):
        at = [work.b, work.hk, (work.j * CONSUMERS + w) * ROWS, 0]
        tma.async_copy_global_to_shared(X, at, full, buffers.index(w))


@gluon.jit
def consume(shared, dK, dV, sums, work, w: gl.constexpr, mask: gl.constexpr, ragged: gl.constexpr):
    """Be warpgroup w, which has the keys w * ROWS .. (w + 1) * ROWS of the tile."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    masked: gl.constexpr = mask.right is not None or ragged
    start = (work.j * CONSUMERS + w) * ROWS
    visible = visible_keys(work, start, gl.SliceLayout(1, accumulator(Br)), mask, ragged)
    nothing = gl.zeros([ROWS, width], gl.float32, accumulator(width))  # [Bc, d]
    i = work.begin
    tile = (work.b * work.H + work.hk * work.group) * (work.Nq_padded // Br) + i  # counted over all heads
    to_next_head = work.Nq_padded // Br - (work.end - work.begin)
    wait_full(shared.k_full, 0)
    wait_full(shared.v_full, 0)
    dK_j, dV_j = step(shared, sums, work, visible, nothing, nothing, 0, i, 0, w, masked, True)
    steps = (work.end - work.begin) * work.group
    for t in range(1, steps):
        i += 1
        tile_before = tile
        tile += 1
        if i == work.end:
            i = work.begin
            tile += to_next_head
        dK_j, dV_j = step(shared, sums, work, visible, dK_j, dV_j, t, i, tile_before, w, masked, False)

    wait_full(shared.ds_full, steps - 1)
    dQ_i = share_of_dQ(shared, steps - 1, w)
    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))
    release(shared.k_empty, 0)
    add(sums, tile, w, dQ_i)
    matrix(shared.V.index(w)).store(dV_j.to(dV.dtype))
    wait_full(shared.k_empty, 0)
    matrix(shared.K.index(w)).store((dK_j * work.scale).to(dK.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dV, [work.b, work.hk, start, 0], shared.V.index(w))
    tma.async_copy_shared_to_global(dK, [work.b, work.hk, start, 0], shared.K.index(w))
    tma.store_wait(0)


@gluon.jit
def visible_keys(work, start, layout: gl.constexpr, mask: gl.constexpr, ragged: gl.constexpr):
    """Return which queries see the ROWS keys from ``start`` on, as ``Visible``."""
    key = start + gl.arange(0, ROWS, layout=layout)  # [Bc]
    since = gl.zeros([ROWS], gl.int32, layout)  # [Bc]
    by_all = gl.to_tensor(0)
    if mask.right is not None:
        since = key + work.Nq - work.Nk  # [Bc]
        by_all = start + ROWS - 1 + work.Nq - work.Nk
    if ragged:
        since = gl.where(key < work.Nk, since, NEVER)  # [Bc]
        by_all = gl.where(start + ROWS > work.Nk, NEVER, by_all)
    return Visible(since, by_all)


@gluon.jit
def step(
    shared, sums, work, visible, dK_j, dV_j, t, i, tile_before,
    w: gl.constexpr, masked: gl.constexpr, first: gl.constexpr,
):  # fmt: skip
    """Step t: tile i of queries contributes to dK_j and dV_j, and the tile of the step before gets its share of dQ."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    dtype: gl.constexpr = shared.K.dtype
    Q_i, dO_i = matrix(stage_of(shared.Q, t)), matrix(stage_of(shared.dO, t))  # [Br, d]
    K_j, V_j = matrix(shared.K.index(w)), matrix(shared.V.index(w))  # [Bc, d]
    wait_full(shared.q_full, t)
    St_ij = product(K_j, Q_i)  # [Bc, Br]
    wait_full(shared.do_full, t)
    dPt_ij = product(V_j, dO_i)  # [Bc, Br]
    St_ij = warpgroup_mma_wait(1, deps=(St_ij,))
    Pt_ij = weights(St_ij, stage_of(shared.lse, t), i * Br, visible, work.scale_log2, masked)
    dV_j = warpgroup_mma(operand(Pt_ij, dtype, width), dO_i, dV_j, use_acc=not first, is_async=True)
    dPt_ij = warpgroup_mma_wait(1, deps=(dPt_ij,))
    dSt_ij = gradient(Pt_ij, dPt_ij, stage_of(shared.delta, t)).to(dtype)  # [Bc, Br]
    if not first:  # the other warpgroup has left the step that read what is overwritten next
        wait_full(shared.ds_full, t - 1)
    shared.dSt.index((t % BUFFERS) * CONSUMERS + w).store(dSt_ij)
    dSt_left = operand(dSt_ij, dtype, width)
    fence_async_shared()
    release(shared.ds_full, t)
    if not first:
        dQ_i = share_of_dQ(shared, t - 1, w)
    dK_j = warpgroup_mma(dSt_left, Q_i, dK_j, use_acc=not first, is_async=True)
    if not first:
        dQ_i = warpgroup_mma_wait(1, deps=(dQ_i,))
        add(sums, tile_before, w, dQ_i)
    return warpgroup_mma_wait(0, deps=(dK_j, dV_j))


@gluon.jit
def weights(St_ij, lse_log2, start, visible, scale_log2, masked: gl.constexpr):
    """Return Pt_ij = exp2(scale_log2 * St_ij - lse), with lse [Br] in shared memory; the first query is start."""
    Br: gl.constexpr = St_ij.shape[1]
    query: gl.constexpr = gl.SliceLayout(0, St_ij.type.layout)
    Pt_ij = gl.exp2(St_ij * scale_log2 - lse_log2.load(query)[None, :])  # [Bc, Br]
    if masked:
        if start < visible.by_all:
            queries = start + gl.arange(0, Br, layout=query)  # [Br]
            Pt_ij = gl.where(queries[None, :] >= visible.since[:, None], Pt_ij, 0.0)
    return Pt_ij


@gluon.jit
def gradient(Pt_ij, dPt_ij, delta):
    """Return dSt_ij = Pt_ij * (dPt_ij - delta), with delta [Br] in shared memory."""
    return Pt_ij * (dPt_ij - delta.load(gl.SliceLayout(0, dPt_ij.type.layout))[None, :])


@gluon.jit
def share_of_dQ(shared, t, w: gl.constexpr):
    """Issue dQ_i = dS_ij K_j of step t for this warpgroup's half of the columns."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    columns: gl.constexpr = width // CONSUMERS
    dQ_i = gl.zeros([Br, columns], gl.float32, accumulator(columns))  # [Br, d / 2]
    for part in gl.static_range(CONSUMERS):  # the keys of one warpgroup
        dSt_ij = shared.dSt.index((t % BUFFERS) * CONSUMERS + part)
        K_j = matrix(shared.K.index(part)).slice(w * columns, columns, dim=1)
        dQ_i = warpgroup_mma(dSt_ij.permute((1, 0)), K_j, dQ_i, use_acc=part > 0, is_async=True)
    return dQ_i
