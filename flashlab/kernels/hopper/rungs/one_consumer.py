"""Rung 1: a producer copies tiles of keys and values; one consumer, eight warps, computes with them.

A self-contained forward pass for compute capability 9.0. A program computes 128 rows of O and ends. Copies run ahead;
the consumer's products and softmax run one after the other.
"""

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

Br, Bc, STAGES = gl.constexpr(128), gl.constexpr(128), gl.constexpr(2)
WARPS = gl.constexpr(8)  # of the consumer
LN_2 = gl.constexpr(0.6931471805599453)
DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
NEEDS = "q [B, H, Nq, d], k, v [B, Hk, Nk, d], all float16 or bfloat16, no size 0, d 64 or 128, Hk a divisor of H"


class Ring(NamedTuple):
    """Tiles in shared memory that are filled and emptied in turn: step g uses number g % stages."""

    tiles: gl.shared_memory_descriptor  # [stages, 1, 1, rows, d]
    full: gl.shared_memory_descriptor  # [stages, 1]      completes a phase when a tile has arrived
    empty: gl.shared_memory_descriptor  # [stages, 1]     completes a phase when all readers have released it


class Rings(NamedTuple):
    """The rings of a program."""

    Q: Ring
    K: Ring
    V: Ring


def on_gpu(kernel, grid, tensors, numbers, warps):
    """Start a kernel as Triton does."""
    kernel[grid](*tensors, *numbers, num_warps=warps)


def attend(q, k, v, causal=False, launch=on_gpu):
    """Compute softmax(Q K^T / sqrt(d)) V and lse.

    Args:
        q: [B, H, Nq, d], k, v: [B, Hk, Nk, d], contiguous, float16 or bfloat16, d 64 or 128. causal: query i sees the
            keys j <= i + Nk - Nq. launch: takes kernel, grid, tensors, numbers, warps.

    Returns:
        O [B, H, Nq, d] and lse [B, H, Nq], float32; 0 and -inf where a query sees no key.
    """
    (B, H, Nq, d), (Hk, Nk) = q.shape, k.shape[1:3]
    alike = q.dtype == k.dtype == v.dtype in DTYPES and k.shape == v.shape == (B, Hk, Nk, d)
    if not alike or d not in (64, 128) or q.numel() * k.numel() == 0 or H % Hk:
        raise ValueError(f"expected {NEEDS}")
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    tiles = []
    for x, rows in (q, Br), (k, Bc), (v, Bc), (o, Br):
        block = [1, 1, rows.value, d]
        layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[q.dtype])
        tiles.append(TensorDescriptor.from_tensor(x, block, layout))
    factor = d**-0.5 / LN_2.value  # scores in units of log2
    grid = -(-Nq // Br.value), H, B
    launch(attention_forward, grid, (*tiles, lse), (H // Hk, Nq, Nk, factor, causal), warps=WARPS.value)
    return o, lse


@gluon.jit(do_not_specialize=["group", "Nq", "Nk"])
def attention_forward(Q, K, V, O, lse, group, Nq, Nk, factor, causal: gl.constexpr):
    """Compute one tile of O: make rings and barriers, and give each warp its role."""
    rings = Rings(make_ring(Q, 1, 1), make_ring(K, STAGES, 1), make_ring(V, STAGES, 1))
    fence_async_shared()  # now the copy engine sees the barriers
    start = (gl.num_programs(0) - 1 - gl.program_id(0)) * Br  # under a causal mask the last tile is the longest
    end = gl.minimum(start + Br + Nk - Nq, Nk) if causal else Nk
    blocks = gl.maximum(gl.cdiv(end, Bc), 1)  # at least one, which may be hidden as a whole
    gl.warp_specialize(
        [
            (consume, (rings, O, lse, start, blocks, Nq, Nk, factor, causal)),
            (produce, (rings, Q, K, V, start, blocks, group)),
        ],
        [1],
        [24],
    )


@gluon.jit
def make_ring(X, stages: gl.constexpr, readers: gl.constexpr):
    """Return a ring for the tiles of a descriptor."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    ring = Ring(
        gl.allocate_shared_memory(X.dtype, [stages] + X.block_type.shape, X.layout),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
    )
    for stage in gl.static_range(stages):
        mbarrier.init(ring.full.index(stage), count=1)
        mbarrier.init(ring.empty.index(stage), count=readers)
    return ring


@gluon.jit
def fetch(ring, X, place, g):
    """Ask for the tile of step g once its stage is free. At first all stages are, and the wait ends at once."""
    stages: gl.constexpr = ring.full.shape[0]
    full = ring.full.index(g % stages)
    mbarrier.wait(ring.empty.index(g % stages), (g // stages & 1) ^ 1)
    mbarrier.expect(full, X.block_type.nbytes)
    tma.async_copy_global_to_shared(X, place, full, ring.tiles.index(g % stages))


@gluon.jit
def arrived(ring, g):
    """Wait for the tile of step g, and return it: [rows, d]."""
    stages: gl.constexpr = ring.full.shape[0]
    mbarrier.wait(ring.full.index(g % stages), g // stages & 1)
    return ring.tiles.index(g % stages).reshape([ring.tiles.shape[3], ring.tiles.shape[4]])


@gluon.jit
def release(ring, g):
    """Give the stage of step g back."""
    mbarrier.arrive(ring.empty.index(g % ring.empty.shape[0]), count=1)


@gluon.jit
def produce(rings, Q, K, V, start, blocks, group):
    """Run the producer, one warp: ask for Q, then for all blocks of K and V."""
    h, b = gl.program_id(1), gl.program_id(2)
    fetch(rings.Q, Q, [b, h, start, 0], 0)
    for j in range(blocks):
        fetch(rings.K, K, [b, h // group, j * Bc, 0], j)
        fetch(rings.V, V, [b, h // group, j * Bc, 0], j)


@gluon.jit
def consume(rings, O, lse, start, blocks, Nq, Nk, factor, causal: gl.constexpr):
    """Run the consumer: all of the tile's blocks, one after the other, then O and lse."""
    d: gl.constexpr = O.block_type.shape[3]
    of_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, Bc, 16])
    of_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, d, 16])
    m_i = gl.full([Br], -float("inf"), gl.float32, gl.SliceLayout(1, of_S))  # [Br]
    l_i = gl.zeros([Br], gl.float32, gl.SliceLayout(1, of_S))  # [Br]
    O_i = gl.zeros([Br, d], gl.float32, of_O)  # [Br, d]
    Q_i = arrived(rings.Q, 0)  # [Br, d]
    for j in range(blocks):
        m_i, l_i, O_i = step(rings, Q_i, m_i, l_i, O_i, j, start, Nq, Nk, factor, causal)
    store(rings.Q, O, lse, m_i, l_i, O_i, start, Nq)


