"""The forward pass for compute capability 9.0: warps that copy, and warps that compute, meeting at barriers.

A program has one producer, a warp that asks the copy engine for tiles, and two or three consumers, groups of four warps
(warpgroups) with 64 rows of Q each. A consumer's step g issues two products, S = Q K_g^T and O += P_(g-1) V_(g-1), and
takes the softmax of S beside the second. What a step needs, K_g and V_(g-1), shares one stage of shared memory and
arrives at one barrier. The last step of a tile of Q issues the first product of the next tile. Tiles of more than 128
columns come in ``pieces``.

Steps are counted over all tiles of a program. ``stages`` says which stage a step uses and for which phase it waits.

Source: FlashAttention-3, section 3, Algorithm 2; the order of tiles: ``schedule``.
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

from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import hopper_width
from flashlab.kernels.hopper import pieces, scores
from flashlab.kernels.hopper.descriptors import descriptor, multiprocessors
from flashlab.kernels.hopper.masks import LATER, Intervals, blocks, end_of, hide, hide_before, hide_outside, known
from flashlab.kernels.hopper.products import along_rows, operand
from flashlab.kernels.hopper.schedule import table
from flashlab.kernels.hopper.softmax import first_weights, new_maximum, sink_of, total, update_sums, weights
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_empty, wait_full
from flashlab.kernels.launch import again, launch

ROWS = gl.constexpr(64)  # of Q in a warpgroup: what one product takes
SHAPES = {64: (64, 2), 128: (128, 2), 192: (64, 2), 256: (128, 1)}  # by width of heads: as for ``Shape``
SIZES = ["H", "Nq", "Nk", "Tr"]  # numbers that change from call to call: one compilation for all
REGISTERS = {2: (240, 24), 3: (160, 32)}  # per thread, by the number of consumers: of a consumer, of the producer


def run(o, lse, q, k, v, problem, c, pingpong=False, table=table):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] for a ``Problem``, with the tiles of the ``Configuration`` c.

    float16 or bfloat16, ``tiles.ready``, d and dv at most 256; sizes at least 1; score functions are soft caps and
    ALiBi; no dropout, and packed texts without score functions. A ``Rule`` shows each query one interval of keys, and
    each key to some query. table: as ``schedule.table``. Returns what ``again`` does.
    """
    k, v, problem = without_unseen(k, v, problem)
    known = masks.launches(problem, c, pingpong, table)
    when = problem.plain or known is not None
    return again(start, (q, k, v, o, lse), (), problem, c, pingpong, table, when=when, known=known)


def start(q, k, v, o, lse, problem, c, pingpong, table):
    """Launch the kernel."""
    consumers, shape = c.Br // ROWS.value, Shape.of(problem.d, problem.dv)
    order, starts, programs = table(problem, c.Br, c.Bc, multiprocessors(problem.device))
    return launch(
        attention_forward,
        (programs, 1, 1),
        (*descriptors(o, q, k, v, ROWS.value, c.Br, c.Bc, shape.columns), lse, order, starts),
        (*sizes(problem, c.Br), c.Bc, shape, consumers, c.stages)
        + (variant(problem, ROWS.value, c.Bc, pingpong), *REGISTERS[consumers], asked(problem)),
        warps=4,
    )


def without_unseen(k, v, problem):
    """Return keys, values and problem without the first keys, where no window reaches them.

    Their weights are 0. But 0 times a value that is not finite would be NaN.
    """
    if isinstance(problem.mask, masks.Rule) or problem.mask.left is None:
        return k, v, problem
    unseen = max(0, problem.Nk - problem.Nq - problem.mask.left)
    return k[:, :, unseen:], v[:, :, unseen:], problem._replace(Nk=problem.Nk - unseen)


def descriptors(o, q, k, v, rows, Br, Bc, width):
    """Return Q, K, V, O and O_first as the kernels take them."""
    Nq = q.shape[2]
    made = [descriptor(x, r, width) for x, r in zip((q, k, v, o), (rows, Bc, Bc, rows), strict=True)]
    return [*made, descriptor(o, rows, width, Nq - (tiles.count(Nq, Br) - 1) * Br)]


def sizes(problem, Br):
    """Return H, Nq, Nk, Tr and scale_log2 as the kernels take them."""
    Tr = tiles.count(problem.Nq, Br)
    scale_log2 = problem.scale_log2 if problem.score is None else scores.factors(problem)[1]
    return problem.H, problem.Nq, problem.Nk, Tr, scale_log2


