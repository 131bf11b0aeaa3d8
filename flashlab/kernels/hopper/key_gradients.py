"""The first of ``two_passes``: dK and dV. A program computes a tile of 64 keys.

The registers of a consumer (warpgroup) hold sums of one tile [64, 256], not of two. So the consumers divide the
products: one computes S^T, P^T and dV, the other dP^T, dS^T and dK. Only P^T goes from one to the other, through shared
memory. Each adds to its sums one step late, beside the next product for S^T or dP^T.

S^T, P^T, dP^T and dS^T are [Bc, Br]. Tiles of Q, K, V and dO, and the sums, are in ``pieces`` of their columns.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from flashlab.kernels.hopper import pieces, queries
from flashlab.kernels.hopper.backward_roles import along_queries, of_lse, weights
from flashlab.kernels.hopper.products import accumulator, operand
from flashlab.kernels.hopper.stages import (
    gives_back_early,
    matrix,
    new_barriers,
    release,
    stage_of,
    wait_empty,
    wait_full,
)

ROWS = gl.constexpr(64)  # keys of a program
BUFFERS = gl.constexpr(2)  # of P^T


class Shared(NamedTuple):
    """Shared memory: rings of tiles in ``pieces``, and the barriers that guard them (``stages``)."""

    K: gl.shared_memory_descriptor  # [pieces, 1, 1, ROWS, columns]      at the end, dK_j
    V: gl.shared_memory_descriptor  # [pieces_v, 1, 1, ROWS, columns]      at the end, dV_j
    Q: gl.shared_memory_descriptor  # [stages * pieces, 1, 1, Br, columns]
    dO: gl.shared_memory_descriptor  # [stages * pieces_v, 1, 1, Br, columns]
    lse: gl.shared_memory_descriptor  # [stages, Br], and if lse has a rest, as many for it: see ``of_lse``
    delta: gl.shared_memory_descriptor  # [stages, Br]
    Pt: gl.shared_memory_descriptor  # [BUFFERS, ROWS, Br]      times the slope of the score function
    k_full: gl.shared_memory_descriptor  # rings of one stage
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # per stage: Q_i and lse_i have arrived
    q_empty: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor  # per stage: dO_i and delta_i have arrived
    do_empty: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor  # per buffer
    p_empty: gl.shared_memory_descriptor


@gluon.jit
def allocate(Q, dO, K, V, lse, delta, rest, Br: gl.constexpr, shape: gl.constexpr, stages: gl.constexpr):
    """Return shared memory for the tiles of the descriptors, and barriers. shape: ``arguments.Shape``."""
    columns: gl.constexpr = shape.columns
    Pt_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, Br], Q.dtype)
    shared = Shared(
        gl.allocate_shared_memory(K.dtype, [shape.pieces, 1, 1, ROWS, columns], K.layout),
        gl.allocate_shared_memory(V.dtype, [shape.pieces_v, 1, 1, ROWS, columns], V.layout),
        gl.allocate_shared_memory(Q.dtype, [stages * shape.pieces, 1, 1, Br, columns], Q.layout),
        gl.allocate_shared_memory(dO.dtype, [stages * shape.pieces_v, 1, 1, Br, columns], dO.layout),
        gl.allocate_shared_memory(gl.float32, [stages if rest is None else 2 * stages, Br], lse.layout),
        gl.allocate_shared_memory(gl.float32, [stages, Br], delta.layout),
        gl.allocate_shared_memory(Q.dtype, [BUFFERS, ROWS, Br], Pt_layout),
        new_barriers(1, 1),
        new_barriers(1, 1),
        new_barriers(stages, 1),
        new_barriers(stages, 2),
        new_barriers(stages, 1),
        new_barriers(stages, 2),
        new_barriers(BUFFERS, 1),
        new_barriers(BUFFERS, 1),
    )
    fence_async_shared()
    return shared


@gluon.jit
def key_value_gradients(
    Q, dO, K, V, dK, dV,  # descriptors of pieces
    lse, delta, rest,  # descriptors of ``Constants``, flat, [B * H * Nq_padded]; rest may be None
    turns, problem,
    Br: gl.constexpr, shape: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr,
    registers: gl.constexpr, producer_registers: gl.constexpr,
):  # fmt: skip
    """Compute rows j * ROWS .. (j + 1) * ROWS of dK and dV: program j + tiles * head.

    turns: ``stages.Turns``; each turn is a program. Causal: the first programs of a head have the keys that most
    queries see. Where groups have several parts, each part counts as a head of dK and dV.
    """
    shared = allocate(Q, dO, K, V, lse, delta, rest, Br, shape, stages)
    gl.warp_specialize(
        [
            (consume_values, (shared, dV, turns, problem, variant)),
            (consume_keys, (shared, dK, turns, problem)),
            (produce, (shared, Q, dO, K, V, lse, delta, rest, turns, problem)),
        ],
        [4, 1],
        [registers, producer_registers],
    )


@gluon.jit
def consume_values(shared, dV, turns, problem, variant: gl.constexpr):
    """Compute P^T and dV_j."""
    Br: gl.constexpr = shared.Q.shape[3]
    work = queries.work_of(gl.program_id(0), turns, problem, None, ROWS, Br)
    layout: gl.constexpr = gl.SliceLayout(1, accumulator(Br))
    keys = queries.keys_of(problem, work.b, work.j * ROWS, ROWS, variant.ragged, layout)
    these = queries.first(work, problem, Br)
    dV_j = pieces.zeros(ROWS, shared.V, shared.v_full)  # [Bc, dv]
    wait_full(shared.k_full, 0)
    Pt_ij, dV_j = step_of_values(shared, None, dV_j, these, keys, work, problem, 0, variant)
    count = queries.count(work, problem)
    for t in range(1, count):
        these = queries.following(these, work, problem, Br)
        Pt_ij, dV_j = step_of_values(shared, Pt_ij, dV_j, these, keys, work, problem, t, variant)
    wait_full(shared.do_full, count - 1)
    dV_j = pieces.add_product(Pt_ij, pieces.tile(shared.dO, shared.do_full, count - 1), dV_j)
    dV_j = pieces.finished(dV_j)
    release(shared.do_empty, count - 1)
    wait_full(shared.do_empty, count - 1)  # the other consumer is done with V, too
    store(dV, dV_j, 1.0, shared.V, shared.v_full, work)


@gluon.jit
def step_of_values(shared, Pt_before, dV_j, these, keys, work, problem, t, variant: gl.constexpr):
    """Take step t. Return its P^T as an operand [Bc, Br], and dV_j with the share of the step before."""
    Br: gl.constexpr = shared.Q.shape[3]
    wait_full(shared.q_full, t)
    lse_i = along_queries(of_lse(shared, t, 0), accumulator(Br))  # [1, Br]
    rest_i = None
    if shared.lse.shape[0] > shared.delta.shape[0]:
        rest_i = along_queries(of_lse(shared, t, 1), accumulator(Br))  # [1, Br]
    K_j = pieces.tile(shared.K, shared.k_full, 0)  # [Bc, d]
    St_ij = pieces.product(K_j, pieces.tile(shared.Q, shared.q_full, t))  # [Bc, Br]
    if Pt_before is None:
        St_ij = warpgroup_mma_wait(0, deps=(St_ij,))
    else:
        wait_full(shared.do_full, t - 1)
        dV_j = pieces.add_product(Pt_before, pieces.tile(shared.dO, shared.do_full, t - 1), dV_j)
        St_ij = warpgroup_mma_wait(len(dV_j), deps=(St_ij,))
    Pt_ij, sloped = weights(St_ij, lse_i, rest_i, these, keys, work, problem, variant, True)
    wait_empty(shared.p_empty, t)
    stage_of(shared.Pt, t).store(sloped.to(shared.K.dtype))
    release(shared.p_full, t)
    release(shared.q_empty, t)
    if Pt_before is not None:
        dV_j = pieces.finished(dV_j)
        release(shared.do_empty, t - 1)
    return operand(Pt_ij, shared.K.dtype, shared.V.shape[4]), dV_j


@gluon.jit
def consume_keys(shared, dK, turns, problem):
    """Compute dS^T and dK_j."""
    Br: gl.constexpr = shared.Q.shape[3]
    work = queries.work_of(gl.program_id(0), turns, problem, None, ROWS, Br)
    dK_j = pieces.zeros(ROWS, shared.K, shared.k_full)  # [Bc, d]
    wait_full(shared.v_full, 0)
    dSt_ij, dK_j = step_of_keys(shared, None, dK_j, 0)
    count = queries.count(work, problem)
    for t in range(1, count):
        dSt_ij, dK_j = step_of_keys(shared, dSt_ij, dK_j, t)
    dK_j = pieces.add_product(dSt_ij, pieces.tile(shared.Q, shared.q_full, count - 1), dK_j)
    dK_j = pieces.finished(dK_j)
    # The other consumer is done with K: it has written all P^T.
    store(dK, dK_j, problem.scale, shared.K, shared.k_full, work)


@gluon.jit
def step_of_keys(shared, dSt_before, dK_j, t):
    """Take step t. Return its dS^T as an operand [Bc, Br], and dK_j with the share of the step before."""
    Br: gl.constexpr = shared.Q.shape[3]
    early: gl.constexpr = gives_back_early(shared.q_full.shape[0])
    if early and dSt_before is not None:
        dK_j = pieces.add_product(dSt_before, pieces.tile(shared.Q, shared.q_full, t - 1), dK_j)
    wait_full(shared.do_full, t)
    V_j = pieces.tile(shared.V, shared.v_full, 0)  # [Bc, dv]
    dPt_ij = pieces.product(V_j, pieces.tile(shared.dO, shared.do_full, t))  # [Bc, Br]
    delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
    if dSt_before is None:
        dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))
    elif early:
        dK_j = pieces.finished(dK_j, later=len(V_j))
        release(shared.q_empty, t - 1)
        dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))
    else:
        dK_j = pieces.add_product(dSt_before, pieces.tile(shared.Q, shared.q_full, t - 1), dK_j)
        dPt_ij = warpgroup_mma_wait(len(dK_j), deps=(dPt_ij,))
    wait_full(shared.q_full, t)
    wait_full(shared.p_full, t)
    sloped = stage_of(shared.Pt, t).load(accumulator(Br)).to(gl.float32)  # [Bc, Br]
    dSt_ij = (sloped * (dPt_ij - delta_i)).to(shared.K.dtype)  # [Bc, Br]
    release(shared.p_empty, t)
    release(shared.do_empty, t)
    if dSt_before is not None and not early:
        dK_j = pieces.finished(dK_j)
        release(shared.q_empty, t - 1)
    return operand(dSt_ij, shared.K.dtype, shared.K.shape[4]), dK_j


@gluon.jit
def store(dX, dX_j, factor, buffers, full, work):
    """Write factor * dX_j, the sums of a consumer, by way of these buffers."""
    for p in gl.static_range(len(dX_j)):
        matrix(pieces.piece(buffers, full, 0, p)).store((dX_j[p] * factor).to(dX.dtype))
    fence_async_shared()
    for p in gl.static_range(len(dX_j)):
        at = [work.b, work.hk, work.j * ROWS, p * buffers.shape[4]]
        tma.async_copy_shared_to_global(dX, at, pieces.piece(buffers, full, 0, p))
    tma.store_wait(0)


@gluon.jit
def produce(shared, Q, dO, K, V, lse, delta, rest, turns, problem):
    """Ask for every tile in the order in which it is used, as soon as there is room for it."""
    Br: gl.constexpr = shared.Q.shape[3]
    of_Q: gl.constexpr = pieces.bytes_of(shared.Q, shared.q_full)
    of_dO: gl.constexpr = pieces.bytes_of(shared.dO, shared.do_full)
    of_rows: gl.constexpr = lse.block_type.nbytes
    of_lse_rows: gl.constexpr = of_rows if rest is None else 2 * of_rows
    work = queries.work_of(gl.program_id(0), turns, problem, None, ROWS, Br, 1)
    of_keys = [work.b, work.hk // problem.parts, work.j * ROWS]
    k_full, v_full = shared.k_full.index(0), shared.v_full.index(0)
    mbarrier.expect(k_full, pieces.bytes_of(shared.K, shared.k_full))
    pieces.ask_for(K, of_keys, k_full, shared.K, shared.k_full, 0)
    mbarrier.expect(v_full, pieces.bytes_of(shared.V, shared.v_full))
    t = 0
    for member in range(problem.group):
        h = work.hk * problem.group + member
        head = (work.b * work.H + h) * work.Nq_padded
        begin, end = queries.span(work, problem, h)
        for place in range(begin, end):
            i = queries.at(work, problem, h, place)
            full = stage_of(shared.q_full, t)
            wait_empty(shared.q_empty, t)
            mbarrier.expect(full, of_Q + of_lse_rows)
            pieces.ask_for(Q, [work.b, h, i * Br], full, shared.Q, shared.q_full, t)
            tma.async_copy_global_to_shared(lse, [head + i * Br], full, of_lse(shared, t, 0))
            if rest is not None:
                tma.async_copy_global_to_shared(rest, [head + i * Br], full, of_lse(shared, t, 1))
            if t == 0:
                pieces.ask_for(V, of_keys, v_full, shared.V, shared.v_full, 0)
            full = stage_of(shared.do_full, t)
            wait_empty(shared.do_empty, t)
            mbarrier.expect(full, of_dO + of_rows)
            pieces.ask_for(dO, [work.b, h, i * Br], full, shared.dO, shared.do_full, t)
            tma.async_copy_global_to_shared(delta, [head + i * Br], full, stage_of(shared.delta, t))
            t += 1
