"""The forward pass in float8 for compute capability 9.0: ``forward`` on numbers of 8 bits.

Roles, stages and barriers are those of ``forward``. Six things differ:

- Values are transposed: a product of 8 bits needs the keys of both operands side by side.
- A thread holds the weights of two neighbouring keys out of eight, and an operand of 8 bits takes four neighbours from
  it. So the copy engine brings the keys of a block in another order: 0 1, 4 5, 8 9, ..., then 2 3, 6 7, 10 11, ...
  Then a thread holds exactly the weights that its operand needs, and none moves between threads.
- A tensor core keeps about 14 bits of a sum. So P_ij V_j begins at 0 in each step, and is added to O_i in float32: the
  second level. For 131,072 positive values, sums that stay in the tensor core for 512 keys have 1.1 times the error of
  exact sums, for 1,024 keys 1.3 times, and for all keys 15 to 18 times.
- A consumer overlaps nothing of its own. If it held S_ij, P_ij V_j and O_i at once, the registers would suffice for two
  consumers. One after the other, they leave room for a third, and the three fill each other's gaps. At d = 128 and
  16,384 tokens, an H200 reached 1,000 TFLOP/s with three, and 820 to 927 with two, in turn or overlapped (22 November
  2026).
- At d = 256 two consumers fill the registers, and tiles of 128 keys fill shared memory, so O leaves through a buffer of
  half its columns. With tiles of 64 keys the second level has twice the additions: 830 to 910 TFLOP/s, not 985.
- Scores are multiplied by scales, one per row and one per block of keys.

Source: FlashAttention-3, section 3.3; DeepSeek-V3, section 3.3.2, for the second level.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlab.kernels import float8, tiles
from flashlab.kernels.configurations import hopper_width
from flashlab.kernels.hopper import arguments
from flashlab.kernels.hopper.arguments import REGISTERS, ROWS, SIZES, descriptor, fours_descriptor, multiprocessors
from flashlab.kernels.hopper.products import accumulator, along_rows, fours, operand_of_fours, product, rescale
from flashlab.kernels.hopper.roles import barriers, specialize
from flashlab.kernels.hopper.schedule import table
from flashlab.kernels.hopper.scores import hide_keys
from flashlab.kernels.hopper.softmax import Output, finish, hand_over, partial_sums, total, update_sums, update_weights
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_full
from flashlab.kernels.hopper.work import Work, limit_of, lines_of, part_of, start_of, tile_of
from flashlab.kernels.launch import launch
from flashlab.kernels.masks import Window
from flashlab.kernels.problem import WIDEST

OFFSET = gl.constexpr(float8.OFFSET)
LAZY = gl.constexpr(0.8)  # in units of log2, as in ``softmax``: 2^8.8 is less than 448, the largest code


def run(o, lse, q, k, v, problem, c, table=table):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] for a ``Problem``, with the tiles of the ``Configuration`` c.

    q, k and v are e4m3, and o is float16, bfloat16 or float32; all are ``tiles.ready``, with v in memory as
    [B, Hk, dv, Nk]. d and dv are at most 256, sizes at least 1, and masks full or causal.
    """
    consumers, width = c.Br // ROWS.value, hopper_width(problem.d, problem.dv, 8)
    order, starts, programs = table(problem.kind, c.Br, c.Bc, multiprocessors(problem.device))
    columns = width if width < WIDEST else width // 2  # of O in shared memory: there is no room for more
    Nq, Tr = problem.Nq, tiles.count(problem.Nq, c.Br)
    launch(
        attention_forward,
        (programs, 1, 1),
        (
            descriptor(q, ROWS.value, width),
            fours_descriptor(k, c.Bc, width),
            descriptor(v.mT, width, c.Bc),
            descriptor(o, ROWS.value, columns),
            descriptor(o, ROWS.value, columns, Nq - (Tr - 1) * c.Br),
            lse,
        ),
        (order, starts, *arguments.sizes(problem, c.Br), c.Bc, width, consumers, c.stages)
        + (variant(problem, c.Bc), *REGISTERS[consumers], arguments.request_of(problem)),
        warps=4,
    )  # fmt: skip