def variant(problem, rows, Bc, pingpong=False):
    """Return the ``Variant`` for warpgroups, or partitions, of this many rows."""
    mask, Nq, Nk = known(problem.mask), problem.Nq, problem.Nk
    # else the diagonal ends where a block does
    crossed = mask.right is not None and (Nq % rows != 0 or (Nk + problem.mask.right) % rows != 0)
    return Variant(mask, crossed, Nk % Bc != 0, pingpong)


def asked(problem):
    """Return what a problem asks for beside a full or causal mask, as ``Asked``."""
    ends = problem.mask if LATER.value in known(problem.mask) else masks.full()
    intervals = Intervals.of(problem) if isinstance(problem.mask, masks.Rule) else None
    if problem.score is None:
        told = None if problem.scales is None else problem.scales.told
        return Asked(ends, intervals, None, None, problem.sinks, told)
    return Asked(ends, intervals, scores.told(problem), scores.factors(problem)[0], problem.sinks, None)


class Shape(NamedTuple):
    """How tiles of Q, K, V and O are divided into ``pieces`` of their columns."""

    columns: int  # of a piece
    turns: int  # tiles of Q for each consumer in shared memory: this one, and the next if there is room
    pieces: int  # of a tile of Q, and of K
    pieces_v: int  # of V, and of O

    @classmethod
    def of(cls, d, dv):
        """Return the shape for heads of d and dv columns."""
        columns, turns = SHAPES[hopper_width(d, dv)]
        return cls(columns, turns, tiles.count(d, columns), tiles.count(dv, columns))


class Variant(NamedTuple):
    """The part of a problem that the compiler knows: each variant is a kernel of its own."""

    mask: masks.Window  # as far as it is ``known``
    crossed: bool  # the diagonal may run through a second block of a warpgroup
    ragged: bool  # Bc does not divide Nk
    pingpong: bool  # warpgroups issue their products in turn


class Asked(NamedTuple):
    """The extras of a call beside a full or causal mask. One that is None is not in the kernel."""

    mask: masks.Window  # with the ends that the compiler does not know
    intervals: Intervals | None  # of a ``Rule``: the keys that each query sees
    score: tuple | None  # as ``scores.told``
    scale: float | None  # the factor on the scores before them
    sinks: gl.tensor | None  # pointer to [H]
    scales: tuple | None  # of numbers of 8 bits, as ``Scales.told``


class Shared(NamedTuple):
    """Shared memory: rings of tiles, and the barriers that guard them (``stages``)."""

    Q: gl.shared_memory_descriptor  # [2 * consumers, 1, 1, ROWS, width]      this tile's rows, and the next one's
    K: gl.shared_memory_descriptor  # [stages, 1, 1, Bc, width]
    V: gl.shared_memory_descriptor  # [stages, 1, 1, Bc, width]
    O: gl.shared_memory_descriptor  # [consumers, 1, 1, ROWS, width]
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor  # of the stages of K and V
    empty: gl.shared_memory_descriptor
    turn: gl.shared_memory_descriptor  # ping-pong: one per consumer, whose turn it is to issue products


class Output(NamedTuple):
    """The destinations of the results."""

    O: tma.tensor_descriptor  # [B, H, Nq, dv]
    O_first: tma.tensor_descriptor  # the same, ending where the first tile of a head does
    lse: gl.tensor  # pointer to [B, H, Nq]


class Work(NamedTuple):
    """The work of a program: its lines of the table of ``schedule``, and the sizes of the problem."""

    table: gl.tensor
    first: gl.tensor
    count: gl.tensor
    H: gl.tensor
    Nq: gl.tensor
    Nk: gl.tensor
    Tr: gl.tensor  # tiles of a head
    scale_log2: gl.tensor
    asked: Asked


class Tile(NamedTuple):
    """Rows of Q, of a whole tile or of one warpgroup, and the keys that they meet."""

    start: gl.tensor  # the first row
    end: gl.tensor  # one past the last row of the whole tile
    b: gl.tensor
    h: gl.tensor
    hk: gl.tensor
    blocks: gl.tensor  # of keys: how many
    first: gl.tensor  # the leftmost of them
    since: gl.tensor  # by a table, from this key on all queries of the whole tile see the keys
    till: gl.tensor  # up to this one


