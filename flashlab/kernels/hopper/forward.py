"""The forward pass for compute capability 9.0: producer and consumer warps, synchronised by barriers.

A program has one producer, a warp that issues the loads of tiles by the copy engine (TMA), and two or three consumers,
groups of four warps (warpgroups) with 64 rows of Q each. A consumer's step g issues two products, S = Q K_g^T and
O += P_(g-1) V_(g-1), and computes the softmax of S while the second product runs. K_g and V_(g-1) share one stage of
shared memory and one barrier. The last step of a tile of Q issues the first product of the next tile. Tiles of more
than 128 columns come in ``pieces``.

This file has the launch and the consumers. ``arguments`` builds the arguments, ``roles`` has shared memory and the
producer, ``work`` finds the tiles, ``softmax`` writes the results. Steps are counted over all tiles of a program.
``stages`` defines the stage of a step and the phase of its barrier.

Source: FlashAttention-3, section 3, Algorithm 2; the order of tiles: ``schedule``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from flashlab.kernels.configurations import choose
from flashlab.kernels.hopper import pieces
from flashlab.kernels.hopper.arguments import (
    REGISTERS,
    ROWS,
    SIZES,
    Shape,
    descriptors,
    multiprocessors,
    request_of,
    sizes,
    variant,
    without_unseen,
)
from flashlab.kernels.hopper.products import operand
from flashlab.kernels.hopper.roles import allocate, ask_for_keys, ask_for_values, specialize
from flashlab.kernels.hopper.schedule import table
from flashlab.kernels.hopper.softmax import (
    Output,
    finish,
    first_weights,
    new_maximum,
    store,
    total,
    update_sums,
    weights,
)
from flashlab.kernels.hopper.stages import pin, release, wait_full
from flashlab.kernels.hopper.work import Work, lines_of, part_of, shown, tile_of
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.portable import forward as portable


def run(o, lse, q, k, v, problem, c, rest=None, table=table, launched=None):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] for a ``Problem``, with the tiles of the ``Configuration`` c.

    Tensors are float16 or bfloat16 and ``tiles.ready``; d and dv are at most 256, and all sizes at least 1. Score
    functions are soft caps and ALiBi. There is no dropout, and packed texts have no score functions. A ``Rule`` must
    show each query one interval of keys, and hide no key from all queries. rest, launched: as for
    ``portable.forward.run``. table: as ``schedule.table``.
    """
    launched = {} if launched is None else launched
    k, v, problem = without_unseen(k, v, problem)

    def first():
        consumers = c.Br // ROWS.value
        shape = Shape.of(problem.d, problem.dv).with_turns(c.Br, c.Bc, c.stages)
        order, starts, programs = table(problem, c.Br, c.Bc, multiprocessors(problem.device))
        return launch(
            attention_forward,
            (programs, 1, 1),
            (*descriptors(o, q, k, v, ROWS.value, c.Br, c.Bc, shape.columns), lse, rest),
            (order, starts, *sizes(problem, c.Br), c.Bc, shape, consumers, c.stages)
            + (variant(problem, ROWS.value, c.Bc), *REGISTERS[consumers], request_of(problem)),
            warps=4,
        )

    repeat(launched, "forward", (q, k, v, o, o, lse, rest), first)
    if problem.mask.keeps_apart:
        c = choose("forward", problem, "portable").launches["forward"]
        portable.repair(o, lse, q, k, v, problem, c, rest, launched)


@gluon.jit(do_not_specialize=SIZES)
def attention_forward(
    Q, K, V, O, O_first,  # descriptors: Q O [B, H, Nq, d], K V [B, Hk, Nk, d]; O_first ends where O's first tile does
    lse, rest, table, starts,  # pointers: as for ``Output``, and as ``schedule.table`` returns them
    H, Nq, Nk, Tr, factor,  # Tr: tiles of a head
    Bc: gl.constexpr, shape: gl.constexpr, consumers: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr,
    registers: gl.constexpr, producer_registers: gl.constexpr,
    request,  # ``Request``
):  # fmt: skip
    """Compute, in program p, the tiles of O that the table lists for it, each of consumers * ROWS rows."""
    specialize(
        consume, ask_for_keys, ask_for_values,
        allocate(Q, K, V, O, ROWS, Bc, shape, consumers, stages),
        Q, K, V,
        Output(O, O_first, lse, rest),
        Work(table, *lines_of(starts), H, Nq, Nk, Tr, factor, request),
        variant, registers, producer_registers,
    )  # fmt: skip