def variant(problem, Bc):
    """Return the ``Variant`` for a problem."""
    plain = arguments.variant(problem, ROWS.value, Bc)
    parts = 4 if hopper_width(problem.d, problem.dv, 8) == WIDEST else 1
    return Variant(plain.mask, plain.crossed, plain.ragged, plain.unit, problem.scales.two_level, parts)


class Variant(NamedTuple):
    """The compile-time part of a problem: each variant is a kernel of its own."""

    mask: Window
    crossed: bool  # as in ``arguments.Variant``
    ragged: bool
    unit: float  # always 1
    two_level: bool  # else O is summed in the tensor core
    parts: int  # of the columns of O: registers do not hold a product of all 256 columns beside O_i


@gluon.jit(do_not_specialize=SIZES)
def attention_forward(
    Q, K, V, O, O_first,  # descriptors: Q O [B, H, Nq, d], K [B, Hk, Nk / 4, 4, d], V [B, Hk, d, Nk]; as in ``forward``
    lse, table, starts,  # pointers: lse [B, H, Nq]; table [tiles, 4] and starts [programs + 1] by ``schedule.table``
    H, Nq, Nk, Tr, factor,  # Tr: tiles of a head
    Bc: gl.constexpr, width: gl.constexpr, consumers: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr,
    registers: gl.constexpr, producer_registers: gl.constexpr,
    request,  # ``Request``
):  # fmt: skip
    """Compute, in program p, the tiles of O that the table lists for it, each of consumers * ROWS rows."""
    specialize(
        consume, ask_for_keys, ask_for_values,
        allocate(Q, K, V, O, ROWS, Bc, width, consumers, stages),
        Q, K, V,
        Output(O, O_first, lse),
        Work(table, *lines_of(starts), H, Nq, Nk, Tr, factor, request),
        variant, registers, producer_registers,
    )  # fmt: skip


@gluon.jit
def allocate(
    Q, K, V, O, rows: gl.constexpr, Bc: gl.constexpr, width: gl.constexpr,
    consumers: gl.constexpr, stages: gl.constexpr,
):  # fmt: skip
    """Return shared memory as ``roles.allocate`` does, in one piece, with two turns, and V [stages, 1, 1, width, Bc].

    O [consumers, 1, 1, rows, columns] holds as many columns of a tile as the descriptor takes: all, or half of them.
    """
    keys: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, Bc, width], K.dtype)
    return barriers(
        gl.allocate_shared_memory(Q.dtype, [2 * consumers, 1, 1, rows, width], Q.layout),
        gl.allocate_shared_memory(K.dtype, [stages, 1, 1, Bc, width], keys),
        gl.allocate_shared_memory(V.dtype, [stages, 1, 1, width, Bc], V.layout),
        gl.allocate_shared_memory(O.dtype, [consumers, 1, 1, rows, O.block_shape[3]], O.layout),
        2 * consumers, stages,
    )  # fmt: skip