@gluon.jit(do_not_specialize=SIZES)
def attention_forward(
    Q, K, V, O, O_first,  # descriptors: Q O [B, H, Nq, d], K V [B, Hk, Nk, d]; O_first ends where O's first tile does
    lse, table, starts,  # pointers: lse [B, H, Nq]; table [tiles, 4 or 8], starts [programs + 1]: ``schedule.table``
    H, Nq, Nk, Tr, scale_log2,  # Tr: tiles of a head
    Bc: gl.constexpr, shape: gl.constexpr, consumers: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr,
    registers: gl.constexpr, producer_registers: gl.constexpr,
    asked,  # ``Asked``
):  # fmt: skip
    """Compute, in program p, the tiles of O that the table lists for it, each of consumers * ROWS rows."""
    specialize(
        consume, ask_for_keys, ask_for_values,
        allocate(Q, K, V, O, ROWS, Bc, shape, consumers, stages),
        Q, K, V,
        Output(O, O_first, lse),
        Work(table, *lines_of(starts), H, Nq, Nk, Tr, scale_log2, asked),
        variant, registers, producer_registers,
    )  # fmt: skip


@gluon.jit
def specialize(
    consume: gl.constexpr, ask_for_keys: gl.constexpr, ask_for_values: gl.constexpr,
    shared, Q, K, V, out, work, variant: gl.constexpr, registers: gl.constexpr, producer_registers: gl.constexpr,
):  # fmt: skip
    """Give each warp its role: that of ``consume``, or of ``produce``, which has the other two ask for tiles.

    A function, since functions that come with ``Asked`` can be handed on, but not kept.
    """
    consumers: gl.constexpr = shared.O.shape[0]
    if consumers == 2:
        gl.warp_specialize(
            [
                (take, (consume, shared, out, work, 0, variant)),
                (take, (consume, shared, out, work, 1, variant)),
                (produce, (shared, Q, K, V, work, variant, ask_for_keys, ask_for_values)),
            ],
            [4, 1],
            [registers, producer_registers],
        )
    else:
        gl.warp_specialize(
            [
                (take, (consume, shared, out, work, 0, variant)),
                (take, (consume, shared, out, work, 1, variant)),
                (take, (consume, shared, out, work, 2, variant)),
                (produce, (shared, Q, K, V, work, variant, ask_for_keys, ask_for_values)),
            ],
            [4, 4, 1],
            [registers, registers, producer_registers],
        )


@gluon.jit
def take(role: gl.constexpr, shared, out, work, w: gl.constexpr, variant: gl.constexpr):
    """Take a role that came as an argument, which ``warp_specialize`` cannot."""
    role(shared, out, work, w, variant)


@gluon.jit
def allocate(
    Q, K, V, O, rows: gl.constexpr, Bc: gl.constexpr, shape: gl.constexpr,
    consumers: gl.constexpr, stages: gl.constexpr,
):  # fmt: skip
    """Return shared memory for what the descriptors bring, and barriers in their first phase."""
    columns: gl.constexpr = shape.columns
    slots: gl.constexpr = shape.turns * consumers
    return barriers(
        gl.allocate_shared_memory(Q.dtype, [slots * shape.pieces, 1, 1, rows, columns], Q.layout),
        gl.allocate_shared_memory(K.dtype, [stages * shape.pieces, 1, 1, Bc, columns], K.layout),
        gl.allocate_shared_memory(V.dtype, [stages * shape.pieces_v, 1, 1, Bc, columns], V.layout),
        gl.allocate_shared_memory(O.dtype, [consumers, 1, 1, rows, columns], O.layout),
        slots, stages,
    )  # fmt: skip


