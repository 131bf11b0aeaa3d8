"""The producer of the backward kernel: a warp that takes turns, and asks the copy engine for their tiles."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from flashlab.kernels.hopper import queries
from flashlab.kernels.hopper.backward_rings import CONSUMERS, ROWS
from flashlab.kernels.hopper.stages import release, stage_of, wait_empty, wait_full
from flashlab.kernels.hopper.turns import announce, finish, take


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
