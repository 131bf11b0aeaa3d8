"""Rung 3: as many programs as multiprocessors, each with a list of tiles; the producer runs ahead into the next tile.

A self-contained forward pass for compute capability 9.0, with the consumers of rung 2, but without their turns. Steps
are counted over all tiles of a program, so the rings go on from tile to tile. O leaves while the next tile begins.
"""

import itertools
from typing import NamedTuple

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

CONSUMERS, ROWS, Bc, STAGES = gl.constexpr(2), gl.constexpr(64), gl.constexpr(128), gl.constexpr(2)
Br = gl.constexpr(128)  # CONSUMERS * ROWS
LN_2 = gl.constexpr(0.6931471805599453)
DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
NEEDS = "q [B, H, Nq, d], k, v [B, Hk, Nk, d], all float16 or bfloat16, no size 0, d 64 or 128, Hk a divisor of H"


class Ring(NamedTuple):
    """Tiles in shared memory that are filled and emptied in turn: step g uses number g % stages."""

    tiles: gl.shared_memory_descriptor  # [stages, 1, 1, rows, d]
    full: gl.shared_memory_descriptor  # [stages, 1]      completes a phase when a tile has arrived
    empty: gl.shared_memory_descriptor  # [stages, 1]     completes a phase when all readers have released it


class Work(NamedTuple):
    """The tiles of a program, and the sizes of the problem."""

    table: gl.tensor  # tile n is tile n % Tr of head n // Tr, heads counted over the batch
    first: gl.tensor  # this program's first line in the table
    count: gl.tensor  # how many lines it has
    Tr: gl.tensor  # tiles of a head
    H: gl.tensor
    group: gl.tensor  # query heads per key head
    Nq: gl.tensor
    Nk: gl.tensor


class Tile(NamedTuple):
    """A tile of Q."""

    b: gl.tensor
    h: gl.tensor
    start: gl.tensor  # its first row
    blocks: gl.tensor  # of keys that it meets


class Rings(NamedTuple):
    """The rings of a program."""

    Q: Ring
    K: Ring
    V: Ring


def on_gpu(kernel, grid, tensors, numbers, warps):
    """Start a kernel as Triton does."""
    kernel[grid](*tensors, *numbers, num_warps=warps)


def dealt(tiles, programs):
    """Deal the tiles out like cards: return a list for each program."""
    return [list(range(program, tiles, programs)) for program in range(programs)]


def table_of(lists, device):
    """Return lists of tiles as the kernel reads them: all tiles in a row, and where each program's part begins."""
    starts = [0, *itertools.accumulate(map(len, lists))]
    return [torch.tensor(x, dtype=torch.int32, device=device) for x in (sum(lists, []), starts)]


