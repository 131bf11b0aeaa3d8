"""The roles of the backward kernel, and their shared memory.

A consumer is a warpgroup. It takes the steps of a turn and writes its rows of dK and dV; a step has five products of a
tile of keys and a tile of queries. The producer is a warp. It takes turns and issues the copies of their tiles.
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

from flashlab.kernels import log_sum_exp
from flashlab.kernels.hopper import queries, scores
from flashlab.kernels.hopper.products import accumulator, operand, product
from flashlab.kernels.hopper.stages import (
    announce,
    finish,
    matrix,
    next_turn,
    pin,
    release,
    stage_of,
    take,
    turn_of,
    wait_empty,
    wait_full,
)
from flashlab.kernels.hopper.sums import add, barrier, columns_of_part, transposed

ROWS = gl.constexpr(64)  # keys of a warpgroup: the rows of one product
CONSUMERS = gl.constexpr(2)
BUFFERS = gl.constexpr(4)  # of dS^T: one is written, one read, one may still be read by a slower warpgroup; and at the
# end of a turn, dK_j and dV_j leave through them, which at 128 columns takes all


class Shared(NamedTuple):
    """Shared memory: rings of tiles, and the barriers that guard them (``stages``)."""

    K: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    V: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    Q: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    dO: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    lse: gl.shared_memory_descriptor  # [stages, Br], and if lse has a rest, as many for it: see ``of_lse``
    delta: gl.shared_memory_descriptor  # [stages, Br]
    dSt: gl.shared_memory_descriptor  # [CONSUMERS * BUFFERS, ROWS, Br]      those of a consumer are neighbours
    turns: gl.shared_memory_descriptor  # [2, 1]      of this program, the last two
    k_full: gl.shared_memory_descriptor  # rings of one stage, used once per turn
    v_full: gl.shared_memory_descriptor  # and, with a lag: the sums of dQ may be added to
    q_full: gl.shared_memory_descriptor  # per stage: the bytes of Q_i, lse_i and rest_i have arrived
    do_full: gl.shared_memory_descriptor  # and: those of dO_i and delta_i
    ds_full: gl.shared_memory_descriptor  # per buffer: both consumers have written their part of dS^T, and so are done
    # with the step before
    k_empty: gl.shared_memory_descriptor  # once per turn: both consumers are done with K, V and dS^T
    added: gl.shared_memory_descriptor  # and: they have added to all sums


@gluon.jit
def allocate(Q, dO, K, V, lse, delta, rest, lag, Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr):
    """Return shared memory for the tiles of the descriptors, and barriers in their first phase."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    dSt_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, Br], Q.dtype)
    shared = Shared(
        gl.allocate_shared_memory(K.dtype, [CONSUMERS, 1, 1, ROWS, width], K.layout),
        gl.allocate_shared_memory(V.dtype, [CONSUMERS, 1, 1, ROWS, width], V.layout),
        gl.allocate_shared_memory(Q.dtype, [stages, 1, 1, Br, width], Q.layout),
        gl.allocate_shared_memory(dO.dtype, [stages, 1, 1, Br, width], dO.layout),
        gl.allocate_shared_memory(gl.float32, [stages if rest is None else 2 * stages, Br], lse.layout),
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


class Operands(NamedTuple):
    """The operands that all steps of a warpgroup have in common: in registers if there is room, or in shared memory."""

    K_j: gl.tensor  # [Bc, d]
    V_j: gl.tensor  # [Bc, d]
    K_0: gl.tensor  # for dQ_i, the keys of warpgroup 0: [Bc, ..] with this one's columns, or transposed, [d, Bc]
    K_1: gl.tensor  # the same of warpgroup 1


@gluon.jit
def operands_of(shared, problem, w: gl.constexpr, zero=0):
    """Return the ``Operands`` of warpgroup w. Score functions leave no registers for operands. zero: see ``step``."""
    Br: gl.constexpr = shared.Q.shape[3]
    K_j, V_j = matrix(shared.K.index(w + zero)), matrix(shared.V.index(w + zero))  # [Bc, d]
    K_0, K_1 = matrix(shared.K.index(zero)), matrix(shared.K.index(1 + zero))  # [Bc, d]
    if not transposed(shared.Q.shape[4]):
        columns: gl.constexpr = columns_of_part(problem.d, shared.Q.shape[4], w)
        return Operands(K_j, V_j, K_0.slice(w * 64, columns, dim=1), K_1.slice(w * 64, columns, dim=1))
    elif problem.score is not None:
        return Operands(K_j, V_j, K_0.permute((1, 0)), K_1.permute((1, 0)))
    else:
        left: gl.constexpr = gl.DotOperandLayout(0, accumulator(Br), 2)
        of_dQ: gl.constexpr = gl.DotOperandLayout(0, accumulator(Br // CONSUMERS), 2)
        K_0, K_1 = K_0.permute((1, 0)).load(of_dQ), K_1.permute((1, 0)).load(of_dQ)
        return Operands(K_j.load(left), V_j.load(left), K_0, K_1)


@gluon.jit
def step(
    shared, operands, sums, dK_j, dV_j, these, keys, work, problem, t, tile_before,
    w: gl.constexpr, variant: gl.constexpr, first: gl.constexpr,
):  # fmt: skip
    """Compute step t: these queries' share of dK_j and dV_j, and the share of dQ for the previous step's tile."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    dtype: gl.constexpr = shared.K.dtype
    if not transposed(width):
        # t >> 31 is 0, which the assembler cannot derive: it computes the addresses of K_j and V_j again in each step.
        # Otherwise it computes them before the loop and spills them: on an H200, grouped heads take 1.27 times as long.
        operands = operands_of(shared, problem, w, t >> 31)
    Q_i, dO_i = matrix(stage_of(shared.Q, t)), matrix(stage_of(shared.dO, t))  # [Br, d]
    wait_full(shared.q_full, t)
    lse_i = along_queries(of_lse(shared, t, 0), accumulator(Br))  # [1, Br], before products keep the memory busy
    rest_i = None
    if shared.lse.shape[0] > shared.delta.shape[0]:
        rest_i = along_queries(of_lse(shared, t, 1), accumulator(Br))  # [1, Br]
    St_ij = product(operands.K_j, Q_i, problem.d)  # [Bc, Br]
    wait_full(shared.do_full, t)
    dPt_ij = product(operands.V_j, dO_i, problem.dv)  # [Bc, Br]
    St_ij = warpgroup_mma_wait(1, deps=(St_ij,))
    scarce: gl.constexpr = width > 64  # registers
    Pt_ij, sloped = weights(St_ij, lse_i, rest_i, these, keys, work, problem, variant, scarce)  # [Bc, Br] each
    Pt_left = operand(Pt_ij, dtype, width)  # [Bc, Br]
    if scarce:  # no registers to keep Pt_left until dS_ij is stored
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
        dPt_ij = warpgroup_mma_wait(1, deps=(dPt_ij,))
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
    else:
        if not variant.hides:  # here no branch of a mask keeps the exponentials beside the product for dP
            pin(shared.do_full, t)
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
        dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))
    dSt_ij = (sloped * (dPt_ij - delta_i)).to(dtype)  # [Bc, Br]
    if first:
        let_leave()
    else:  # until the other warpgroup has left the step that read the buffer of the next store
        wait_full(shared.ds_full, t - 1)
    shared.dSt.index(w * BUFFERS + t % BUFFERS).store(dSt_ij)
    dSt_left = operand(dSt_ij, dtype, width)
    if not scarce:
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
    fence_async_shared()
    release(shared.ds_full, t)
    if not first:
        dQ_i = share_of_dQ(shared, operands, problem, t - 1, w)
    dK_j = warpgroup_mma(dSt_left, Q_i, dK_j, use_acc=not first, is_async=True)
    if not first:
        dQ_i = warpgroup_mma_wait(1, deps=(dQ_i,))
        add(sums, tile_before, w, dQ_i, problem.d, width)
    return warpgroup_mma_wait(0, deps=(dK_j, dV_j))


@gluon.jit
def weights(
    dot, lse_i, rest_i, these, keys, work, problem, variant: gl.constexpr, scarce: gl.constexpr
):  # fmt: skip
    """Return Pt_ij = e^(S_ij^T - lse), with lse and its rest [1, Br], and its product with the score's derivative.

    dot: K_j Q_i^T. scarce: whether registers are scarce. The gradient of dot needs only the second result, so scores
    and derivatives take no registers after this function.
    """
    St_ij, slope = dot, 1.0  # [Bc, Br]
    if problem.score is not None:
        i, j = queries.rows_and_columns(these, keys, dot)
        St_ij, slope = scores.apply_with_slope(problem, dot * problem.scale, work.b, these.h, i, j)  # [Bc, Br] each
    Pt_ij = log_sum_exp.weights(St_ij, lse_i, rest_i, problem.factor, variant.unit)  # [Bc, Br]
    if variant.hides:
        # Where registers are scarce, whole tiles are masked, too: across a branch, too many slopes would be in use.
        if scarce and problem.score is not None and problem.mask.rules is None:
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, variant.ragged)
        elif queries.are_cut(these, keys, problem, dot.shape[1]):
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, variant.ragged)
    return Pt_ij, Pt_ij * slope


@gluon.jit
def of_lse(shared, t, which: gl.constexpr):
    """Return the buffer [Br] of lse_i in step t (which: 0), or of its rest (1)."""
    stages: gl.constexpr = shared.delta.shape[0]
    return shared.lse.index(which * stages + t % stages)


@gluon.jit
def along_queries(x, layout: gl.constexpr):
    """Return x [Br], which is in shared memory, as [1, Br] for a tile of scores of this layout."""
    return x.load(gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def share_of_dQ(shared, operands, problem, t, w: gl.constexpr):
    """Issue this warpgroup's part of dQ_i = dS_ij K_j of step t: of its columns, or transposed, of its queries."""
    width: gl.constexpr = shared.Q.shape[4]
    columns: gl.constexpr = columns_of_part(problem.d, width, w)
    dQ_i = gl.zeros([ROWS, columns], gl.float32, accumulator(columns))  # [Br, ..], or [d, Br / 2]
    for part in gl.static_range(CONSUMERS):  # the keys of one warpgroup
        dSt_ij = shared.dSt.index(part * BUFFERS + t % BUFFERS)
        if transposed(width):
            left, right = operands[2 + part], dSt_ij.slice(w * columns, columns, dim=1)
        else:
            left, right = dSt_ij.permute((1, 0)), operands[2 + part]
        dQ_i = warpgroup_mma(left, right, dQ_i, use_acc=part > 0, is_async=True)
    return dQ_i


@gluon.jit
def let_leave():
    """Wait until the results of ``store`` in the previous turn have left the buffers."""
    tma.store_wait(0)
    barrier()


@gluon.jit
def consume(shared, dK, dV, sums, turns, problem, lag, w: gl.constexpr, variant: gl.constexpr):
    """Run warpgroup w, with the keys w * ROWS .. (w + 1) * ROWS of a tile."""
    n, t = 0, 0
    turn = next_turn(shared, 0)
    while turn < turns.all:
        t = consume_turn(shared, dK, dV, sums, turn, turns, problem, lag, n, t, w, variant)
        n += 1
        turn = next_turn(shared, n)
    tma.store_wait(0)


@gluon.jit
def consume_turn(shared, dK, dV, sums, turn, turns, problem, lag, n, t, w: gl.constexpr, variant: gl.constexpr):
    """Process the n-th turn of this program from step t on. Return the step after it."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    work = queries.work_of(turn, turns, problem, lag, CONSUMERS * ROWS, Br)
    start = (work.j * CONSUMERS + w) * ROWS
    nothing = gl.zeros([ROWS, width], gl.float32, accumulator(width))  # [Bc, d]
    keys = queries.keys_of(problem, work.b, start, ROWS, variant.ragged, gl.SliceLayout(1, accumulator(Br)))
    these = queries.first(work, problem, Br)
    wait_full(shared.v_full, n)
    operands = operands_of(shared, problem, w)
    if variant.late and w == 1:
        leave_out(shared, t, w)
        dK_j, dV_j = nothing, nothing
    else:
        dK_j, dV_j = step(shared, operands, sums, nothing, nothing, these, keys, work, problem, t, 0, w, variant, True)
    end = t + queries.count(work, problem)
    for at in range(t + 1, end):
        tile_before = these.tile
        these = queries.following(these, work, problem, Br)
        dK_j, dV_j = step(
            shared, operands, sums, dK_j, dV_j, these, keys, work, problem, at, tile_before, w, variant, False
        )

    wait_full(shared.ds_full, end - 1)
    dQ_i = share_of_dQ(shared, operands, problem, end - 1, w)
    dQ_i = warpgroup_mma_wait(0, deps=(dQ_i,))
    release(shared.k_empty, n)
    add(sums, these.tile, w, dQ_i, problem.d, width)
    if lag is not None:
        barrier()
        release(shared.added, n)
    # Computed again, so that it takes no registers in the loop.
    work = queries.work_of(turn_of(shared, n), turns, problem, lag, CONSUMERS * ROWS, Br)
    wait_full(shared.k_empty, n)
    store(shared, dK, dV, dK_j * problem.scale, dV_j, work, w)
    return end


@gluon.jit
def leave_out(shared, t, w: gl.constexpr):
    """Process step t without products: its queries see none of these keys."""
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
    """Write a warpgroup's rows of dK and dV through its buffers of dS^T, which have no more readers."""
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
def produce(shared, Q, dO, K, V, lse, delta, rest, counter, turns, problem, lag):
    """Ask for every tile in the order in which it is used, as soon as there is room for it. counter: of turns."""
    n, t = 0, 0
    turn = take(counter)
    while turn < turns.all:
        t = produce_turn(shared, Q, dO, K, V, lse, delta, rest, turn, turns, problem, lag, n, t)
        turn = take(counter)
        n += 1
    wait_empty(shared.k_empty, n)
    announce(shared.turns, n, turn)
    release(shared.k_full, n)
    finish(counter, turn, turns)


@gluon.jit
def produce_turn(shared, Q, dO, K, V, lse, delta, rest, turn, turns, problem, lag, n, t):
    """Ask for the tiles of the n-th turn of this program from step t on. Return the step after it."""
    stages: gl.constexpr = shared.Q.shape[0]
    Br: gl.constexpr = shared.Q.shape[3]
    work = queries.work_of(turn, turns, problem, lag, CONSUMERS * ROWS, Br, 1)
    start = t
    for member in range(problem.group):
        h = work.hk * problem.group + member
        head = (work.b * work.H + h) * work.Nq_padded
        begin, end = queries.span(work, problem, h)
        for place in range(begin, end):
            i = queries.at(work, problem, h, place)
            # The stage is free when both consumers are in the step after the one that used it.
            wait_full(shared.ds_full, gl.maximum(t + 1 - stages, 0), pred=t >= stages)
            full = stage_of(shared.q_full, t)
            of_rows: gl.constexpr = (1 if rest is None else 2) * lse.block_type.nbytes
            mbarrier.expect(full, Q.block_type.nbytes + of_rows)
            tma.async_copy_global_to_shared(Q, [work.b, h, i * Br, 0], full, stage_of(shared.Q, t))
            tma.async_copy_global_to_shared(lse, [head + i * Br], full, of_lse(shared, t, 0))
            if rest is not None:
                tma.async_copy_global_to_shared(rest, [head + i * Br], full, of_lse(shared, t, 1))
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
