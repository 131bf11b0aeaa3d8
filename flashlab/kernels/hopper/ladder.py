"""The rungs: what ``forward`` is made of, one idea at a time. All compute the same, on compute capability 9.0.

1. one partition: eight warps, 128 rows of Q, everything in turn: a product, wait, softmax, the other product, wait. Its
   ``update`` is the loop body of ``tiling``, line by line.
2. warpgroups: two partitions of four warps and 64 rows, which need not wait for each other, and in each the softmax
   beside the second product. A program still computes one tile of Q and ends.
3. persistent: as many programs as multiprocessors, and tiles go round; the producer runs ahead into the next tile.
4. overlapped boundary: ``forward``, in which the next tile's first product goes out with this tile's last one.
5. longest first: the same, with the order of ``schedule.table``.

Rungs 2 and 3 are one kernel, and so are 4 and 5: they differ in the table of tiles.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait

from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import Configuration, card
from flashlab.kernels.hopper import arguments, forward, pieces, schedule
from flashlab.kernels.hopper.arguments import SIZES, multiprocessors
from flashlab.kernels.hopper.forward import begin, step
from flashlab.kernels.hopper.products import accumulator, along_rows, operand, product
from flashlab.kernels.hopper.roles import allocate, produce
from flashlab.kernels.hopper.scores import hide
from flashlab.kernels.hopper.softmax import Output, finish, store, total
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_full
from flashlab.kernels.hopper.work import Work, limit_of, lines_of, part_of, start_of, tile_of
from flashlab.kernels.launch import launch
from flashlab.kernels.limits import against_hopper
from flashlab.kernels.problem import Problem

RUNGS = ("one partition", "warpgroups", "persistent", "overlapped boundary", "longest first")
Br, Bc = 128, 128
STAGES = {64: 3, 128: 2}  # of shared memory, by d


def attend(rung, q, k, v, causal=False):
    """Compute softmax(Q K^T / sqrt(d)) V by one of the rungs, 1 to 5.

    Args:
        q: [B, H, Nq, d], k, v: [B, Hk, Nk, d], float16 or bfloat16, d 64 or 128. causal: query i sees keys
            j <= i + Nk - Nq.

    Returns:
        O [B, H, Nq, d].

    Raises:
        ValueError: no Hopper GPU, another rung, or another d.
    """
    if rung not in range(1, len(RUNGS) + 1):
        raise ValueError(f"rung must be a number from 1 to {len(RUNGS)}, got {rung!r}")
    if q.shape[3] not in STAGES:
        raise ValueError(f"the rungs are for d = 64 and d = 128, got {q.shape[3]}")
    problem = Problem.of(q, k, v, masks.either(causal, None), q.shape[3] ** -0.5)
    if against := against_hopper(card(q.device), problem):
        raise ValueError(f"the rungs cannot do this: {against}")
    q, k, v = (tiles.ready(x) for x in (q, k, v))
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    run(rung, o, lse, q, k, v, problem)
    return o


def run(rung, o, lse, q, k, v, problem):
    """Fill o and lse as ``forward.run`` does, for d = dv = 64 or 128."""
    d, SMs = problem.d, multiprocessors(problem.device)
    if rung > 3:
        order = schedule.plain_table if rung == 4 else schedule.table
        forward.run(o, lse, q, k, v, problem, Configuration(Br, Bc, 12, STAGES[d]), table=order)
        return
    kernel, warps, rows = (one_partition, 8, 128) if rung == 1 else (warpgroups, 4, 64)
    programs = SMs if rung == 3 else problem.B * problem.H * tiles.count(problem.Nq, Br)
    table, starts, programs = schedule.plain_table(problem, Br, Bc, programs)
    launch(
        kernel,
        (programs, 1, 1),
        (*arguments.descriptors(o, q, k, v, rows, Br, Bc, d), lse),
        (table, starts, *arguments.sizes(problem, Br), Bc, arguments.Shape.of(d, d), STAGES[d])
        + (arguments.variant(problem, rows, Bc), arguments.request_of(problem)),
        warps=warps,
    )


@gluon.jit(do_not_specialize=SIZES)
def one_partition(
    Q, K, V, O, O_first, lse, table, starts, H, Nq, Nk, Tr, factor,  # as for ``forward.attention_forward``
    Bc: gl.constexpr, shape: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr, request,
):  # fmt: skip
    """Compute as rung 1 does: 8 warps share 128 rows and go in step, beside the warp that copies."""
    shared = allocate(Q, K, V, O, 128, Bc, shape, 1, stages)
    work = Work(table, *lines_of(starts), H, Nq, Nk, Tr, factor, request)
    gl.warp_specialize(
        [
            (consume_in_turn, (shared, Output(O, O_first, lse), work, variant)),
            (produce, (shared, Q, K, V, work, variant)),
        ],
        [1],
        [24],
    )


@gluon.jit
def consume_in_turn(shared, out, work, variant: gl.constexpr):
    """Compute tile after tile, block after block, each product awaited where it is issued.

    V_j arrives with the keys of step g + 1, which are loaded while this step computes.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    row: gl.constexpr = gl.SliceLayout(1, accumulator(Bc, rows))
    g = 0
    for t in range(work.count):
        tile = tile_of(work, t, rows, Bc, variant)
        wait_full(shared.q_full, t)
        Q_i = matrix(stage_of(shared.Q, t))  # [Br, d]
        m_i = gl.full([rows], -float("inf"), gl.float32, row)  # [Br]
        l_i = gl.zeros([rows], gl.float32, row)  # [Br]
        O_i = gl.zeros([rows, width], gl.float32, accumulator(width, rows))  # [Br, d]
        for j in range(tile.blocks):
            wait_full(shared.full, g)
            S_ij = product(Q_i, matrix(stage_of(shared.K, g)))  # [Br, Bc]
            S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
            release(shared.empty, g)
            limit = limit_of(tile, start_of(tile, j, Bc), work, variant)
            if variant.mask.right is not None or variant.ragged:
                if limit < Bc - 1:
                    S_ij = hide(S_ij, limit, variant.mask.right is not None)
            g += 1
            wait_full(shared.full, g)
            V_j = matrix(stage_of(shared.V, g))  # [Bc, d]
            m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j, work.factor)
        release(shared.q_empty, t)
        inverse = finish(m_i, l_i, out, tile, work, variant)
        store(shared, out, tile, (O_i,), inverse, 0, variant)
        tma.store_wait(0)


