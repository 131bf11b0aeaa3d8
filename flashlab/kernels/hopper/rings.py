"""Shared memory of the forward kernels: rings of tiles, and the barriers that guard them (``stages``)."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier


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
