"""The rungs: what ``forward`` is made of, one idea at a time. All compute the same, on compute capability 9.0.

1. one partition: eight warps, 128 rows of Q, everything in turn: a product, wait, softmax, the other product, wait.
2. warpgroups: two partitions of four warps and 64 rows, which need not wait for each other, and in each the softmax
   beside the second product. A program still computes one tile of Q and ends.
3. persistent: as many programs as multiprocessors, and tiles go round; the producer runs ahead into the next tile.
4. overlapped boundary: ``forward``, in which the next tile's first product goes out with this tile's last one.
5. longest first: the same, with the order of ``schedule.table``.

Rungs 2 and 3 are one kernel, and so are 4 and 5: what differs is the table of tiles.
"""

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
from flashlab.kernels.configurations import Configuration, against_hopper, card
from flashlab.kernels.hopper import forward, parts, schedule
from flashlab.kernels.hopper.descriptors import multiprocessors
from flashlab.kernels.hopper.forward import allocate, produce, scores, step, tile, unseen, work_of
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import Problem

RUNGS = ("one partition", "warpgroups", "persistent", "overlapped boundary", "longest first")
Br, Bc = 128, 128
STAGES = {64: 3, 128: 2}  # of shared memory, by d


def attend(rung, q, k, v, causal=False):
    """softmax(Q K^T / sqrt(d)) V by one of the rungs, 1 to 5.

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
    B, H, Hk, Nq, Nk, d, _ = problem[:7]
    causal = problem.mask == masks.causal()
    if rung > 3:
        order = schedule.plain_table if rung == 4 else schedule.table
        forward.run(o, lse, q, k, v, problem, Configuration(Br, Bc, 4, STAGES[d]), table=order)
        return
    kernel, warps, rows = (one_partition, 8, 128) if rung == 1 else (warpgroups, 4, 64)
    Tr = tiles.count(Nq, Br)
    programs = multiprocessors(q.device) if rung == 3 else B * H * Tr
    table, starts, programs = schedule.plain_table(B, H, Hk, Nq, Nk, d, Br, Bc, causal, programs, q.device)
    crossed = causal and (Nq % rows != 0 or Nk % rows != 0)
    launch(
        kernel,
        (programs, 1, 1),
        (*forward.descriptors(o, q, k, v, rows, Br, Bc, d), lse, table, starts),
        (H, Nq, Nk, Tr, problem.scale_log2, Bc, d, STAGES[d], causal, crossed, Nk % Bc != 0),
        warps=warps,
    )


@gluon.jit
def one_partition(
    Q, K, V, O, O_first, lse, table, starts, H, Nq, Nk, Tr, scale_log2,  # as for ``forward.attention_forward``
    Bc: gl.constexpr, width: gl.constexpr, stages: gl.constexpr,
    causal: gl.constexpr, crossed: gl.constexpr, ragged: gl.constexpr,
):  # fmt: skip
    """Rung 1: 8 warps, which share 128 rows and go in step, beside the warp that copies."""
    shared = allocate(Q, K, V, O, 128, Bc, width, 1, stages)
    work = work_of(table, starts, Nq, Nk, Tr, scale_log2)
    gl.warp_specialize(
        [
            (consume, (shared, O, O_first, lse, H, work, 0, causal, crossed, ragged)),
            (produce, (shared, Q, K, V, work, causal)),
        ],
        [1],
        [24],
    )


@gluon.jit
def warpgroups(
    Q, K, V, O, O_first, lse, table, starts, H, Nq, Nk, Tr, scale_log2,
    Bc: gl.constexpr, width: gl.constexpr, stages: gl.constexpr,
    causal: gl.constexpr, crossed: gl.constexpr, ragged: gl.constexpr,
):  # fmt: skip
    """Rungs 2 and 3: two times 4 warps with 64 rows each, which meet only at the barriers of K and V."""
    shared = allocate(Q, K, V, O, 64, Bc, width, 2, stages)
    work = work_of(table, starts, Nq, Nk, Tr, scale_log2)
    gl.warp_specialize(
        [
            (consume, (shared, O, O_first, lse, H, work, 0, causal, crossed, ragged)),
            (consume, (shared, O, O_first, lse, H, work, 1, causal, crossed, ragged)),
            (produce, (shared, Q, K, V, work, causal)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def consume(
    shared, O, O_first, lse, H, work,
    w: gl.constexpr, causal: gl.constexpr, crossed: gl.constexpr, ragged: gl.constexpr,
):  # fmt: skip
    """A tile from its first scores to its O, then the next: what stands outside the loop over j overlaps with nothing.

    Stage g holds K_g and V_(g-1), also where g - 1 is the last step of the tile before: it is free when K_g was used.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    O_layout: gl.constexpr = parts.accumulator(width, rows)
    within = gl.arange(0, rows, layout=gl.SliceLayout(1, parts.accumulator(Bc, rows)))  # [Br]
    offset = work.Nk - work.Nq  # causal: the last query sees the last key
    g = 0
    for t in range(work.count):
        first_row, end, b, h, _, n = tile(work, t, consumers * rows, Bc, causal)
        skipped = unseen(n, first_row, end, offset, shared, w, causal)
        wait_full(shared, g)
        mbarrier.arrive(stage_of(shared.empty, g), count=1, pred=skipped > 0)
        g += skipped
        n -= skipped
        first_row += w * rows
        buffer = (t & 1) * consumers + w
        mbarrier.wait(shared.q_full.index(buffer), (t >> 1) & 1)
        Q_i = shared.Q.index(buffer).reshape([rows, width])
        wait_full(shared, g)
        S = scores(Q_i, shared, g % shared.K.shape[0])
        S = warpgroup_mma_wait(0, deps=(S,))
        mbarrier.arrive(stage_of(shared.empty, g), count=1)
        last_seen = first_row + offset if causal else work.Nk - 1  # by the first row
        P, m_i, l_i = parts.first_weights(S, last_seen - (n - 1) * Bc, work.scale_log2, causal, ragged)
        P = parts.operand(P, shared.V.dtype, width)
        O_i = gl.zeros([rows, width], gl.float32, O_layout)  # [Br, d]
        wait_full(shared, g + 1)
        for j in range(1, n):
            g += 1
            seen = first_row + offset - (n - 1 - j) * Bc
            if consumers == 1:
                P, m_i, l_i, O_i = step_in_turn(shared, Q_i, P, m_i, l_i, O_i, g, seen, work.scale_log2, crossed)
            else:
                P, m_i, l_i, O_i = step(shared, Q_i, P, m_i, l_i, O_i, g, seen, work.scale_log2, w, crossed, False)
        mbarrier.arrive(shared.q_empty.index(buffer), count=1)
        g += 1
        O_i = weighted(P, shared, g, O_i)
        inverse = parts.finish(m_i, l_i, lse + (b * H + h).to(gl.int64) * work.Nq, first_row + within, end)
        O_i = O_i * gl.convert_layout(inverse, gl.SliceLayout(1, O_layout))[:, None]  # [Br, d]
        shared.O.index(w).reshape([rows, width]).store(O_i.to(shared.O.dtype))
        fence_async_shared()
        if causal and end <= consumers * rows:
            tma.async_copy_shared_to_global(O_first, [b, h, first_row, 0], shared.O.index(w))
        else:
            tma.async_copy_shared_to_global(O, [b, h, first_row, 0], shared.O.index(w))
        tma.store_wait(0)