@gluon.jit
def barriers(Q, K, V, O, slots: gl.constexpr, stages: gl.constexpr):
    """Return these rings with their barriers, in their first phase. slots: of Q, in pieces; stages: of K and V."""
    consumers: gl.constexpr = O.shape[0]
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        Q, K, V, O,
        gl.allocate_shared_memory(gl.int64, [slots, 1], layout),
        gl.allocate_shared_memory(gl.int64, [slots, 1], layout),
        gl.allocate_shared_memory(gl.int64, [stages, 1], layout),
        gl.allocate_shared_memory(gl.int64, [stages, 1], layout),
        gl.allocate_shared_memory(gl.int64, [consumers, 1], layout),
    )  # fmt: skip
    for w in gl.static_range(consumers):
        mbarrier.init(shared.turn.index(w), count=1)
    for slot in gl.static_range(slots):
        mbarrier.init(shared.q_full.index(slot), count=1)
        mbarrier.init(shared.q_empty.index(slot), count=1)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.full.index(stage), count=1)
        mbarrier.init(shared.empty.index(stage), count=consumers)
    fence_async_shared()
    return shared


@gluon.jit
def lines_of(starts):
    """Return the first of this program's lines in the table, and how many there are."""
    first = gl.load(starts + gl.program_id(0))
    return first, gl.load(starts + gl.program_id(0) + 1) - first


@gluon.jit
def tile_of(work, t, Br: gl.constexpr, Bc: gl.constexpr, variant: gl.constexpr):
    """Return the program's t-th ``Tile``.

    Where windows end after a query's own key, tiles are aligned at the last row. So it is the first tile of a head that
    is cut short, the one that has least to do. Other tiles are aligned at the first row.
    """
    columns: gl.constexpr = 4 if work.asked.intervals is None else 8
    line = work.table + (work.first + t) * columns
    i, b, h, hk = gl.load(line), gl.load(line + 1), gl.load(line + 2), gl.load(line + 3)
    start = i * Br
    end = work.Nq
    if variant.mask.right is not None:
        end = work.Nq - (work.Tr - 1 - i) * Br
        start = end - Br
    if work.asked.intervals is not None:
        first, count, since, till = gl.load(line + 4), gl.load(line + 5), gl.load(line + 6), gl.load(line + 7)
        return Tile(start, end, b, h, hk, count, first, since, till)
    else:
        first, last = blocks(variant, work.asked.mask, start, Br, Bc, work.Nq, work.Nk)
        if variant.mask.right is not None:
            start = gl.maximum(start, 0)
        return Tile(start, end, b, h, hk, last - first, first, gl.to_tensor(0), gl.to_tensor(0))


@gluon.jit
def part_of(tile, work, shared, w: gl.constexpr, variant: gl.constexpr):
    """Return the part of a ``Tile`` that warpgroup w computes, and how many blocks, from the right, it skips: 0 or 1.

    Causal: it skips a block that only the rows of the warpgroups below see.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    gl.static_assert(Bc >= (consumers - 1) * rows, "more than one block could be skipped")
    n = tile.blocks
    if variant.mask.right is not None and w < consumers - 1:
        end = gl.minimum(tile.start + (w + 1) * rows, tile.end)
        _, last = blocks(variant, work.asked.mask, end - rows, rows, Bc, work.Nq, work.Nk)
        n = last - tile.first
    part = Tile(tile.start + w * rows, tile.end, tile.b, tile.h, tile.hk, n, tile.first, tile.since, tile.till)
    return part, tile.blocks - n


@gluon.jit
def start_of(tile, j, Bc: gl.constexpr):
    """Return the first key of a tile's j-th block. Blocks are counted from the right."""
    return (tile.first + tile.blocks - 1 - j) * Bc


@gluon.jit
def limit_of(tile, start, work, variant: gl.constexpr):
    """Return the last key that the tile's first row may see, counted from ``start``, the first key of a block."""
    last = work.Nk - 1
    if variant.mask.right is not None:
        last = tile.start + (work.Nk - work.Nq) + end_of(variant.mask.right, work.asked.mask.right)
    return last - start


