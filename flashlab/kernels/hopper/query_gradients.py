"""The second of ``two_passes``: dQ. A program computes a tile of queries, half of it in each of two consumers.

The loop is that of the forward pass: keys stream past. P_ij is rebuilt from lse. dS_ij multiplies from the left as it
comes out of the registers, one step late, beside the next S and dP. Consumers exchange nothing.

Tiles are in ``pieces`` of their columns.
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

from flashlab.kernels import log_sum_exp
from flashlab.kernels.hopper import pieces, scores
from flashlab.kernels.hopper.products import accumulator, operand
from flashlab.kernels.hopper.stages import (
    gives_back_early,
    matrix,
    new_barriers,
    pin,
    place_of,
    release,
    stage_of,
    wait_empty,
    wait_full,
)
from flashlab.kernels.hopper.sums import hidden
from flashlab.kernels.masks import questions

ROWS = gl.constexpr(64)  # queries of a consumer
CONSUMERS = gl.constexpr(2)


class Shared(NamedTuple):
    """Shared memory: rings of tiles in ``pieces``, and the barriers that guard them (``stages``)."""

    Q: gl.shared_memory_descriptor  # [CONSUMERS * pieces, 1, 1, ROWS, columns]      at the end, dQ_i
    dO: gl.shared_memory_descriptor  # [CONSUMERS * pieces_v, 1, 1, ROWS, columns]
    K: gl.shared_memory_descriptor  # [stages * pieces, 1, 1, Bc, columns]
    V: gl.shared_memory_descriptor  # [stages_v * pieces_v, 1, 1, Bc, columns]
    q_full: gl.shared_memory_descriptor  # per consumer: its Q_i and dO_i have arrived
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor


class Work(NamedTuple):
    """The work of a program: a tile of queries."""

    b: gl.tensor
    h: gl.tensor
    i: gl.tensor  # the tile of the program
    begin: gl.tensor  # the places of its tiles of keys, as in ``questions.ranges``, and those of the whole ones
    whole_begin: gl.tensor
    whole_end: gl.tensor
    count: gl.tensor  # of tiles of keys


class Rows(NamedTuple):
    """The rows of a consumer: their numbers [Br] among the queries, and their ``Constants`` [Br, 1]."""

    i: gl.tensor
    lse: gl.tensor
    delta: gl.tensor
    rest: gl.tensor  # or None


@gluon.jit
def query_gradients(
    Q, dO, K, V, dQ,  # descriptors of pieces
    constants,  # ``Constants``
    Tr, H, Nq_padded, last, problem,
    Bc: gl.constexpr, shape: gl.constexpr, stages: gl.constexpr, stages_v: gl.constexpr,
    variant: gl.constexpr, registers: gl.constexpr, producer_registers: gl.constexpr,
):  # fmt: skip
    """Compute a tile of CONSUMERS * ROWS rows of dQ. A head has Tr programs; the first ones have its last queries.

    last: as in ``place_of``.
    """
    columns: gl.constexpr = shape.columns
    shared = Shared(
        gl.allocate_shared_memory(Q.dtype, [CONSUMERS * shape.pieces, 1, 1, ROWS, columns], Q.layout),
        gl.allocate_shared_memory(dO.dtype, [CONSUMERS * shape.pieces_v, 1, 1, ROWS, columns], dO.layout),
        gl.allocate_shared_memory(K.dtype, [stages * shape.pieces, 1, 1, Bc, columns], K.layout),
        gl.allocate_shared_memory(V.dtype, [stages_v * shape.pieces_v, 1, 1, Bc, columns], V.layout),
        new_barriers(CONSUMERS, 1),
        new_barriers(stages, 1),
        new_barriers(stages, CONSUMERS),
        new_barriers(stages_v, 1),
        new_barriers(stages_v, CONSUMERS),
    )
    fence_async_shared()
    gl.warp_specialize(
        [
            (consume, (shared, dQ, constants, Tr, H, Nq_padded, last, problem, 0, variant)),
            (consume, (shared, dQ, constants, Tr, H, Nq_padded, last, problem, 1, variant)),
            (produce, (shared, Q, dO, K, V, Tr, H, last, problem, variant)),
        ],
        [4, 1],
        [registers, producer_registers],
    )


@gluon.jit
def work_of(shared, Tr, H, last, problem, variant: gl.constexpr):
    """Return the ``Work`` of this program."""
    Bc: gl.constexpr = shared.K.shape[3]
    Br: gl.constexpr = CONSUMERS * ROWS
    head, place = place_of(gl.program_id(0), Tr, gl.num_programs(0), last)
    b, h, i = head // H, head % H, Tr - 1 - place
    begin, whole_begin, whole_end, end = questions.ranges(
        problem.mask, b, h, i * Br, Br, Bc, problem.Nq, problem.Nk, variant.ragged
    )
    begin, whole_begin, whole_end = gl.to_tensor(begin), gl.to_tensor(whole_begin), gl.to_tensor(whole_end)
    count = gl.cdiv(gl.maximum(end - begin, 0), questions.step(problem.mask, Bc))
    return Work(b, h, i, begin, whole_begin, whole_end, count)


@gluon.jit
def consume(shared, dQ, constants, Tr, H, Nq_padded, last, problem, w: gl.constexpr, variant: gl.constexpr):
    """Compute, in warpgroup w, rows w * ROWS .. (w + 1) * ROWS of the tile."""
    Bc: gl.constexpr = shared.K.shape[3]
    work = work_of(shared, Tr, H, last, problem, variant)
    row = (work.i * CONSUMERS + w) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, accumulator(Bc)))  # [Br]
    at = (work.b * H + work.h).to(gl.int64) * Nq_padded + row
    lse_i, delta_i = gl.load(constants.lse + at)[:, None], gl.load(constants.delta + at)[:, None]  # [Br, 1] each
    rest_i = None if constants.rest is None else gl.load(constants.rest + at)[:, None]  # [Br, 1]
    rows = Rows(row, lse_i, delta_i, rest_i)
    dQ_i = pieces.zeros(ROWS, shared.Q, shared.q_full)  # [Br, d]
    count = work.count
    if problem.mask.right is not None and w == 0:  # causal: only the other consumer may see the last keys
        _, end = questions.bounds(problem.mask, work.i * CONSUMERS * ROWS, ROWS, problem.Nq, problem.Nk)
        count = gl.cdiv(gl.maximum(end - work.begin, 0), Bc)
    wait_full(shared.q_full, w)
    if count > 0:
        dS_ij, dQ_i = step(shared, None, dQ_i, rows, work, problem, 0, w, variant)
        for t in range(1, count):
            dS_ij, dQ_i = step(shared, dS_ij, dQ_i, rows, work, problem, t, w, variant)
        dQ_i = pieces.add_product(dS_ij, pieces.tile(shared.K, shared.k_full, count - 1), dQ_i)
        dQ_i = pieces.finished(dQ_i)
    store(dQ, dQ_i, problem.scale, shared, work, w)


@gluon.jit
def step(shared, dS_before, dQ_i, rows, work, problem, t, w: gl.constexpr, variant: gl.constexpr):
    """Take step t. Return its dS as an operand [Br, Bc], and dQ_i with the share of the step before."""
    early: gl.constexpr = gives_back_early(shared.k_full.shape[0])
    # hidden: the assembler computes the addresses again in each step, and spills none.
    Q_i = pieces.tile(shared.Q, shared.q_full, w + hidden(0))  # [Br, d]
    dO_i = pieces.tile(shared.dO, shared.q_full, w + hidden(0))  # [Br, dv]
    if early and dS_before is not None:
        dQ_i = pieces.add_product(dS_before, pieces.tile(shared.K, shared.k_full, t - 1), dQ_i)
    wait_full(shared.v_full, t)
    dP_ij = pieces.product(dO_i, pieces.tile(shared.V, shared.v_full, t))  # [Br, Bc]
    wait_full(shared.k_full, t)
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.k_full, t))  # [Br, Bc]
    if dS_before is None:
        S_ij, dP_ij = warpgroup_mma_wait(0, deps=(S_ij, dP_ij))
    elif early:
        dQ_i = pieces.finished(dQ_i, later=len(dO_i) + len(Q_i))
        release(shared.k_empty, t - 1)
        S_ij, dP_ij = warpgroup_mma_wait(0, deps=(S_ij, dP_ij))
    else:
        dQ_i = pieces.add_product(dS_before, pieces.tile(shared.K, shared.k_full, t - 1), dQ_i)
        S_ij, dP_ij = warpgroup_mma_wait(len(dQ_i), deps=(S_ij, dP_ij))
    release(shared.v_empty, t)
    sloped = weights(S_ij, rows, work, problem, t, variant)  # [Br, Bc]
    dS_ij = operand(sloped * (dP_ij - rows.delta), shared.K.dtype, shared.K.shape[4])  # [Br, Bc]
    if dS_before is not None and not early:
        pin(shared.k_full, t)
        dQ_i = pieces.finished(dQ_i)
        release(shared.k_empty, t - 1)
    return dS_ij, dQ_i


@gluon.jit
def weights(dot, rows, work, problem, t, variant: gl.constexpr):
    """Return P_ij = e^(S_ij - lse) of step t, times the slope of the score function: [Br, Bc]. dot: Q_i K_j^T."""
    Bc: gl.constexpr = dot.shape[1]
    place = work.begin + t * questions.step(problem.mask, Bc)
    start = questions.first_of(problem.mask, work.b, work.h, work.i, place, Bc)
    i = rows.i[:, None]  # [Br, 1]
    j = (start + gl.arange(0, Bc, layout=gl.SliceLayout(0, accumulator(Bc))))[None, :]  # [1, Bc]
    S_ij, slope = dot, 1.0  # [Br, Bc]
    if problem.score is not None:
        S_ij, slope = scores.apply_with_slope(problem, dot * problem.scale, work.b, work.h, i, j)  # [Br, Bc] each
    P_ij = log_sum_exp.weights(S_ij, rows.lse, rows.rest, problem.factor, variant.unit) * slope  # [Br, Bc]
    if variant.hides:
        if (place < work.whole_begin) | (place >= work.whole_end):
            seen = questions.visible(problem.mask, work.b, work.h, i, j, problem.Nq, problem.Nk, variant.ragged)
            P_ij = gl.where(seen, P_ij, 0.0)
    return P_ij


@gluon.jit
def store(dQ, dQ_i, factor, shared, work, w: gl.constexpr):
    """Write factor * dQ_i by way of the buffers of Q_i, which only this consumer reads."""
    for p in gl.static_range(len(dQ_i)):
        matrix(pieces.piece(shared.Q, shared.q_full, w, p)).store((dQ_i[p] * factor).to(dQ.dtype))
    fence_async_shared()
    for p in gl.static_range(len(dQ_i)):
        at = [work.b, work.h, (work.i * CONSUMERS + w) * ROWS, p * shared.Q.shape[4]]
        tma.async_copy_shared_to_global(dQ, at, pieces.piece(shared.Q, shared.q_full, w, p))
    tma.store_wait(0)


@gluon.jit
def produce(shared, Q, dO, K, V, Tr, H, last, problem, variant: gl.constexpr):
    """Ask for every tile in the order in which it is used, as soon as there is room for it."""
    Bc: gl.constexpr = shared.K.shape[3]
    of_Q: gl.constexpr = pieces.bytes_of(shared.Q, shared.q_full)
    of_dO: gl.constexpr = pieces.bytes_of(shared.dO, shared.q_full)
    of_K: gl.constexpr = pieces.bytes_of(shared.K, shared.k_full)
    of_V: gl.constexpr = pieces.bytes_of(shared.V, shared.v_full)
    work = work_of(shared, Tr, H, last, problem, variant)
    hk = work.h // problem.group
    for w in gl.static_range(CONSUMERS):
        full = shared.q_full.index(w)
        at = [work.b, work.h, (work.i * CONSUMERS + w) * ROWS]
        mbarrier.expect(full, of_Q + of_dO)
        pieces.ask_for(Q, at, full, shared.Q, shared.q_full, w)
        pieces.ask_for(dO, at, full, shared.dO, shared.q_full, w)
    for t in range(work.count):
        place = work.begin + t * questions.step(problem.mask, Bc)
        start = questions.first_of(problem.mask, work.b, work.h, work.i, place, Bc)
        full = stage_of(shared.k_full, t)
        wait_empty(shared.k_empty, t)
        mbarrier.expect(full, of_K)
        pieces.ask_for(K, [work.b, hk, start], full, shared.K, shared.k_full, t)
        full = stage_of(shared.v_full, t)
        wait_empty(shared.v_empty, t)
        mbarrier.expect(full, of_V)
        pieces.ask_for(V, [work.b, hk, start], full, shared.V, shared.v_full, t)