@gluon.jit
def step_in_turn(shared, Q_i, P_before, m_i, l_i, O_i, g, first_seen, scale_log2, crossed: gl.constexpr):
    """Rung 1's ``forward.step``: each product is waited for where it is issued, and nothing runs beside it."""
    O_i = weighted(P_before, shared, g, O_i)
    S = scores(Q_i, shared, g % shared.K.shape[0])
    S = warpgroup_mma_wait(0, deps=(S,))
    mbarrier.arrive(stage_of(shared.empty, g), count=1)
    if crossed:
        if first_seen < S.shape[1] - 1:
            S = parts.mask(S, first_seen, True)
    P, m_i, alpha = parts.weights(S, m_i, scale_log2)
    l_i = parts.add_sums(l_i, alpha, P)
    wait_full(shared, g + 1)
    return parts.operand(P, shared.V.dtype, O_i.shape[1]), m_i, l_i, parts.rescale(O_i, alpha)


@gluon.jit
def weighted(P, shared, g, O_i):
    """O_i + P V_(g-1), once it is there."""
    V_j = stage_of(shared.V, g).reshape([shared.K.shape[3], O_i.shape[1]])
    O_i = warpgroup_mma(P, V_j, O_i, is_async=True)
    return warpgroup_mma_wait(0, deps=(O_i,))


@gluon.jit
def wait_full(shared, g):
    mbarrier.wait(stage_of(shared.full, g), (g // shared.K.shape[0]) & 1)


@gluon.jit
def stage_of(buffers, g):
    """Of the buffers, or barriers, of all stages those of step g."""
    return buffers.index(g % buffers.shape[0])