@gluon.jit
def shown(S_ij, tile, j, work, variant: gl.constexpr, first: gl.constexpr = False):
    """Return the scores of a tile's j-th block after the score function, and -inf where they are hidden.

    first: j is 0. The first block is the one that ends where the keys do, or the window of the tile's last row.
    """
    Bc: gl.constexpr = S_ij.shape[1]
    start = start_of(tile, j, Bc)
    if work.asked.score is not None:
        S_ij = S_ij * work.asked.scale
        S_ij = scores.apply(work.asked.score, S_ij, tile.b, tile.h, tile.start, start, work.Nq, work.Nk)
    if work.asked.intervals is not None:
        if first:
            S_ij = hide_outside(S_ij, work.asked.intervals, tile, start, work.Nq)
        else:
            if (start < tile.since) | (start + Bc - 1 > tile.till):
                S_ij = hide_outside(S_ij, work.asked.intervals, tile, start, work.Nq)
        return S_ij
    limit = limit_of(tile, start, work, variant)
    if first:
        if variant.mask.right is not None or variant.ragged:
            S_ij = hide(S_ij, limit, variant.mask.right is not None)
        if variant.mask.right == LATER and variant.ragged:
            S_ij = hide(S_ij, work.Nk - 1 - start, False)
    elif variant.crossed:
        if limit < Bc - 1:
            S_ij = hide(S_ij, limit, True)
    if variant.mask.left is not None:
        left = tile.start + (work.Nk - work.Nq) - end_of(variant.mask.left, work.asked.mask.left) - start
        if left + S_ij.shape[0] > 1:  # the last row's first key is not the block's
            S_ij = hide_before(S_ij, left)
    return S_ij


@gluon.jit
def ask_for_keys(shared, K, b, hk, start, full, g):
    """Ask for a block of keys."""
    pieces.ask_for(K, [b, hk, start], full, shared.K, shared.full, g)


@gluon.jit
def ask_for_values(shared, V, b, hk, start, full, g, pred=True):
    """Ask for a block of values."""
    pieces.ask_for(V, [b, hk, start], full, shared.V, shared.full, g, pred)