def attend(q, k, v, causal=False, table=None, launch=on_gpu):
    """Compute softmax(Q K^T / sqrt(d)) V and lse.

    Args:
        q: [B, H, Nq, d], k, v: [B, Hk, Nk, d], contiguous, float16 or bfloat16, d 64 or 128. causal: query i sees the
            keys j <= i + Nk - Nq. table: the tiles of each program (``table_of``), where tile n is the n % Tr-th of
            head n // Tr; by default all tiles, dealt to as many programs as there are multiprocessors. launch: takes
            kernel, grid, tensors, numbers, warps.

    Returns:
        O [B, H, Nq, d] and lse [B, H, Nq], float32; 0 and -inf where a query sees no key.
    """
    (B, H, Nq, d), (Hk, Nk) = q.shape, k.shape[1:3]
    alike = q.dtype == k.dtype == v.dtype in DTYPES and k.shape == v.shape == (B, Hk, Nk, d)
    if not alike or d not in (64, 128) or q.numel() * k.numel() == 0 or H % Hk:
        raise ValueError(f"expected {NEEDS}")
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    tiles = []
    for x, rows in (q, ROWS), (k, Bc), (v, Bc), (o, ROWS):
        block = [1, 1, rows.value, d]
        layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[q.dtype])
        tiles.append(TensorDescriptor.from_tensor(x, block, layout))
    factor = d**-0.5 / LN_2.value  # scores in units of log2
    Tr = -(-Nq // Br.value)
    if table is None:
        programs = torch.cuda.get_device_properties(q.device).multi_processor_count
        table = table_of(dealt(B * H * Tr, programs), q.device)
    sizes = Tr, H, H // Hk, Nq, Nk
    grid = len(table[1]) - 1, 1, 1
    launch(attention_forward, grid, (*tiles, lse, *table), (*sizes, factor, causal), warps=4)
    return o, lse


@gluon.jit(do_not_specialize=["Tr", "H", "group", "Nq", "Nk"])
def attention_forward(Q, K, V, O, lse, table, starts, Tr, H, group, Nq, Nk, factor, causal: gl.constexpr):
    """Compute all tiles of a program's list: make rings and barriers, and give each warp its role."""
    rings = Rings(make_ring(Q, CONSUMERS, 1), make_ring(K, STAGES, CONSUMERS), make_ring(V, STAGES, CONSUMERS))
    buffers = gl.allocate_shared_memory(O.dtype, [CONSUMERS] + O.block_type.shape, O.layout)  # of O
    fence_async_shared()  # now the copy engine sees the barriers
    first = gl.load(starts + gl.program_id(0))
    count = gl.load(starts + gl.program_id(0) + 1) - first
    work = Work(table, first, count, Tr, H, group, Nq, Nk)
    gl.warp_specialize(
        [
            (consume, (rings, buffers, O, lse, work, factor, causal, 0)),
            (consume, (rings, buffers, O, lse, work, factor, causal, 1)),
            (produce, (rings, Q, K, V, work, causal)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def tile_of(work, t, causal: gl.constexpr):
    """Return the t-th tile of the program."""
    n = gl.load(work.table + work.first + t)
    start = n % work.Tr * Br
    end = gl.minimum(start + Br + work.Nk - work.Nq, work.Nk) if causal else work.Nk
    blocks = gl.maximum(gl.cdiv(end, Bc), 1)  # at least one, which may be hidden as a whole
    return Tile(n // work.Tr // work.H, n // work.Tr % work.H, start, blocks)


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
def produce(rings, Q, K, V, work, causal: gl.constexpr):
    """Run the producer, one warp: for each tile, ask for the rows of each consumer, then for all blocks of K and V."""
    g = 0
    for t in range(work.count):
        tile = tile_of(work, t, causal)
        for w in gl.static_range(CONSUMERS):
            fetch(rings.Q, Q, [tile.b, tile.h, tile.start + w * ROWS, 0], t * CONSUMERS + w)
        for j in range(tile.blocks):
            fetch(rings.K, K, [tile.b, tile.h // work.group, j * Bc, 0], g)
            fetch(rings.V, V, [tile.b, tile.h // work.group, j * Bc, 0], g)
            g += 1


@gluon.jit
def consume(rings, buffers, O, lse, work, factor, causal: gl.constexpr, w: gl.constexpr):
    """Run consumer w: for each tile, all blocks of its 64 rows, one after the other, then O and lse."""
    d: gl.constexpr = O.block_type.shape[3]
    of_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, Bc, 16])
    of_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, d, 16])
    g = 0
    for t in range(work.count):
        tile = tile_of(work, t, causal)
        row = tile.start + w * ROWS
        m_i = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, of_S))  # [Br]
        l_i = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, of_S))  # [Br]
        O_i = gl.zeros([ROWS, d], gl.float32, of_O)  # [Br, d]
        Q_i = arrived(rings.Q, t * CONSUMERS + w)  # [Br, d]
        K_j = arrived(rings.K, g)  # [Bc, d]
        S_ij = issue_scores(Q_i, K_j)  # [Br, Bc]
        S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
        release(rings.K, g)
        S_ij = hide(S_ij, row, 0, work.Nq, work.Nk, causal)
        m_i, l_i, P_before, _ = weights(m_i, l_i, S_ij, factor, O.dtype, d)
        for j in range(1, tile.blocks):
            g += 1
            m_i, l_i, O_i, P_before = step(rings, Q_i, m_i, l_i, O_i, P_before, g, row, j * Bc, work, factor, causal)
        release(rings.Q, t * CONSUMERS + w)  # the next rows may come
        O_i = warpgroup_mma(P_before, arrived(rings.V, g), O_i)  # [Br, d]
        release(rings.V, g)
        g += 1
        store(buffers.index(w), O, lse, m_i, l_i, O_i, tile, row, work)
    tma.store_wait(0)


@gluon.jit
def step(rings, Q_i, m_i, l_i, O_i, P_before, g, row, key, work, factor, causal: gl.constexpr):
    """Take in the scores of step g and the values of the step before, and give their stages back."""
    K_j, V_before = arrived(rings.K, g), arrived(rings.V, g - 1)  # [Bc, d] each
    S_ij = issue_scores(Q_i, K_j)  # [Br, Bc]
    O_i = warpgroup_mma(P_before, V_before, O_i, is_async=True)  # [Br, d]
    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))  # the other product may still be on its way
    release(rings.K, g)
    S_ij = hide(S_ij, row, key, work.Nq, work.Nk, causal)
    m_i, l_i, P_ij, alpha = weights(m_i, l_i, S_ij, factor, V_before.dtype, V_before.shape[1])
    arrived(rings.V, g)  # early, since the assembler moves no exponential past this wait: they stay beside the product
    O_i = warpgroup_mma_wait(0, deps=(O_i,))
    release(rings.V, g - 1)
    return m_i, l_i, alpha[:, None] * O_i, P_ij


