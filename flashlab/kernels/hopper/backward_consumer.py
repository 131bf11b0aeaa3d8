"""A consumer of the backward kernel: a warpgroup that takes the steps of a turn, and writes its rows of dK and dV."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from flashlab.kernels.hopper import queries
from flashlab.kernels.hopper.backward_rings import BUFFERS, CONSUMERS, ROWS
from flashlab.kernels.hopper.backward_step import keep, let_leave, share_of_dQ, step
from flashlab.kernels.hopper.products import accumulator
from flashlab.kernels.hopper.stages import matrix, release, wait_full
from flashlab.kernels.hopper.sums import add, barrier
from flashlab.kernels.hopper.turns import taken, turn_of


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
