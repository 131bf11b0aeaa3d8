"""The forward pass for compute capability 9.0: warps that copy, and warps that compute, meeting at barriers.

A program has one producer, a warp that asks the copy engine for tiles, and two or three consumers, groups of four warps
(warpgroups) with 64 rows of Q each. A consumer's step g issues two products, S = Q K_g^T and O += P_(g-1) V_(g-1), and
takes the softmax of S beside the second. What a step needs, K_g and V_(g-1), lies in one stage of shared memory and
arrives at one barrier. The last step of a tile of Q issues the first product of the next tile.

Steps and stages are counted over all tiles of a program: step g uses stage g % stages, for the (g // stages)-th time,
and waits for the parity of that number.

Source: FlashAttention-3, section 3, Algorithm 2; the order of tiles: ``schedule``.
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
from flashlab.kernels.hopper.descriptors import descriptor, multiprocessors
from flashlab.kernels.hopper.schedule import table
from flashlab.kernels.launch import launch

ROWS = gl.constexpr(64)  # of Q in a warpgroup: what one product takes
REGISTERS = {2: (240, 24), 3: (160, 32)}  # a thread, by the number of consumers: of a consumer, of the producer


def run(o, lse, q, k, v, problem, c, pingpong=False, table=table):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] of a ``Problem``, with the ``Configuration`` c. table: of ``schedule``.

    float16 or bfloat16, ``tiles.ready``, d and dv at most 128; sizes at least 1.
    """
    B, H, Hk, Nq, Nk, d, dv = problem[:7]
    causal = problem.mask == masks.causal()
    width, rows = hopper_width(d, dv), ROWS.value
    order, starts, programs = table(B, H, Hk, Nq, Nk, d, c.Br, c.Bc, causal, multiprocessors(q.device), q.device)
    Tr = tiles.count(Nq, c.Br)
    tensors = descriptors(o, q, k, v, rows, c.Br, c.Bc, width)
    crossed = causal and (Nq % rows != 0 or Nk % rows != 0)  # else the diagonal ends where a block does
    switches = (causal, crossed, Nk % c.Bc != 0, pingpong)
    launch(
        attention_forward,
        (programs, 1, 1),
        (*tensors, lse, order, starts),
        (H, Nq, Nk, Tr, problem.scale_log2, c.Bc, width, c.Br // rows, c.stages, *switches, *REGISTERS[c.Br // rows]),
        warps=4,
    )


def descriptors(o, q, k, v, rows, Br, Bc, width):
    """Q, K, V, O and O_first, as the kernel takes them."""
    Nq = q.shape[2]
    made = [descriptor(x, r, width) for x, r in zip((q, k, v, o), (rows, Bc, Bc, rows), strict=True)]
    return [*made, descriptor(o, rows, width, Nq - (tiles.count(Nq, Br) - 1) * Br)]


class Shared(NamedTuple):
    """Shared memory: buffers of tiles, and the barriers that guard them."""

    Q: gl.shared_memory_descriptor  # [2 * consumers, 1, 1, ROWS, width]      this tile's rows, and the next one's
    K: gl.shared_memory_descriptor  # [stages, 1, 1, Bc, width]
    V: gl.shared_memory_descriptor  # [stages, 1, 1, Bc, width]
    O: gl.shared_memory_descriptor  # [consumers, 1, 1, ROWS, width]
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor  # a barrier for each stage: the bytes of its tiles have arrived
    empty: gl.shared_memory_descriptor  # and: all consumers are through with it
    turn: gl.shared_memory_descriptor  # ping-pong: whose turn it is to issue products


class Work(NamedTuple):
    """What there is to do: the table of ``schedule``, this program's part of it, and the sizes of the problem."""

    table: gl.tensor
    first: gl.tensor
    count: gl.tensor
    Nq: gl.tensor
    Nk: gl.tensor
    Tr: gl.tensor  # tiles of a head
    scale_log2: gl.tensor


@gluon.jit
def attention_forward(
    Q, K, V, O, O_first,  # descriptors: Q O [B, H, Nq, d], K V [B, Hk, Nk, d]; O_first ends where O's first tile does
    lse, table, starts,  # pointers: lse [B, H, Nq]; table [tiles, 4] and starts [programs + 1] by ``schedule.table``
    H, Nq, Nk, Tr, scale_log2,  # Tr: tiles of a head
    Bc: gl.constexpr, width: gl.constexpr, consumers: gl.constexpr, stages: gl.constexpr,
    causal: gl.constexpr, crossed: gl.constexpr, ragged: gl.constexpr, pingpong: gl.constexpr,
    registers: gl.constexpr, producer_registers: gl.constexpr,
):  # fmt: skip
    """Program p computes the tiles of O that the table lists for it, each of consumers * ROWS rows."""
    shared = allocate(Q, K, V, O, ROWS, Bc, width, consumers, stages)
    work = work_of(table, starts, Nq, Nk, Tr, scale_log2)
    if consumers == 2:
        gl.warp_specialize(
            [
                (consume, (shared, O, O_first, lse, H, work, 0, causal, crossed, ragged, pingpong)),
                (consume, (shared, O, O_first, lse, H, work, 1, causal, crossed, ragged, pingpong)),
                (produce, (shared, Q, K, V, work, causal)),
            ],
            [4, 1],
            [registers, producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (shared, O, O_first, lse, H, work, 0, causal, crossed, ragged, pingpong)),
                (consume, (shared, O, O_first, lse, H, work, 1, causal, crossed, ragged, pingpong)),
                (consume, (shared, O, O_first, lse, H, work, 2, causal, crossed, ragged, pingpong)),
                (produce, (shared, Q, K, V, work, causal)),
            ],
            [4, 4, 1],
            [registers, registers, producer_registers],
        )