@gluon.jit
def issue_scores(Q_i, K_j):
    """Issue Q_i K_j^T, [Br, Bc]; ``warpgroup_mma_wait`` waits for it."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, Bc, 16])
    zeros = gl.zeros([ROWS, Bc], gl.float32, layout)  # [Br, Bc]
    return warpgroup_mma(Q_i, K_j.permute((1, 0)), zeros, use_acc=False, is_async=True)


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
def weights(m_i, l_i, S_ij, factor, dtype: gl.constexpr, d: gl.constexpr):
    """Take in one block of scores: five of the six lines, in units of log2. The product with V is a step later."""
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * factor)  # [Br]
    m_safe = gl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2(m_i - m_safe)  # [Br]
    P_ij = gl.exp2(S_ij * factor - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + gl.sum(P_ij, 1)  # [Br]
    of_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, d, 16])
    P_ij = gl.convert_layout(P_ij.to(dtype), gl.DotOperandLayout(0, of_O, 2), assert_trivial=True)  # in its registers
    alpha = gl.convert_layout(alpha, gl.SliceLayout(1, of_O), assert_trivial=True)
    return m_new, l_i, P_ij, alpha


@gluon.jit
def store(buffer, O, lse, m_i, l_i, O_i, tile, row, work):
    """Store lse, and hand O to the copy engine once its buffer is free."""
    l_safe = gl.where(l_i == 0, 1, l_i)  # [Br]      a row that sees no key
    rows = row + gl.arange(0, ROWS, layout=m_i.type.layout)  # [Br]
    at = (tile.b * work.H + tile.h).to(gl.int64) * work.Nq + rows  # [Br]
    gl.store(lse + at, m_i * LN_2 + gl.log(l_safe), mask=rows < work.Nq)
    O_i = O_i / gl.convert_layout(l_safe, gl.SliceLayout(1, O_i.type.layout))[:, None]  # [Br, d]
    tma.store_wait(0)  # the O of the tile before has left
    buffer.reshape(O_i.shape).store(O_i.to(O.dtype))
    fence_async_shared()  # now the copy engine sees O
    tma.async_copy_shared_to_global(O, [tile.b, tile.h, row, 0], buffer)  # rows past Nq are not written