@gluon.jit
def produce(
    shared, Q, K, V, work, variant: gl.constexpr,
    ask_for_keys: gl.constexpr = ask_for_keys, ask_for_values: gl.constexpr = ask_for_values,
):  # fmt: skip
    """Ask for every tile in the order in which it is used, as soon as there is room for it.

    Blocks of keys come from right to left: then a causal mask meets only the first ones.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    of_K: gl.constexpr = pieces.bytes_of(shared.K, shared.full)
    of_V: gl.constexpr = pieces.bytes_of(shared.V, shared.full)
    g = 0
    b_before, hk_before, start_before = 0, 0, 0  # of the block of V that goes with the next block of K
    for t in range(work.count):
        tile = tile_of(work, t, consumers * rows, Bc, variant)
        for j in range(tile.blocks):
            start = start_of(tile, j, Bc)
            full = stage_of(shared.full, g)
            with_v = g > 0
            wait_empty(shared.empty, g)
            mbarrier.expect(full, of_K, pred=g == 0)
            mbarrier.expect(full, of_K + of_V, pred=with_v)
            ask_for_keys(shared, K, tile.b, tile.hk, start, full, g)
            ask_for_values(shared, V, b_before, hk_before, start_before, full, g, with_v)
            if j == 0:
                ask_for_queries(shared, Q, tile, t)
            b_before, hk_before, start_before = tile.b, tile.hk, start
            g += 1
    full = stage_of(shared.full, g)
    wait_empty(shared.empty, g)
    mbarrier.expect(full, of_V)
    ask_for_values(shared, V, b_before, hk_before, start_before, full, g)


@gluon.jit
def ask_for_queries(shared, Q, tile, t):
    """Ask for the rows of the t-th tile, those of each consumer at a barrier of their own."""
    consumers: gl.constexpr = shared.O.shape[0]
    rows: gl.constexpr = shared.Q.shape[3]
    size: gl.constexpr = pieces.bytes_of(shared.Q, shared.q_full)
    for w in gl.static_range(consumers):
        slot = t * consumers + w
        full = stage_of(shared.q_full, slot)
        wait_empty(shared.q_empty, slot)
        mbarrier.expect(full, size)
        pieces.ask_for(Q, [tile.b, tile.h, tile.start + w * rows], full, shared.Q, shared.q_full, slot)


@gluon.jit
def consume(shared, out, work, w: gl.constexpr, variant: gl.constexpr):
    """Compute, in warpgroup w, rows w * ROWS .. (w + 1) * ROWS of each tile.

    P_before are the weights of the block before: their product goes out beside the next block's softmax.
    """
    Bc: gl.constexpr = shared.K.shape[3]
    rows: gl.constexpr = shared.Q.shape[3]
    tile = tile_of(work, 0, shared.O.shape[0] * rows, Bc, variant)
    tile, skipped = part_of(tile, work, shared, w, variant)
    Q_i, P_before, m_i, l_i, g = begin(shared, work, tile, skipped, 0, 0, w, variant)
    for t in range(work.count):
        O_i = pieces.zeros(rows, shared.V, shared.full)  # [Br, d]
        # ``start_of`` needs ``tile.blocks``, too. Otherwise it would keep its first value: Triton 3.6 and 3.7 take a
        # number for dead that a loop only carries to end an inner loop (Triton's pull request 9036).
        for j in range(1, tile.blocks):
            g += 1
            P_before, m_i, l_i, O_i = step(shared, work, tile, Q_i, P_before, m_i, l_i, O_i, g, j, w, variant)
        tile, Q_i, P_before, m_i, l_i, g = boundary(
            shared, out, work, tile, P_before, m_i, l_i, O_i, g + 1, t, w, variant
        )
    tma.store_wait(0)


@gluon.jit
def begin(shared, work, tile, skipped, g, t, w: gl.constexpr, variant: gl.constexpr):
    """Begin the t-th tile at step g with nothing to overlap: its queries, and the weights of its first block.

    Returns the step of that block, too.
    """
    slot = t * shared.O.shape[0] + w
    wait_full(shared.full, g)
    release(shared.empty, g, pred=skipped > 0)
    g += skipped
    wait_full(shared.full, g)
    wait_full(shared.q_full, slot)
    wait_turn(shared, w, 0, variant)
    Q_i = pieces.tile(shared.Q, shared.q_full, slot)  # [Br, d]
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, g))  # [Br, Bc]
    pass_turn(shared, w, variant)
    skip_turn(shared, w, 1, skipped, variant)
    S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
    release(shared.empty, g)
    S_ij = shown(S_ij, tile, 0, work, variant, first=True)
    m_i, l_i, P_ij = first_weights(S_ij, work.scale_log2, work.asked.sinks, tile.h)
    wait_full(shared.full, g + 1)
    return Q_i, operand(P_ij, shared.V.dtype, shared.Q.shape[4]), m_i, l_i, g


@gluon.jit
def step(
    shared, work, tile, Q_i, P_before, m_i, l_i, O_i, g, j, w: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Take step g in a tile: scores of its j-th block, the product of the block before, and the softmax beside it.

    Of three consumers, each takes only the maximum beside its own product: its exponentials run beside the products of
    the other two, which was measured to be faster.
    """
    two: gl.constexpr = shared.O.shape[0] == 2
    wait_turn(shared, w, g, variant)
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, g))  # [Br, Bc]
    O_i = pieces.add_product(P_before, pieces.tile(shared.V, shared.full, g), O_i)  # [Br, d]
    pass_turn(shared, w, variant)
    S_ij = warpgroup_mma_wait(len(O_i), deps=(S_ij,))
    S_ij = shown(S_ij, tile, j, work, variant)
    m_new = new_maximum(m_i, S_ij, work.scale_log2)
    if not two:
        O_i = complete(shared, O_i, g)
    P_ij, alpha = weights(m_i, m_new, S_ij, work.scale_log2)
    l_i = update_sums(l_i, P_ij, alpha)
    P_ij = operand(P_ij, shared.V.dtype, shared.Q.shape[4])
    if two:
        O_i = complete(shared, O_i, g)
    return P_ij, m_new, l_i, pieces.rescale(O_i, alpha)


@gluon.jit
def complete(shared, O_i, g):
    """Wait for the second product of step g, and give the stage back.

    Waiting for the next stage here, not at its use, keeps the assembler from moving what is before this wait past it.
    """
    wait_full(shared.full, g + 1)
    O_i = pieces.finished(O_i)
    release(shared.empty, g)
    return O_i


