"""The roles of warps in the forward kernels, and their shared memory: rings of tiles with barriers (``stages``).

Each kernel has its own consumers; the producer is the same for all. ``forward_float8`` passes functions of its own that
issue the copies of keys and values.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from flashlab.kernels.hopper import pieces
from flashlab.kernels.hopper.stages import stage_of, wait_empty
from flashlab.kernels.hopper.work import start_of, tile_of


class Shared(NamedTuple):
    """Shared memory: rings of tiles in ``pieces``, and the barriers that guard them (``stages``)."""

    Q: gl.shared_memory_descriptor  # [turns * consumers * pieces, 1, 1, ROWS, columns]      turns: see ``Shape``
    K: gl.shared_memory_descriptor  # [stages * pieces, 1, 1, Bc, columns]
    V: gl.shared_memory_descriptor  # [stages * pieces_v, 1, 1, Bc, columns]
    O: gl.shared_memory_descriptor  # [consumers, 1, 1, ROWS, columns]      pieces leave one after the other
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor  # of the stages of K and V
    empty: gl.shared_memory_descriptor


@gluon.jit
def allocate(
    Q, K, V, O, rows: gl.constexpr, Bc: gl.constexpr, shape: gl.constexpr,
    consumers: gl.constexpr, stages: gl.constexpr,
):  # fmt: skip
    """Return shared memory for the tiles of the descriptors, and barriers in their first phase."""
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
    """Return these rings with their barriers, in their first phase. slots: tiles of Q; stages: of K and V."""
    consumers: gl.constexpr = O.shape[0]
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        Q, K, V, O,
        gl.allocate_shared_memory(gl.int64, [slots, 1], layout),
        gl.allocate_shared_memory(gl.int64, [slots, 1], layout),
        gl.allocate_shared_memory(gl.int64, [stages, 1], layout),
        gl.allocate_shared_memory(gl.int64, [stages, 1], layout),
    )  # fmt: skip
    for slot in gl.static_range(slots):
        mbarrier.init(shared.q_full.index(slot), count=1)
        mbarrier.init(shared.q_empty.index(slot), count=1)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.full.index(stage), count=1)
        mbarrier.init(shared.empty.index(stage), count=consumers)
    fence_async_shared()
    return shared


@gluon.jit
def specialize(
    consume: gl.constexpr, ask_for_keys: gl.constexpr, ask_for_values: gl.constexpr,
    shared, Q, K, V, out, work, variant: gl.constexpr, registers: gl.constexpr, producer_registers: gl.constexpr,
):  # fmt: skip
    """Give each warp its role: ``consume``, or ``produce``, which calls the other two functions.

    This is a function because the functions in ``Request`` can be passed as arguments, but not assigned to variables.
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
    """Call a role that is an argument: ``warp_specialize`` cannot."""
    role(shared, out, work, w, variant)


@gluon.jit
def ask_for_keys(shared, K, b, hk, start, full, g):
    """Ask for a block of keys."""
    pieces.ask_for(K, [b, hk, start], full, shared.K, shared.full, g)


@gluon.jit
def ask_for_values(shared, V, b, hk, start, full, g, pred=True):
    """Ask for a block of values."""
    pieces.ask_for(V, [b, hk, start], full, shared.V, shared.full, g, pred)


@gluon.jit
def ask_for_queries(shared, Q, tile, t):
    """Ask for the rows of the t-th tile; those of each consumer arrive at a barrier of their own."""
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
def produce(
    shared, Q, K, V, work, variant: gl.constexpr,
    ask_for_keys: gl.constexpr = ask_for_keys, ask_for_values: gl.constexpr = ask_for_values,
):  # fmt: skip
    """Ask for every tile in the order in which it is used, as soon as there is room for it.

    Blocks of keys come from right to left, so that a causal mask cuts only the first ones.
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