@gluon.jit
def allocate(
    Q, K, V, O, rows: gl.constexpr, Bc: gl.constexpr, width: gl.constexpr,
    consumers: gl.constexpr, stages: gl.constexpr,
):  # fmt: skip
    """Shared memory for what the descriptors bring, and barriers in their first phase."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        gl.allocate_shared_memory(Q.dtype, [2 * consumers, 1, 1, rows, width], Q.layout),
        gl.allocate_shared_memory(K.dtype, [stages, 1, 1, Bc, width], K.layout),
        gl.allocate_shared_memory(V.dtype, [stages, 1, 1, Bc, width], V.layout),
        gl.allocate_shared_memory(O.dtype, [consumers, 1, 1, rows, width], O.layout),
        gl.allocate_shared_memory(gl.int64, [2 * consumers, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [2 * consumers, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [consumers, 1], barriers),
    )
    for w in gl.static_range(consumers):
        mbarrier.init(shared.turn.index(w), count=1)
    for w in gl.static_range(2 * consumers):
        mbarrier.init(shared.q_full.index(w), count=1)
        mbarrier.init(shared.q_empty.index(w), count=1)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.full.index(stage), count=1)
        mbarrier.init(shared.empty.index(stage), count=consumers)
    fence_async_shared()
    return shared


@gluon.jit
def work_of(table, starts, Nq, Nk, Tr, scale_log2):
    """What the table lists for this program."""
    first = gl.load(starts + gl.program_id(0))
    count = gl.load(starts + gl.program_id(0) + 1) - first
    return Work(table, first, count, Nq, Nk, Tr, scale_log2)


@gluon.jit
def tile(work, t, Br: gl.constexpr, Bc: gl.constexpr, causal: gl.constexpr):
    """The program's t-th tile: its first row, the row behind its last, b, h, hk, and how many blocks of keys it meets.

    Causal tiles are aligned at the last row, so that it is the first tile of a head that is cut short, and with it the
    one that has least to do; others at the first row.
    """
    row = work.table + (work.first + t) * 4
    i = gl.load(row)
    if causal:
        end = work.Nq - (work.Tr - 1 - i) * Br
        first_row = gl.maximum(end - Br, 0)
        n = gl.maximum(gl.cdiv(end + work.Nk - work.Nq, Bc), 1)
    else:
        end = work.Nq
        first_row = i * Br
        n = gl.cdiv(work.Nk, Bc)
    return first_row, end, gl.load(row + 1), gl.load(row + 2), gl.load(row + 3), n


@gluon.jit
def produce(shared, Q, K, V, work, causal: gl.constexpr):
    """Ask for every tile in the order in which it is used, as soon as there is room for it.

    Blocks of keys come from right to left: then a causal mask meets only the first ones.
    """
    stages: gl.constexpr = shared.K.shape[0]
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    g = 0
    b_before, hk_before, start_before = 0, 0, 0  # of the block of V that goes with the next block of K
    for t in range(work.count):
        first_row, _, b, h, hk, n = tile(work, t, consumers * rows, Bc, causal)
        for j in range(n):
            start = (n - 1 - j) * Bc
            stage = g % stages
            full = shared.full.index(stage)
            mbarrier.wait(shared.empty.index(stage), ((g // stages) & 1) ^ 1)
            with_v = g > 0
            mbarrier.expect(full, K.block_type.nbytes, pred=g == 0)
            mbarrier.expect(full, K.block_type.nbytes + V.block_type.nbytes, pred=with_v)
            tma.async_copy_global_to_shared(K, [b, hk, start, 0], full, shared.K.index(stage))
            tma.async_copy_global_to_shared(
                V, [b_before, hk_before, start_before, 0], full, shared.V.index(stage), with_v
            )
            if j == 0:
                for w in gl.static_range(consumers):
                    buffer = (t & 1) * consumers + w
                    q_full = shared.q_full.index(buffer)
                    mbarrier.wait(shared.q_empty.index(buffer), ((t >> 1) & 1) ^ 1)
                    mbarrier.expect(q_full, Q.block_type.nbytes)
                    tma.async_copy_global_to_shared(Q, [b, h, first_row + w * rows, 0], q_full, shared.Q.index(buffer))
            b_before, hk_before, start_before = b, hk, start
            g += 1
    stage = g % stages
    full = shared.full.index(stage)
    mbarrier.wait(shared.empty.index(stage), ((g // stages) & 1) ^ 1)
    mbarrier.expect(full, V.block_type.nbytes)
    tma.async_copy_global_to_shared(V, [b_before, hk_before, start_before, 0], full, shared.V.index(stage))


@gluon.jit
def consume(
    shared, O, O_first, lse, H, work,
    w: gl.constexpr, causal: gl.constexpr, crossed: gl.constexpr, ragged: gl.constexpr, pingpong: gl.constexpr,
):  # fmt: skip
    """Warpgroup w computes rows w * ROWS .. (w + 1) * ROWS of each tile.

    Causal: blocks that only the rows below see are skipped. crossed: the diagonal may run through a second block.
    """
    stages: gl.constexpr = shared.K.shape[0]
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    Br: gl.constexpr = consumers * rows
    O_layout: gl.constexpr = parts.accumulator(width)
    row: gl.constexpr = gl.SliceLayout(1, parts.accumulator(Bc))
    within = gl.arange(0, rows, layout=row)  # [Br]
    offset = work.Nk - work.Nq  # causal: the last query sees the last key

    first_row, end, b, h, hk, n = tile(work, 0, Br, Bc, causal)
    g = unseen(n, first_row, end, offset, shared, w, causal)
    n -= g
    first_row += w * rows
    mbarrier.wait(shared.full.index(0), 0)
    mbarrier.arrive(shared.empty.index(0), count=1, pred=g > 0)
    mbarrier.wait(shared.full.index(g), 0)
    mbarrier.wait(shared.q_full.index(w), 0)
    wait_turn(shared, w, 0, pingpong)
    Q_i = shared.Q.index(w).reshape([rows, width])
    S = scores(Q_i, shared, g)
    pass_turn(shared, w, pingpong)
    skip_turn(shared, w, 1, g, pingpong)
    S = warpgroup_mma_wait(0, deps=(S,))
    mbarrier.arrive(shared.empty.index(g), count=1)
    seen = first_row + offset if causal else work.Nk - 1
    P, m_i, l_i = parts.first_weights(S, seen - (n - 1) * Bc, work.scale_log2, causal, ragged)
    mbarrier.wait(shared.full.index((g + 1) % stages), ((g + 1) // stages) & 1)
    P_before = parts.operand(P, shared.V.dtype, width)

    for t in range(work.count):
        O_i = gl.zeros([rows, width], gl.float32, O_layout)  # [Br, d]
        for j in range(1, n):
            g += 1
            seen = first_row + offset - (n - 1 - j) * Bc
            P_before, m_i, l_i, O_i = step(
                shared, Q_i, P_before, m_i, l_i, O_i, g, seen, work.scale_log2, w, crossed, pingpong
            )

        # The boundary: the first product of the next tile goes out with the last one of this tile.
        g += 1
        stage = g % stages
        more = t + 1 < work.count
        next_row, next_end, b_next, h_next, hk, n = tile(work, gl.minimum(t + 1, work.count - 1), Br, Bc, causal)
        skipped = unseen(n, next_row, next_end, offset, shared, w, causal)
        n -= skipped
        g += skipped
        stage_next = g % stages
        next_row += w * rows
        mbarrier.arrive(shared.q_empty.index((t & 1) * consumers + w), count=1)
        buffer = ((t + 1) & 1) * consumers + w
        mbarrier.wait(shared.q_full.index(buffer), ((t + 1) >> 1) & 1, pred=more)
        Q_i = shared.Q.index(buffer).reshape([rows, width])
        if causal:
            mbarrier.wait(shared.full.index(stage_next), (g // stages) & 1, pred=more)
        wait_turn(shared, w, g - skipped, pingpong)
        S = scores(Q_i, shared, stage_next)
        O_i = warpgroup_mma(P_before, shared.V.index(stage).reshape([Bc, width]), O_i, is_async=True)
        pass_turn(shared, w, pingpong)
        skip_turn(shared, w, g, skipped, pingpong)
        S = warpgroup_mma_wait(1, deps=(S,))
        seen = next_row + offset if causal else work.Nk - 1
        P, m_next, l_next = parts.first_weights(S, seen - (n - 1) * Bc, work.scale_log2, causal, ragged)
        P_next = parts.operand(P, shared.V.dtype, width)
        inverse = parts.finish(m_i, l_i, lse + (b * H + h).to(gl.int64) * work.Nq, first_row + within, end)
        tma.store_wait(0)  # the O of the tile before has left its buffer
        # This wait is over before it begins; it keeps the exponentials where they are, as in ``step``. The next stage
        # cannot be waited for here: after a skipped block it is the one that is given back below.
        mbarrier.wait(shared.full.index(stage_next), (g // stages) & 1, pred=more)
        O_i = warpgroup_mma_wait(0, deps=(O_i,))
        mbarrier.arrive(shared.empty.index(stage), count=1)
        mbarrier.arrive(shared.empty.index(stage_next), count=1, pred=skipped > 0)
        O_i = O_i * gl.convert_layout(inverse, gl.SliceLayout(1, O_layout))[:, None]  # [Br, d]
        shared.O.index(w).reshape([rows, width]).store(O_i.to(shared.O.dtype))
        fence_async_shared()
        if causal and end <= Br:
            tma.async_copy_shared_to_global(O_first, [b, h, first_row, 0], shared.O.index(w))
        else:
            tma.async_copy_shared_to_global(O, [b, h, first_row, 0], shared.O.index(w))
        ahead = g + 1
        mbarrier.wait(shared.full.index(ahead % stages), (ahead // stages) & 1, pred=more)
        P_before = P_next
        m_i, l_i, b, h, first_row, end = m_next, l_next, b_next, h_next, next_row, next_end
    tma.store_wait(0)


@gluon.jit
def step(
    shared, Q_i, P_before, m_i, l_i, O_i, g, first_seen, scale_log2,
    w: gl.constexpr, crossed: gl.constexpr, pingpong: gl.constexpr,
):  # fmt: skip
    """Step g within a tile: scores of one block, the product of the block before, and the softmax beside it.

    first_seen: which key of the block is the last that the first row sees; beyond the block, there is nothing to mask.
    """
    stages: gl.constexpr = shared.K.shape[0]
    Bc: gl.constexpr = shared.K.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    stage = g % stages
    wait_turn(shared, w, g, pingpong)
    S = scores(Q_i, shared, stage)
    O_i = warpgroup_mma(P_before, shared.V.index(stage).reshape([Bc, width]), O_i, is_async=True)
    pass_turn(shared, w, pingpong)
    S = warpgroup_mma_wait(1, deps=(S,))
    if crossed:
        if first_seen < Bc - 1:
            S = parts.mask(S, first_seen, True)
    P, m_i, alpha = parts.weights(S, m_i, scale_log2)
    l_i = parts.add_sums(l_i, alpha, P)
    P_next = parts.operand(P, shared.V.dtype, width)
    # Waiting for the next stage here, not at its use, also keeps the assembler from moving the exponentials behind the
    # wait for the product that they are meant to run beside. (With three consumers, not causal, it moves them all the
    # same; there the other two fill the gap.)
    ahead = g + 1
    mbarrier.wait(shared.full.index(ahead % stages), (ahead // stages) & 1)
    O_i = warpgroup_mma_wait(0, deps=(O_i,))
    mbarrier.arrive(shared.empty.index(stage), count=1)
    return P_next, m_i, l_i, parts.rescale(O_i, alpha)


@gluon.jit
def scores(Q_i, shared, stage):
    """Issue S = Q_i K_j^T, with the K_j of a stage: its transpose is another view of the same bytes."""
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    K_j = shared.K.index(stage).reshape([Bc, width])
    zeros = gl.zeros([rows, Bc], gl.float32, parts.accumulator(Bc, rows))  # [Br, Bc]
    return warpgroup_mma(Q_i, K_j.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def unseen(n, first_row, end, offset, shared, w: gl.constexpr, causal: gl.constexpr):
    """How many of a tile's n blocks, counted from the right, no row of warpgroup w sees: 0 or 1."""
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    gl.static_assert(Bc >= (consumers - 1) * rows, "more than one block could be skipped")
    if causal and w < consumers - 1:
        return n - gl.maximum(gl.cdiv(gl.minimum(first_row + (w + 1) * rows, end) + offset, Bc), 1)
    else:
        return n * 0


@gluon.jit
def wait_turn(shared, w: gl.constexpr, g, pingpong: gl.constexpr):
    """Ping-pong: warpgroups issue their products in turn, 0 first, so that one multiplies while the next takes exps."""
    if pingpong:
        mbarrier.wait(shared.turn.index(w), (g & 1) ^ 1 if w == 0 else g & 1)


@gluon.jit
def pass_turn(shared, w: gl.constexpr, pingpong: gl.constexpr):
    if pingpong:
        mbarrier.arrive(shared.turn.index((w + 1) % shared.O.shape[0]), count=1)


@gluon.jit
def skip_turn(shared, w: gl.constexpr, g, skipped, pingpong: gl.constexpr):
    if pingpong:
        if skipped > 0:
            wait_turn(shared, w, g, pingpong)
            pass_turn(shared, w, pingpong)