@gluon.jit
def update(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    """Take in one block of scores and values. m_i is in units of log2, and so are the scores once they are scaled."""
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * scale_log2)  # [Br]
    m_safe = gl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2(m_i - m_safe)  # [Br]
    P_ij = gl.exp2(S_ij * scale_log2 - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + gl.sum(P_ij, 1)  # [Br]
    P_ij = operand(P_ij, V_j.dtype, V_j.shape[1])  # the one narrowing
    alpha = along_rows(alpha, O_i)
    O_i = warpgroup_mma(P_ij, V_j, alpha[:, None] * O_i)  # [Br, d]
    return m_new, l_i, O_i


@gluon.jit(do_not_specialize=SIZES)
def warpgroups(
    Q, K, V, O, O_first, lse, table, starts, H, Nq, Nk, Tr, factor,
    Bc: gl.constexpr, shape: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr, request,
):  # fmt: skip
    """Compute as rungs 2 and 3 do: two times 4 warps with 64 rows each meet only at the barriers of K and V."""
    shared = allocate(Q, K, V, O, 64, Bc, shape, 2, stages)
    work = Work(table, *lines_of(starts), H, Nq, Nk, Tr, factor, request)
    out = Output(O, O_first, lse)
    gl.warp_specialize(
        [
            (consume, (shared, out, work, 0, variant)),
            (consume, (shared, out, work, 1, variant)),
            (produce, (shared, Q, K, V, work, variant)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def consume(shared, out, work, w: gl.constexpr, variant: gl.constexpr):
    """Compute tile after tile: the softmax of a step overlaps with a product, beginning and end of a tile do not.

    Stage g holds K_g and V_(g-1), also where g - 1 is the last step of the tile before: it is free once K_g was used.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    g = 0
    for t in range(work.count):
        tile = tile_of(work, t, consumers * rows, Bc, variant)
        tile, skipped = part_of(tile, work, shared, w, variant)
        Q_i, P_before, m_i, l_i, g = begin(shared, work, tile, skipped, g, t, w, variant)
        O_i = pieces.zeros(rows, shared.V, shared.full)  # [Br, d], of one piece
        for j in range(1, tile.blocks):
            g += 1
            P_before, m_i, l_i, O_i = step(shared, work, tile, Q_i, P_before, m_i, l_i, O_i, g, j, w, variant)
        release(shared.q_empty, t * consumers + w)
        g += 1
        O_i = (warpgroup_mma(P_before, matrix(stage_of(shared.V, g)), O_i[0]),)  # [Br, d]
        inverse = finish(m_i, total(l_i, m_i), out, tile, work, variant)
        store(shared, out, tile, O_i, inverse, w, variant)
        tma.store_wait(0)