@gluon.jit
def step(rings, Q_i, m_i, l_i, O_i, j, row, Nq, Nk, factor, causal: gl.constexpr):
    """Take in block j, and give its stages back. row: the first row of the tile."""
    K_j = arrived(rings.K, j)  # [Bc, d]
    S_ij = scores(Q_i, K_j)  # [Br, Bc]
    release(rings.K, j)
    S_ij = hide(S_ij, row, j * Bc, Nq, Nk, causal)
    m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, arrived(rings.V, j), factor)
    release(rings.V, j)
    return m_i, l_i, O_i


@gluon.jit
def scores(Q_i, K_j):
    """Return Q_i K_j^T, [Br, Bc], once the product is complete."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, Bc, 16])
    zeros = gl.zeros([Br, Bc], gl.float32, layout)  # [Br, Bc]
    return warpgroup_mma(Q_i, K_j.permute((1, 0)), zeros, use_acc=False)


@gluon.jit
def hide(S_ij, row, key, Nq, Nk, causal: gl.constexpr):
    """Return S_ij with -inf where a query does not see the key. row, key: the first ones of the block."""
    last = row + Nk - Nq if causal else Nk - 1  # the last key that the first row sees
    if last < key + Bc - 1:
        rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
        keys = key + gl.arange(0, Bc, layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
        limits = last + rows if causal else last + 0 * rows  # [Br]
        S_ij = gl.where(keys[None, :] <= limits[:, None], S_ij, -float("inf"))
    return S_ij


@gluon.jit
def update(m_i, l_i, O_i, S_ij, V_j, factor):
    """Take in one block of scores and values: the six lines of the loop over tiles, in units of log2."""
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * factor)  # [Br]
    m_safe = gl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2(m_i - m_safe)  # [Br]
    P_ij = gl.exp2(S_ij * factor - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + gl.sum(P_ij, 1)  # [Br]
    left: gl.constexpr = gl.DotOperandLayout(0, O_i.type.layout, 2)  # P stays in its registers, narrowed
    P_ij = gl.convert_layout(P_ij.to(V_j.dtype), left, assert_trivial=True)
    alpha = gl.convert_layout(alpha, gl.SliceLayout(1, O_i.type.layout), assert_trivial=True)
    O_i = warpgroup_mma(P_ij, V_j, alpha[:, None] * O_i)  # [Br, d]
    return m_new, l_i, O_i


@gluon.jit
def store(ring, O, lse, m_i, l_i, O_i, start, Nq):
    """Store O and lse. O leaves through the buffer of Q, which is not needed any more."""
    h, b = gl.program_id(1), gl.program_id(2)
    l_safe = gl.where(l_i == 0, 1, l_i)  # [Br]      a row that sees no key
    rows = start + gl.arange(0, Br, layout=m_i.type.layout)  # [Br]
    at = (b * gl.num_programs(1) + h).to(gl.int64) * Nq + rows  # [Br]
    gl.store(lse + at, m_i * LN_2 + gl.log(l_safe), mask=rows < Nq)
    O_i = O_i / gl.convert_layout(l_safe, gl.SliceLayout(1, O_i.type.layout))[:, None]  # [Br, d]
    ring.tiles.index(0).reshape(O_i.shape).store(O_i.to(O.dtype))
    fence_async_shared()  # now the copy engine sees O
    tma.async_copy_shared_to_global(O, [b, h, start, 0], ring.tiles.index(0))  # rows past Nq are not written
    tma.store_wait(0)
