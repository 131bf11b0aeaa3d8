"""Shared memory of the backward kernel: rings of tiles, and the barriers that guard them (``stages``)."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

ROWS = gl.constexpr(64)  # keys of a warpgroup: what one product takes
CONSUMERS = gl.constexpr(2)
BUFFERS = gl.constexpr(4)  # of dS^T: one is written, one read, one may still be read by a slower warpgroup; and at the
# end of a turn, dK_j and dV_j leave through them, which at 128 columns takes all


class Shared(NamedTuple):
    """Shared memory: rings of tiles, and the barriers that guard them (``stages``)."""

    K: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    V: gl.shared_memory_descriptor  # [CONSUMERS, 1, 1, ROWS, width]
    Q: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    dO: gl.shared_memory_descriptor  # [stages, 1, 1, Br, width]
    lse: gl.shared_memory_descriptor  # [stages, Br]
    delta: gl.shared_memory_descriptor  # [stages, Br]
    dSt: gl.shared_memory_descriptor  # [CONSUMERS * BUFFERS, ROWS, Br]      those of a consumer are neighbours
    turns: gl.shared_memory_descriptor  # [2, 1]      of this program, the last two
    k_full: gl.shared_memory_descriptor  # rings of one stage, used once per turn
    v_full: gl.shared_memory_descriptor  # and, with a lag: the sums of dQ may be added to
    q_full: gl.shared_memory_descriptor  # per stage: the bytes of Q_i and lse_i have arrived
    do_full: gl.shared_memory_descriptor  # and: those of dO_i and delta_i
    ds_full: gl.shared_memory_descriptor  # per buffer: both consumers have written their part of dS^T, and so are done
    # with the step before
    k_empty: gl.shared_memory_descriptor  # once per turn: both consumers are done with K, V and dS^T
    added: gl.shared_memory_descriptor  # and: they have added to all sums


@gluon.jit
def allocate(Q, dO, K, V, lse_log2, delta, lag, Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr):
    """Return shared memory for what the descriptors bring, and barriers in their first phase."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    dSt_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, Br], Q.dtype)
    shared = Shared(
        gl.allocate_shared_memory(K.dtype, [CONSUMERS, 1, 1, ROWS, width], K.layout),
        gl.allocate_shared_memory(V.dtype, [CONSUMERS, 1, 1, ROWS, width], V.layout),
        gl.allocate_shared_memory(Q.dtype, [stages, 1, 1, Br, width], Q.layout),
        gl.allocate_shared_memory(dO.dtype, [stages, 1, 1, Br, width], dO.layout),
        gl.allocate_shared_memory(gl.float32, [stages, Br], lse_log2.layout),
        gl.allocate_shared_memory(gl.float32, [stages, Br], delta.layout),
        gl.allocate_shared_memory(Q.dtype, [CONSUMERS * BUFFERS, ROWS, Br], dSt_layout),
        gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
    )
    mbarrier.init(shared.k_full.index(0), count=1)
    mbarrier.init(shared.v_full.index(0), count=1 if lag is None else 2)
    mbarrier.init(shared.k_empty.index(0), count=CONSUMERS)
    mbarrier.init(shared.added.index(0), count=CONSUMERS)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.q_full.index(stage), count=1)
        mbarrier.init(shared.do_full.index(stage), count=1)
    for buffer in gl.static_range(BUFFERS):
        mbarrier.init(shared.ds_full.index(buffer), count=CONSUMERS)
    fence_async_shared()
    return shared