@gluon.jit
def consume(shared, out, work, w: gl.constexpr, variant: gl.constexpr):
    """Compute, in warpgroup w, rows w * ROWS .. (w + 1) * ROWS of each tile.

    P_before holds the weights of the previous block; their product with V overlaps the next block's softmax.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    tile = tile_of(work, 0, shared.O.shape[0] * rows, Bc, variant)
    tile, skipped = part_of(tile, work, shared, w, variant)
    Q_i, P_before, m_i, l_i, g = begin(shared, work, tile, skipped, 0, 0, w, variant)
    for t in range(work.count):
        O_i = pieces.zeros(rows, shared.V, shared.full)  # [Br, d]
        # ``start_of`` uses ``tile.blocks``, too. Without this use, ``tile.blocks`` would keep its first value: Triton
        # 3.6 and 3.7 treat a number as dead if a loop carries it only as the end of an inner loop (Triton's pull
        # request 9036).
        for j in range(1, tile.blocks):
            g += 1
            P_before, m_i, l_i, O_i = step(shared, work, tile, Q_i, P_before, m_i, l_i, O_i, g, j, w, variant)
        tile, Q_i, P_before, m_i, l_i, g = boundary(
            shared, out, work, tile, P_before, m_i, l_i, O_i, g + 1, t, w, variant
        )
    tma.store_wait(0)


@gluon.jit
def begin(shared, work, tile, skipped, g, t, w: gl.constexpr, variant: gl.constexpr):
    """Start tile t at step g, before there is anything to overlap: load Q_i and compute the first block's weights.

    Also returns the step of that block.
    """
    slot = t * shared.O.shape[0] + w
    wait_full(shared.full, g)
    release(shared.empty, g, pred=skipped > 0)
    g += skipped
    wait_full(shared.full, g)
    wait_full(shared.q_full, slot)
    Q_i = pieces.tile(shared.Q, shared.q_full, slot)  # [Br, d]
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, g), variant.columns)  # [Br, Bc]
    S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
    release(shared.empty, g)
    S_ij = shown(S_ij, tile, 0, work, variant, first=True)
    m_i, l_i, P_ij = first_weights(S_ij, work.factor, variant.unit)
    wait_full(shared.full, g + 1)
    return Q_i, operand(P_ij, shared.V.dtype, shared.Q.shape[4]), m_i, l_i, g


@gluon.jit
def step(
    shared, work, tile, Q_i, P_before, m_i, l_i, O_i, g, j, w: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Compute step g of a tile: the scores of block j, the product of the previous block, and the softmax during it.

    Where there are three consumers, each computes only the maximum during its own product. Its exponentials run during
    the products of the other two, which was faster.
    """
    two: gl.constexpr = shared.O.shape[0] == 2
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, g), variant.columns)  # [Br, Bc]
    O_i = pieces.add_product(P_before, pieces.tile(shared.V, shared.full, g), O_i)  # [Br, d]
    S_ij = warpgroup_mma_wait(len(O_i), deps=(S_ij,))
    S_ij = shown(S_ij, tile, j, work, variant)
    m_new = new_maximum(m_i, S_ij, work.factor, variant.unit)
    if not two:
        O_i = complete(shared, O_i, g)
    P_ij, alpha = weights(m_i, m_new, S_ij, work.factor, variant.unit)
    l_i = update_sums(l_i, P_ij, alpha)
    P_ij = operand(P_ij, shared.V.dtype, shared.Q.shape[4])
    if two:
        O_i = complete(shared, O_i, g)
    return P_ij, m_new, l_i, pieces.rescale(O_i, alpha)


@gluon.jit
def complete(shared, O_i, g):
    """Wait for the second product of step g, and release the stage.

    The wait for the next stage is here, not at its use: the assembler moves no earlier code past this wait.
    """
    wait_full(shared.full, g + 1)
    O_i = pieces.finished(O_i)
    release(shared.empty, g)
    return O_i


@gluon.jit
def boundary(
    shared, out, work, tile, P_before, m_i, l_i, O_i, g, t, w: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Compute step g, the last one of tile t: its last product, together with the first product of the next tile.

    Returns the next tile and the results of ``begin`` for it. After the last tile they are not used.
    """
    rows: gl.constexpr = shared.Q.shape[3]
    Bc: gl.constexpr = shared.K.shape[3]
    slot = t * shared.O.shape[0] + w
    more = t + 1 < work.count
    following = tile_of(work, gl.minimum(t + 1, work.count - 1), shared.O.shape[0] * rows, Bc, variant)
    following, skipped = part_of(following, work, shared, w, variant)
    ahead = g + skipped  # the step of the next tile's first block
    release(shared.q_empty, slot)
    wait_full(shared.q_full, slot + shared.O.shape[0], pred=more)
    Q_i = pieces.tile(shared.Q, shared.q_full, slot + shared.O.shape[0])  # [Br, d]
    if variant.mask.right is not None:
        wait_full(shared.full, ahead, pred=more)
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, ahead), variant.columns)  # [Br, Bc]
    O_i = pieces.add_product(P_before, pieces.tile(shared.V, shared.full, g), O_i)  # [Br, d]
    S_ij = warpgroup_mma_wait(len(O_i), deps=(S_ij,))
    S_ij = shown(S_ij, following, 0, work, variant, first=True)
    m_next, l_next, P_next = first_weights(S_ij, work.factor, variant.unit)
    P_next = operand(P_next, shared.V.dtype, shared.Q.shape[4])
    inverse = finish(m_i, total(l_i, m_i), out, tile, work, variant)
    tma.store_wait(0)  # the O of the tile before has left its buffer
    # A wait for step ahead + 1 would not end: after a skipped block, its stage is released below.
    pin(shared.full, ahead, pred=more)
    O_i = pieces.finished(O_i)
    release(shared.empty, g)
    release(shared.empty, ahead, pred=skipped > 0)
    store(shared, out, tile, O_i, inverse, w, variant)
    wait_full(shared.full, ahead + 1, pred=more)
    return following, Q_i, P_next, m_next, l_next, ahead
