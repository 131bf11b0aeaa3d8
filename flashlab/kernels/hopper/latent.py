"""Latent attention of one new token per text on compute capability 9.0: a part of the past, for 64 heads.

Keys are 512 + 64 columns wide, and the first 512 are the values, too. Sums O_i [64, 512] are more than the registers of
four warps, so two warpgroups take half of the columns each. Both compute all scores: a warpgroup with half of them
would need the other half at every block. A producer loads the next block of keys while they compute.

The results are splits, as ``decode.split`` leaves them.
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

from flashlab.kernels.hopper.arguments import descriptor
from flashlab.kernels.hopper.products import accumulator, along_rows, operand
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_empty, wait_full
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.tiles import count

Br, Bc = 64, 64  # rows of one product, and keys per block
STAGES = 2
LN2 = gl.constexpr(0.6931471805599453)


def run(q, cache, O_s, lse_s, splits, scale_log2, launched=None):
    """Fill O_s [S, B, H, 512] and lse_s [S, B, H] with the parts of a step, q [B, H, 1, 576].

    splits: S, and the keys per part, or 0 to divide each text's own keys by S. Pages have a multiple of Bc keys.
    launched: as for ``launch.repeat``.
    """

    def first():
        (B, _, H, _), (S, size), page = rows_of_one_head.shape, splits, K.shape[2]
        described = [descriptor(x, rows, width) for x, rows in ((rows_of_one_head, Br), (K, Bc)) for width in (256, 64)]
        return launch(
            attention_latent,
            (B * count(H, Br), S, 1),
            (*described, O_s, lse_s, table, lengths),
            (B, H, cache.most, 0 if table is None else table.stride(0), S, size, scale_log2, page, STAGES),
            warps=4,
        )

    rows_of_one_head, (K, _, table, lengths, _) = q.transpose(1, 2), cache  # [B, 1, H, 576]
    tensors = rows_of_one_head, rows_of_one_head, K, K, O_s, lse_s, table, lengths
    repeat({} if launched is None else launched, "latent", tensors, first)


class Shared(NamedTuple):
    """Shared memory: the queries, a ring of blocks of keys, each in three pieces, and barriers (``stages``)."""

    Q: gl.shared_memory_descriptor  # [2, 1, 1, Br, 256]
    Q_rope: gl.shared_memory_descriptor  # [1, 1, 1, Br, 64]
    C: gl.shared_memory_descriptor  # [2 * stages, 1, 1, Bc, 256]      stage g is pieces 2 g and 2 g + 1
    R: gl.shared_memory_descriptor  # [stages, 1, 1, Bc, 64]
    q_full: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class Part(NamedTuple):
    """What a program computes: blocks of keys of one text, for one tile of heads."""

    b: gl.tensor
    i: gl.tensor  # tile of heads
    s: gl.tensor
    begin: gl.tensor  # the first key
    end: gl.tensor
    wrong: gl.tensor  # NaN for a length that the cache cannot have, otherwise 0


class Output(NamedTuple):
    """The destinations of the splits, [S, B, H, 512] and [S, B, H]."""

    O: gl.tensor
    lse: gl.tensor
    B: gl.tensor
    H: gl.tensor


@gluon.jit(do_not_specialize=["B", "most", "T", "S", "size"])
def attention_latent(
    Q, Q_rope, C, R,  # descriptors: [B, 1, H, 256 of 576], [.., 64 of 576], [pages, 1, page, 256 of 576], [.., 64]
    O, lse, table, lengths,  # as for ``attention_split``
    B, H, most, T, S, size, scale_log2,
    page: gl.constexpr, stages: gl.constexpr,
):  # fmt: skip
    """Compute part s of the keys for one tile of heads: program (x, s)."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    Br: gl.constexpr = Q.block_type.shape[2]
    Bc: gl.constexpr = C.block_type.shape[2]
    tiles = (H + Br - 1) // Br
    x, s = gl.program_id(0), gl.program_id(1)
    b = x // tiles
    Nk = most
    if lengths is not None:
        Nk = gl.load(lengths + b)
    there = gl.minimum(Nk, most)
    even = gl.maximum(((there + S - 1) // S + Bc - 1) // Bc, 1) * Bc
    size = gl.where(size == 0, even, size)
    begin = s * size
    end = gl.minimum(begin + size, there)
    shared = Shared(
        gl.allocate_shared_memory(Q.dtype, [2, 1, 1, Br, 256], Q.layout),
        gl.allocate_shared_memory(Q.dtype, [1, 1, 1, Br, 64], Q_rope.layout),
        gl.allocate_shared_memory(C.dtype, [2 * stages, 1, 1, Bc, 256], C.layout),
        gl.allocate_shared_memory(C.dtype, [stages, 1, 1, Bc, 64], R.layout),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [stages, 1], barriers),
    )
    mbarrier.init(shared.q_full.index(0), count=1)
    for stage in gl.static_range(stages):
        mbarrier.init(shared.full.index(stage), count=1)
        mbarrier.init(shared.empty.index(stage), count=2)
    fence_async_shared()
    wrong = gl.where((Nk < 0) | (Nk > most), float("nan"), 0.0)
    part = Part(b, x % tiles, s, begin, end, wrong)
    out = Output(O, lse, B, H)
    gl.warp_specialize(
        [
            (consume, (shared, out, part, scale_log2, 0)),
            (consume, (shared, out, part, scale_log2, 1)),
            (produce, (shared, Q, Q_rope, C, R, part, table, T, page)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def produce(shared, Q, Q_rope, C, R, part, table, T, page: gl.constexpr):
    """Ask for the queries, and for every block of keys as soon as there is room for it."""
    Br: gl.constexpr = Q.block_type.shape[2]
    Bc: gl.constexpr = C.block_type.shape[2]
    q_full = shared.q_full.index(0)
    mbarrier.expect(q_full, 2 * Q.block_type.nbytes + Q_rope.block_type.nbytes)
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(Q, [part.b, 0, part.i * Br, 256 * half], q_full, shared.Q.index(half))
    tma.async_copy_global_to_shared(Q_rope, [part.b, 0, part.i * Br, 512], q_full, shared.Q_rope.index(0))
    g = 0
    for start in range(part.begin, part.end, Bc):
        number, row = part.b, start
        if table is not None:
            number, row = gl.load(table + part.b * T + start // page), start % page
        wait_empty(shared.empty, g)
        full = stage_of(shared.full, g)
        mbarrier.expect(full, 2 * C.block_type.nbytes + R.block_type.nbytes)
        tma.async_copy_global_to_shared(R, [number, 0, row, 512], full, stage_of(shared.R, g))
        for half in gl.static_range(2):
            tma.async_copy_global_to_shared(C, [number, 0, row, 256 * half], full, stage_of(shared.C, 2 * g + half))
        g += 1


@gluon.jit
def consume(shared, out, part, scale_log2, w: gl.constexpr):
    """Compute columns 256 w .. 256 (w + 1) of the sums, and with w = 0 the lse."""
    Br: gl.constexpr = shared.Q.shape[3]
    Bc: gl.constexpr = shared.C.shape[3]
    dtype: gl.constexpr = shared.C.dtype
    row: gl.constexpr = gl.SliceLayout(1, accumulator(Bc))
    mbarrier.wait(shared.q_full.index(0), 0)
    m_i = gl.full([Br], -float("inf"), gl.float32, row)  # [Br]
    l_i = gl.zeros([Br], gl.float32, row)  # [Br]
    O_i = gl.zeros([Br, 256], gl.float32, accumulator(256))  # [Br, 256]
    g = 0
    for start in range(part.begin, part.end, Bc):
        wait_full(shared.full, g)
        V_j = matrix(stage_of(shared.C, 2 * g + w))  # [Bc, 256]
        S_ij = gl.zeros([Br, Bc], gl.float32, accumulator(Bc))  # [Br, Bc]
        R_j = matrix(stage_of(shared.R, g))  # [Bc, 64]
        S_ij = warpgroup_mma(matrix(shared.Q_rope.index(0)), R_j.permute((1, 0)), S_ij, use_acc=False, is_async=True)
        for half in gl.static_range(2):
            C_j = matrix(stage_of(shared.C, 2 * g + half))  # [Bc, 256]
            S_ij = warpgroup_mma(matrix(shared.Q.index(half)), C_j.permute((1, 0)), S_ij, is_async=True)
        S_ij = warpgroup_mma_wait(0, deps=(S_ij,))
        if start + Bc > part.end:  # keys past the end: no weight, and a value that is a number
            keys = start + gl.arange(0, Bc, gl.SliceLayout(0, accumulator(Bc)))  # [Bc]
            S_ij = gl.where((keys < part.end)[None, :], S_ij, -float("inf"))
            clear(V_j, part.end - start)
        m_new = gl.maximum(m_i, gl.max(S_ij, 1) * scale_log2)  # [Br]
        m_safe = gl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
        alpha = gl.exp2(m_i - m_safe)  # [Br]
        P_ij = gl.exp2(S_ij * scale_log2 - m_safe[:, None])  # [Br, Bc]
        l_i = alpha * l_i + gl.sum(P_ij, 1)  # [Br]
        O_i = along_rows(alpha, O_i)[:, None] * O_i
        O_i = warpgroup_mma(operand(P_ij, dtype, 256), V_j, O_i, is_async=True)  # [Br, 256]
        O_i = warpgroup_mma_wait(0, deps=(O_i,))
        release(shared.empty, g)
        m_i = m_new
        g += 1
    l_safe = gl.where(l_i == 0, 1, l_i)  # [Br]      a text without keys: O = 0, lse = -inf
    O_i = O_i * along_rows(1 / l_safe, O_i)[:, None] + part.wrong
    at = (part.s.to(gl.int64) * out.B + part.b) * out.H
    h = part.i * Br + gl.arange(0, Br, gl.SliceLayout(1, accumulator(256)))  # [Br]
    cols = 256 * w + gl.arange(0, 256, gl.SliceLayout(0, accumulator(256)))  # [256]
    to = out.O + (at + h)[:, None] * 512 + cols[None, :]  # [Br, 256]
    gl.store(to, O_i.to(out.O.dtype.element_ty), mask=(h < out.H)[:, None])
    if w == 0:
        h = part.i * Br + gl.arange(0, Br, row)  # [Br]
        lse = gl.where(l_i == 0, -float("inf"), (m_i + gl.log2(l_safe)) * LN2) + part.wrong  # [Br]
        gl.store(out.lse + at + h, lse, mask=h < out.H)


@gluon.jit
def clear(V_j, n):
    """Write zeros over the rows of V_j [Bc, 256] in shared memory from the n-th on.

    The other warpgroup may read them as keys at the same time, without a barrier. That does no harm: rows before the
    n-th do not change, and the scores of the other rows are hidden.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    for k in gl.static_range(V_j.shape[0] // 16):  # few at a time: the registers hold O_i
        some = V_j.slice(16 * k, 16)  # [16, 256]
        rows = 16 * k + gl.arange(0, 16, gl.SliceLayout(1, layout))  # [16]
        some.store(gl.where((rows < n)[:, None], some.load(layout), 0.0).to(V_j.dtype))
    fence_async_shared()
