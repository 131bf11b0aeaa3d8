"""The backward pass for compute capability 9.0 in one pass over the tiles: 5 products of tiles, not 7.

A program owns a tile of keys, half of it in each of two consumers (warpgroups), and goes through the queries. dK_j and
dV_j stay in registers until the end. dQ_i is made a tile at a time and added to sums in global memory, in float32; a
last kernel narrows them. Every program of a head adds to the same sums, in an order that differs from run to run, and
so do the last bits of dQ. ``flashlab.kernels.portable.backward`` is the one that gives the same bits every time.

Tiles are transposed, [Bc, Br], so that P^T and dS^T multiply from the left as they come out of the registers. dS^T also
goes to shared memory, because dQ_i takes the keys of both consumers: each then makes one half of dQ_i. That product is
issued a step late, behind the next S^T, so that the tensor cores have it to do while P is made.

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
from flashlab.kernels.hopper import parts
from flashlab.kernels.hopper.descriptors import descriptor, flat_descriptor
from flashlab.kernels.hopper.sums import add, narrow
from flashlab.kernels.launch import launch
from flashlab.kernels.portable.backward import constants_of_rows

ROWS = gl.constexpr(64)  # keys of a warpgroup: what one product takes
CONSUMERS = gl.constexpr(2)
KEYS = 128  # of a program: those of its consumers
BUFFERS = gl.constexpr(3)  # of dS^T: one is written, one read, and one may still be read by a slower warpgroup
REGISTERS = gl.constexpr(240)  # a thread of a consumer
PRODUCER_REGISTERS = gl.constexpr(24)
NEVER = gl.constexpr(2**30)  # a query that no sequence has


def run(gradients, incoming, saved, problem, launches):
    """Fill dq, dk, dv as ``portable.backward.run`` does, but for the last bits of dq, which may differ.

    All of one dtype, float16 or bfloat16; d and dv at most 128; Nq and Nk at least 1. Inputs must be ``tiles.ready``,
    and dq, dk, dv contiguous. launches: a ``Configuration`` for "backward", of which Br, which is 64, and stages count,
    and one for "row_constants".
    """
    dq, dk, dv = gradients
    do, dlse = incoming
    q, k, v, o, lse = saved
    B, H, Hk, Nq, Nk, d, columns = problem[:7]
    causal, scale, c = problem.mask == masks.causal(), problem.scale, launches["backward"]
    width = hopper_width(d, columns)
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
        (Hk, H // Hk, Nq, Nq_padded, Nk, scale, problem.scale_log2, c.Br, width, c.stages, causal, Nk % KEYS != 0),
        warps=4,
    )
    sizes = (scale, Nq, Nq_padded, d, c.Br, width)
    launch(narrow, (tiles.count(Nq, c.Br), CONSUMERS.value, B * H), (dq, sums), sizes, warps=4)


class Shared(NamedTuple):
    """Shared memory: buffers of tiles, and the barriers that guard them."""

    K: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]      at the end, dK_j on its way out
    V: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]      at the end, dV_j
    Q: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    dO: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    lse: gl.shared_memory_descriptor  # [stages, Br]
    delta: gl.shared_memory_descriptor  # [stages, Br]
    dSt: gl.shared_memory_descriptor  # [BUFFERS * CONSUMERS, ROWS, Br]
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # a barrier for each stage: the bytes of Q_i and lse_i have arrived
    do_full: gl.shared_memory_descriptor  # and: those of dO_i and delta_i
    ds_full: gl.shared_memory_descriptor  # a barrier for each buffer: both consumers have written their part of dS^T,
    # and so are through with the step before
    k_empty: gl.shared_memory_descriptor  # both consumers are through with K


class Work(NamedTuple):
    """What there is to do: the program's tile of keys, the tiles of queries that it meets, and the problem's sizes."""

    j: gl.tensor
    b: gl.tensor
    hk: gl.tensor
    H: gl.tensor
    group: gl.tensor  # query heads to this key/value head: the program takes them one after the other
    begin: gl.tensor  # of each, tiles begin .. end of queries
    end: gl.tensor
    Nq: gl.tensor
    Nq_padded: gl.tensor
    Nk: gl.tensor
    scale: gl.tensor
    scale_log2: gl.tensor


class Mask(NamedTuple):
    """Which queries see which keys of a warpgroup."""

    first_row: gl.tensor  # [Bc]      the first query that sees each key
    unmasked: gl.tensor  # a query from which on all of them are seen


@gluon.jit
def attention_backward(
    Q, dO, K, V, dK, dV, lse_log2, delta,  # descriptors; of lse_log2 and delta flat, [B * H * Nq_padded]
    sums,  # pointer to the sums of dQ, float32, [B, H, Nq_padded * width], each tile as ``sums.add`` orders it
    Hk, group, Nq, Nq_padded, Nk, scale, scale_log2,
    Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr, causal: gl.constexpr, ragged: gl.constexpr,
):  # fmt: skip
    """Program (j, hk, b) computes rows j * Bc .. (j + 1) * Bc of dK and dV, and adds its share to dQ.

    Causal: the first programs have the keys that most queries see. ragged: Bc does not divide Nk.
    """
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
        gl.allocate_shared_memory(gl.int64, [1], barriers),
        gl.allocate_shared_memory(gl.int64, [1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1], barriers),
    )
    mbarrier.init(shared.k_full, count=1)
    mbarrier.init(shared.v_full, count=1)
    mbarrier.init(shared.k_empty, count=CONSUMERS)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.q_full.index(stage), count=1)
        mbarrier.init(shared.do_full.index(stage), count=1)
    for buffer in gl.static_range(BUFFERS):
        mbarrier.init(shared.ds_full.index(buffer), count=CONSUMERS)
    fence_async_shared()

    j, hk, b = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    begin = gl.maximum(j * CONSUMERS * ROWS + Nq - Nk, 0) // Br if causal else gl.to_tensor(0)
    work = Work(j, b, hk, Hk * group, group, begin, gl.cdiv(Nq, Br), Nq, Nq_padded, Nk, scale, scale_log2)
    gl.warp_specialize(
        [
            (consume, (shared, dK, dV, sums, work, 0, causal, ragged)),
            (consume, (shared, dK, dV, sums, work, 1, causal, ragged)),
            (produce, (shared, Q, dO, K, V, lse_log2, delta, work)),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )


@gluon.jit
def produce(shared, Q, dO, K, V, lse_log2, delta, work):
    """Ask for every tile in the order in which it is used, as soon as there is room for it."""
    stages: gl.constexpr = shared.Q.shape[0]
    Br: gl.constexpr = shared.Q.shape[3]
    mbarrier.expect(shared.k_full, CONSUMERS * K.block_type.nbytes)
    for w in gl.static_range(CONSUMERS):
        at = [work.b, work.hk, (work.j * CONSUMERS + w) * ROWS, 0]
        tma.async_copy_global_to_shared(K, at, shared.k_full, shared.K.index(w))
    t = 0
    for member in range(work.group):
        h = work.hk * work.group + member
        head = (work.b * work.H + h) * work.Nq_padded
        for i in range(work.begin, work.end):
            stage = t % stages
            full = shared.q_full.index(stage)
            behind = gl.maximum(t + 1 - stages, 0)  # a step that begins when the stage is free
            mbarrier.wait(shared.ds_full.index(behind % BUFFERS), (behind // BUFFERS) & 1, pred=t >= stages)
            mbarrier.expect(full, Q.block_type.nbytes + lse_log2.block_type.nbytes)
            tma.async_copy_global_to_shared(Q, [work.b, h, i * Br, 0], full, shared.Q.index(stage))
            tma.async_copy_global_to_shared(lse_log2, [head + i * Br], full, shared.lse.index(stage))
            if t == 0:
                mbarrier.expect(shared.v_full, CONSUMERS * V.block_type.nbytes)
                for w in gl.static_range(CONSUMERS):
                    at = [work.b, work.hk, (work.j * CONSUMERS + w) * ROWS, 0]
                    tma.async_copy_global_to_shared(V, at, shared.v_full, shared.V.index(w))
            full = shared.do_full.index(stage)
            mbarrier.expect(full, dO.block_type.nbytes + delta.block_type.nbytes)
            tma.async_copy_global_to_shared(dO, [work.b, h, i * Br, 0], full, shared.dO.index(stage))
            tma.async_copy_global_to_shared(delta, [head + i * Br], full, shared.delta.index(stage))
            t += 1


@gluon.jit
def consume(shared, dK, dV, sums, work, w: gl.constexpr, causal: gl.constexpr, ragged: gl.constexpr):
    """Warpgroup w has the keys w * ROWS .. (w + 1) * ROWS of the tile."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    masked: gl.constexpr = causal or ragged
    start = (work.j * CONSUMERS + w) * ROWS
    mask = visible(work, start, gl.SliceLayout(1, parts.accumulator(Br)), causal, ragged)
    nothing = gl.zeros([ROWS, width], gl.float32, parts.accumulator(width))  # [Bc, d]
    i = work.begin
    tile = (work.b * work.H + work.hk * work.group) * (work.Nq_padded // Br) + i  # counted over all heads
    to_next_head = work.Nq_padded // Br - (work.end - work.begin)
    mbarrier.wait(shared.k_full, 0)
    mbarrier.wait(shared.v_full, 0)
    dK_j, dV_j = step(shared, sums, work, mask, nothing, nothing, 0, i, 0, w, masked, True)
    steps = (work.end - work.begin) * work.group
    for t in range(1, steps):
        i += 1
        tile_before = tile
        tile += 1
        if i == work.end:
            i = work.begin
            tile += to_next_head
        dK_j, dV_j = step(shared, sums, work, mask, dK_j, dV_j, t, i, tile_before, w, masked, False)

    last = steps - 1
    mbarrier.wait(shared.ds_full.index(last % BUFFERS), (last // BUFFERS) & 1)
    dQ = share_of_dQ(shared, last % BUFFERS, w)
    dQ = warpgroup_mma_wait(0, deps=(dQ,))
    mbarrier.arrive(shared.k_empty, count=1)
    add(sums, tile, w, dQ)
    shared.V.index(w).reshape([ROWS, width]).store(dV_j.to(dV.dtype))
    mbarrier.wait(shared.k_empty, 0)
    shared.K.index(w).reshape([ROWS, width]).store((dK_j * work.scale).to(dK.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dV, [work.b, work.hk, start, 0], shared.V.index(w))
    tma.async_copy_shared_to_global(dK, [work.b, work.hk, start, 0], shared.K.index(w))
    tma.store_wait(0)


@gluon.jit
def visible(work, start, layout: gl.constexpr, causal: gl.constexpr, ragged: gl.constexpr):
    """The ``Mask`` of the keys from start on."""
    key = start + gl.arange(0, ROWS, layout=layout)  # [Bc]
    first_row = gl.zeros([ROWS], gl.int32, layout)  # [Bc]
    unmasked = gl.to_tensor(0)
    if causal:
        first_row = key + work.Nq - work.Nk  # [Bc]
        unmasked = start + ROWS - 1 + work.Nq - work.Nk
    if ragged:
        first_row = gl.where(key < work.Nk, first_row, NEVER)  # [Bc]
        unmasked = gl.where(start + ROWS > work.Nk, NEVER, unmasked)
    return Mask(first_row, unmasked)


@gluon.jit
def step(
    shared, sums, work, mask, dK_j, dV_j, t, i, tile,
    w: gl.constexpr, masked: gl.constexpr, first: gl.constexpr,
):  # fmt: skip
    """Step t: tile i of queries gives to dK_j and dV_j, and ``tile``, that of the step before, gets its share of dQ."""
    stages: gl.constexpr = shared.Q.shape[0]
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    dtype: gl.constexpr = shared.K.dtype
    stage, phase = t % stages, (t // stages) & 1
    before = t - 1
    Q_i = shared.Q.index(stage).reshape([Br, width])
    dO_i = shared.dO.index(stage).reshape([Br, width])
    K_j = shared.K.index(w).reshape([ROWS, width])
    V_j = shared.V.index(w).reshape([ROWS, width])
    mbarrier.wait(shared.q_full.index(stage), phase)
    St = product(K_j, Q_i)
    mbarrier.wait(shared.do_full.index(stage), phase)
    dPt = product(V_j, dO_i)
    St = warpgroup_mma_wait(1, deps=(St,))
    Pt = weights(St, shared.lse.index(stage), i * Br, mask, work.scale_log2, masked)
    dV_j = warpgroup_mma(parts.operand(Pt, dtype, width), dO_i, dV_j, use_acc=not first, is_async=True)
    delta_i = shared.delta.index(stage)
    dPt = warpgroup_mma_wait(1, deps=(dPt,))
    dSt = gradient(Pt, dPt, delta_i).to(dtype)  # [Bc, Br]
    if not first:  # now the other warpgroup has left behind the step that read what is overwritten next
        mbarrier.wait(shared.ds_full.index(before % BUFFERS), (before // BUFFERS) & 1)
    shared.dSt.index((t % BUFFERS) * CONSUMERS + w).store(dSt)
    dSt_left = parts.operand(dSt, dtype, width)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(t % BUFFERS), count=1)
    if not first:
        dQ = share_of_dQ(shared, before % BUFFERS, w)
    dK_j = warpgroup_mma(dSt_left, Q_i, dK_j, use_acc=not first, is_async=True)
    if not first:
        dQ = warpgroup_mma_wait(1, deps=(dQ,))
        add(sums, tile, w, dQ)
    return warpgroup_mma_wait(0, deps=(dK_j, dV_j))


@gluon.jit
def product(A, B):
    """Issue A B^T, with B's transpose another view of the same bytes."""
    rows: gl.constexpr = A.shape[0]
    columns: gl.constexpr = B.shape[0]
    zeros = gl.zeros([rows, columns], gl.float32, parts.accumulator(columns))
    return warpgroup_mma(A, B.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def weights(St, lse_log2, start, mask, scale_log2, masked: gl.constexpr):
    """Pt = exp2(scale_log2 * St - lse), with lse [Br] in shared memory; the first query is start."""
    Br: gl.constexpr = St.shape[1]
    query: gl.constexpr = gl.SliceLayout(0, St.type.layout)
    Pt = gl.exp2(St * scale_log2 - lse_log2.load(query)[None, :])  # [Bc, Br]
    if masked:
        if start < mask.unmasked:
            rows = start + gl.arange(0, Br, layout=query)  # [Br]
            Pt = gl.where(rows[None, :] >= mask.first_row[:, None], Pt, 0.0)
    return Pt


@gluon.jit
def gradient(Pt, dPt, delta):
    """dSt = Pt * (dPt - delta), with delta [Br] in shared memory."""
    return Pt * (dPt - delta.load(gl.SliceLayout(0, dPt.type.layout))[None, :])


@gluon.jit
def share_of_dQ(shared, buffer, w: gl.constexpr):
    """Issue dQ_i = dS_ij K_j for this warpgroup's half of the columns."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    columns: gl.constexpr = width // CONSUMERS
    dQ = gl.zeros([Br, columns], gl.float32, parts.accumulator(columns))  # [Br, d / 2]
    for part in gl.static_range(CONSUMERS):  # the keys of one warpgroup
        dSt = shared.dSt.index(buffer * CONSUMERS + part)
        K_j = shared.K.index(part).reshape([ROWS, width]).slice(w * columns, columns, dim=1)
        dQ = warpgroup_mma(dSt.permute((1, 0)), K_j, dQ, use_acc=part > 0, is_async=True)
    return dQ