@gluon.jit
def ask_for_keys(shared, K, b, hk, start, full, g):
    """Ask for a block of keys in two halves: first of each four keys the first two, then the others (``key_of``)."""
    stages: gl.constexpr = shared.K.shape[0]
    columns: gl.constexpr = K.block_shape[4]  # one copy brings at most 128
    copies: gl.constexpr = 2 * shared.K.shape[4] // columns
    shape: gl.constexpr = [stages * copies, 1, 1, K.block_shape[2], 2, columns]
    halves = shared.K._reinterpret(K.dtype, shape, K.layout)
    for n in gl.static_range(copies):
        at = [b, hk, start // 4, n % 2 * 2, n // 2 * columns]
        tma.async_copy_global_to_shared(K, at, full, halves.index(g % stages * copies + n))


@gluon.jit
def ask_for_values(shared, V, b, hk, start, full, g, pred=True):
    """Ask for a block of values, transposed."""
    tma.async_copy_global_to_shared(V, [b, hk, 0, start], full, stage_of(shared.V, g), pred)


@gluon.jit
def key_of(column, Bc: gl.constexpr):
    """Return the key whose scores are in a column of S_ij, counted from the first of its block."""
    return column % (Bc // 2) // 2 * 4 + column // (Bc // 2) * 2 + column % 2


@gluon.jit
def hide(S_ij, limit, causal: gl.constexpr):
    """Return S_ij [Br, Bc] with -inf for the keys past ``limit``, as ``scores.hide`` does, in ``key_of``'s order."""
    columns = gl.arange(0, S_ij.shape[1], layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    return hide_keys(S_ij, key_of(columns, S_ij.shape[1]), limit, causal)


@gluon.jit
def consume(shared, out, work, w: gl.constexpr, variant: gl.constexpr):
    """Compute, in warpgroup w, rows w * ROWS .. (w + 1) * ROWS of each tile, as ``forward.consume`` does."""
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    parts: gl.constexpr = variant.parts
    columns: gl.constexpr = shared.Q.shape[4] // parts
    tile = tile_of(work, 0, shared.O.shape[0] * rows, Bc, variant)
    tile, skipped = part_of(tile, work, shared, w, variant)
    Q_i, P_before, m_i, l_i, scale_i, g = begin(shared, work, tile, skipped, w, variant)
    for t in range(work.count):
        O_i = ()  # of each part of the columns, [Br, d / parts]
        for _ in gl.static_range(parts):
            O_i = O_i + (gl.zeros([rows, columns], gl.float32, accumulator(columns, rows, 8)),)
        seen = gl.minimum(tile.blocks, 2) if variant.crossed else 1  # from this block on, each row sees all keys
        if variant.crossed:
            for j in range(1, seen):
                g += 1
                limit = limit_of(tile, start_of(tile, j, Bc), work, variant)
                scale_ij = of_block(scale_i, work, tile, j, Bc)  # [Br]
                P_before, m_i, l_i, O_i = step(shared, Q_i, P_before, m_i, l_i, O_i, g, limit, scale_ij, True, variant)
        for j in range(seen, tile.blocks):
            g += 1
            scale_ij = of_block(scale_i, work, tile, j, Bc)  # [Br]
            P_before, m_i, l_i, O_i = step(shared, Q_i, P_before, m_i, l_i, O_i, g, 0, scale_ij, False, variant)
        tile, Q_i, P_before, m_i, l_i, scale_i, g = boundary(
            shared, out, work, tile, P_before, m_i, l_i, O_i, g + 1, t, w, variant
        )
    tma.store_wait(0)


@gluon.jit
def of_rows(work, tile, rows: gl.constexpr, Bc: gl.constexpr):
    """Return the factors [Br] of the scores of a tile's rows, in units of log2, before those of the keys."""
    i = tile.start + gl.arange(0, rows, layout=gl.SliceLayout(1, accumulator(Bc, rows, 8)))  # [Br]
    i = gl.minimum(gl.maximum(i, 0), work.Nq - 1)  # rows past the ends of a head are never stored
    return float8.scaled(work.factor, work.request.scales, float8.OF_Q, tile.b, tile.h, i)


@gluon.jit
def of_block(scale_i, work, tile, j, Bc: gl.constexpr):
    """Return the factors [Br] of the scores of a tile's j-th block, counted from the right."""
    return float8.scaled(scale_i, work.request.scales, float8.OF_K, tile.b, tile.hk, (tile.blocks - 1 - j) * Bc)


@gluon.jit
def begin(shared, work, tile, skipped, w: gl.constexpr, variant: gl.constexpr):
    """Begin the first tile, at step ``skipped``: its queries, and the weights of its first block.

    Returns the factors of its rows and the step, too.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    wait_full(shared.full, 0)
    release(shared.empty, 0, pred=skipped > 0)
    scale_i = of_rows(work, tile, shared.Q.shape[3], Bc)
    scale_ij = of_block(scale_i, work, tile, 0, Bc)
    wait_full(shared.full, skipped)
    wait_full(shared.q_full, w)
    Q_i = matrix(stage_of(shared.Q, w))  # [Br, d]
    S_ij = warpgroup_mma_wait(0, deps=(product(Q_i, matrix(stage_of(shared.K, skipped))),))  # [Br, Bc]
    release(shared.empty, skipped)
    m_i, l_i, P_ij = first_weights(S_ij, limit_of(tile, start_of(tile, 0, Bc), work, variant), scale_ij, variant)
    wait_full(shared.full, skipped + 1)
    return Q_i, fours(P_ij), m_i, l_i, scale_i, skipped


@gluon.jit
def step(
    shared, Q_i, P_before, m_i, l_i, O_i, g, limit, scale_ij, cut: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Compute step g within a tile: the product of the previous block, the scores of one block, and their softmax."""
    S_ij, O_i = products(shared, Q_i, P_before, O_i, g, g, variant)
    release(shared.empty, g)
    if cut:
        S_ij = hide(S_ij, limit, True)
    m_i, P_ij, alpha = update_weights(m_i, S_ij, scale_ij, 1, OFFSET, LAZY)
    l_i = update_sums(l_i, P_ij, alpha)
    for p in gl.static_range(len(O_i)):
        O_i = O_i[:p] + (rescale(O_i[p], alpha),) + O_i[p + 1 :]
    P_ij = fours(P_ij)
    wait_full(shared.full, g + 1)
    return P_ij, m_i, l_i, O_i


@gluon.jit
def products(shared, Q_i, P_before, O_i, k, g, variant: gl.constexpr):
    """Return the scores of step k, and O_i with the product of step g added.

    At most two parts of O are computed at a time, and then S alone: the registers do not suffice for more.
    """
    parts: gl.constexpr = variant.parts
    P_before = operand_of_fours(P_before, shared.Q.shape[4] // parts)
    O_p = multiply(shared, P_before, O_i, g, 0, variant)  # [Br, d / parts]
    for p in gl.static_range(1, parts):
        O_next = multiply(shared, P_before, O_i, g, p, variant)  # [Br, d / parts]
        O_i = collect(O_i, O_p, p - 1, 1, variant)
        O_p = O_next
    O_i = collect(O_i, O_p, parts - 1, 0, variant)
    S_ij = product(Q_i, matrix(stage_of(shared.K, k)))  # [Br, Bc]
    return warpgroup_mma_wait(0, deps=(S_ij,)), O_i


@gluon.jit
def multiply(shared, P_before, O_i, g, p: gl.constexpr, variant: gl.constexpr):
    """Issue the product of weights and part p of the columns of the values of step g."""
    parts: gl.constexpr = variant.parts
    stages: gl.constexpr = shared.V.shape[0]
    shape: gl.constexpr = [stages * parts, 1, 1, shared.V.shape[3] // parts, shared.V.shape[4]]
    V_p = matrix(shared.V._reinterpret(shared.V.dtype, shape, shared.V.layout).index(g % stages * parts + p))
    if variant.two_level:
        return product(P_before, V_p)
    else:
        return warpgroup_mma(P_before, V_p.permute((1, 0)), O_i[p], is_async=True)


@gluon.jit
def collect(O_i, O_p, p: gl.constexpr, others: gl.constexpr, variant: gl.constexpr):
    """Return O_i with the product O_p added to part p. others: how many products may still run after the wait."""
    O_p = warpgroup_mma_wait(others, deps=(O_p,))
    O_p = O_i[p] + O_p if variant.two_level else O_p
    return O_i[:p] + (O_p,) + O_i[p + 1 :]


@gluon.jit
def first_weights(S_ij, limit, scale_ij, variant: gl.constexpr):
    """Return m_i, l_i and the weights after the first block of a tile, the one that a causal or ragged mask cuts."""
    if variant.mask.right is not None or variant.ragged:
        S_ij = hide(S_ij, limit, variant.mask.right is not None)
    m_i = gl.full([S_ij.shape[0]], -float("inf"), gl.float32, scale_ij.type.layout)  # [Br]
    m_i, P_ij, _ = update_weights(m_i, S_ij, scale_ij, 1, OFFSET, LAZY)
    return m_i, partial_sums(P_ij), P_ij


@gluon.jit
def boundary(
    shared, out, work, tile, P_before, m_i, l_i, O_i, g, t, w: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Compute step g, the last one of tile t: its last product, and the first one of the next tile.

    Returns the next tile and the results of ``begin`` for it. After the last tile they are not used.
    """
    rows: gl.constexpr = shared.Q.shape[3]
    Bc: gl.constexpr = shared.K.shape[3]
    slot = t * shared.O.shape[0] + w
    more = t + 1 < work.count
    following = tile_of(work, gl.minimum(t + 1, work.count - 1), shared.O.shape[0] * rows, Bc, variant)
    following, skipped = part_of(following, work, shared, w, variant)
    ahead = g + skipped  # the step of the next tile's first block
    scale_i = of_rows(work, following, rows, Bc)
    scale_ij = of_block(scale_i, work, following, 0, Bc)
    inverse = finish(m_i, total(l_i, m_i), out, tile, work, variant)
    inverse = float8.scaled(inverse, work.request.scales, float8.OF_V, tile.b, tile.hk, 0)  # [Br]
    release(shared.q_empty, slot)
    wait_full(shared.q_full, slot + shared.O.shape[0], pred=more)
    Q_i = matrix(stage_of(shared.Q, slot + shared.O.shape[0]))  # [Br, d]
    if variant.mask.right is not None:
        wait_full(shared.full, ahead, pred=more)
    S_ij, O_i = products(shared, Q_i, P_before, O_i, ahead, g, variant)
    release(shared.empty, g)
    release(shared.empty, ahead, pred=skipped > 0)
    tma.store_wait(0)  # the O of the tile before has left its buffer
    store(shared, out, tile, O_i, inverse, w, variant)
    m_i, l_i, P_ij = first_weights(
        S_ij, limit_of(following, start_of(following, 0, Bc), work, variant), scale_ij, variant
    )
    P_ij = fours(P_ij)
    wait_full(shared.full, ahead + 1, pred=more)
    return following, Q_i, P_ij, m_i, l_i, scale_i, ahead


@gluon.jit
def store(shared, out, tile, O_i, inverse, w: gl.constexpr, variant: gl.constexpr):
    """Hand inverse[:, None] * O_i to the copy engine, as many columns at a time as the buffer of warpgroup w holds."""
    ring: gl.constexpr = shared.O.shape
    columns: gl.constexpr = O_i[0].shape[1]
    parts: gl.constexpr = ring[4] // columns  # of O in the buffer
    buffers = shared.O._reinterpret(shared.O.dtype, [ring[0] * parts, 1, 1, ring[3], columns], shared.O.layout)
    for p in gl.static_range(len(O_i)):
        O_p = O_i[p] * along_rows(inverse, O_i[p], free=False)[:, None]  # [Br, d / parts]
        matrix(buffers.index(w * parts + p % parts)).store(O_p.to(shared.O.dtype))
        if p % parts == parts - 1:
            hand_over(shared, out, tile, w, variant, p // parts * ring[4])
            if p < len(O_i) - 1:
                tma.store_wait(0)