@gluon.jit
def boundary(
    shared, out, work, tile, P_before, m_i, l_i, O_i, g, t, w: gl.constexpr, variant: gl.constexpr
):  # fmt: skip
    """Take step g, with which the t-th tile ends: its last product goes out with the first one of the next tile.

    Returns what ``begin`` does for the next tile, and that tile. After the last tile this is stale, and never used.
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
    wait_turn(shared, w, g, variant)
    S_ij = pieces.product(Q_i, pieces.tile(shared.K, shared.full, ahead))  # [Br, Bc]
    O_i = pieces.add_product(P_before, pieces.tile(shared.V, shared.full, g), O_i)  # [Br, d]
    pass_turn(shared, w, variant)
    skip_turn(shared, w, ahead, skipped, variant)
    S_ij = warpgroup_mma_wait(len(O_i), deps=(S_ij,))
    S_ij = shown(S_ij, following, 0, work, variant, first=True)
    m_next, l_next, P_next = first_weights(S_ij, work.scale_log2, work.asked.sinks, following.h)
    P_next = operand(P_next, shared.V.dtype, shared.Q.shape[4])
    inverse = finish(m_i, total(l_i, m_i), out, tile, work)
    tma.store_wait(0)  # the O of the tile before has left its buffer
    # This wait is over before it begins; it keeps the exponentials where they are, as in ``step``. The next stage
    # cannot be waited for here: after a skipped block it is the one that is given back below.
    wait_full(shared.full, ahead, pred=more)
    O_i = pieces.finished(O_i)
    release(shared.empty, g)
    release(shared.empty, ahead, pred=skipped > 0)
    store(shared, out, tile, O_i, inverse, w, variant)
    wait_full(shared.full, ahead + 1, pred=more)
    return following, Q_i, P_next, m_next, l_next, ahead


@gluon.jit
def finish(m_i, l_i, out, tile, work):
    """Store lse of a tile's rows, and return 1 / l_i, both [Br]."""
    LN2: gl.constexpr = 0.6931471805599453
    if work.asked.sinks is not None:
        l_i += gl.exp2(sink_of(work.asked.sinks, tile.h) - gl.where(m_i == -float("inf"), 0.0, m_i))
    row = tile.start + gl.arange(0, m_i.shape[0], layout=m_i.type.layout)  # [Br]
    l_safe = gl.where(l_i == 0, 1.0, l_i)  # [Br]      a row that sees no key: O = 0, lse = -inf
    lse_i = gl.where(l_i == 0, -float("inf"), (m_i + gl.log2(l_safe)) * LN2)  # [Br]
    lse = out.lse + (tile.b * work.H + tile.h).to(gl.int64) * work.Nq
    gl.store(lse + row, lse_i, mask=(row >= 0) & (row < tile.end))
    return 1.0 / l_safe


@gluon.jit
def store(shared, out, tile, O_i, inverse, w: gl.constexpr, variant: gl.constexpr):
    """Hand inverse[:, None] * O_i to the copy engine, once the buffer of warpgroup w is free."""
    for p in gl.static_range(len(O_i)):
        O_p = O_i[p] * along_rows(inverse, O_i[p], free=False)[:, None]  # [Br, d]
        if p > 0:
            tma.store_wait(0)
        matrix(shared.O.index(w)).store(O_p.to(shared.O.dtype))
        hand_over(shared, out, tile, w, variant, p * shared.O.shape[4])


@gluon.jit
def hand_over(shared, out, tile, w: gl.constexpr, variant: gl.constexpr, column: gl.constexpr = 0):
    """Hand the buffer of warpgroup w to the copy engine: a tile of O, from a column on."""
    buffer = shared.O.index(w)
    fence_async_shared()
    if variant.mask.right is not None and tile.end <= shared.O.shape[0] * shared.O.shape[3]:
        tma.async_copy_shared_to_global(out.O_first, [tile.b, tile.h, tile.start, column], buffer)
    else:
        tma.async_copy_shared_to_global(out.O, [tile.b, tile.h, tile.start, column], buffer)


@gluon.jit
def wait_turn(shared, w: gl.constexpr, g, variant: gl.constexpr):
    """Wait for one's turn: warpgroups issue products in turn, 0 first, and one multiplies while the next takes exps."""
    if variant.pingpong:
        mbarrier.wait(shared.turn.index(w), (g & 1) ^ 1 if w == 0 else g & 1)


@gluon.jit
def pass_turn(shared, w: gl.constexpr, variant: gl.constexpr):
    """Let the next warpgroup issue its products (ping-pong)."""
    if variant.pingpong:
        mbarrier.arrive(shared.turn.index((w + 1) % shared.O.shape[0]), count=1)


@gluon.jit
def skip_turn(shared, w: gl.constexpr, g, skipped, variant: gl.constexpr):
    """Take and pass the turn of a block that warpgroup w skips (ping-pong)."""
    if variant.pingpong:
        if skipped > 0:
            wait_turn(shared, w, g, variant)
            pass_turn(shared, w, variant)
