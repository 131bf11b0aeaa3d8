"""The forward pass: the tile loop, with queries outside, as a Triton kernel.

One program computes one tile of O. It differs from ``reference.tiling.fa2_forward`` in loads, stores, masks, the one
narrowing of P_ij, and in powers of two: the hardware has 2^x, not e^x.

Source: FlashAttention-2, Algorithm 1.
"""

import math

import triton
import triton.language as tl

from flashlab.kernels import masks, tiles
from flashlab.kernels.launch import launch

LN2 = tl.constexpr(math.log(2))


def run(o, lse, q, k, v, problem, c):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] for a ``Problem``, with the tiles of the ``Configuration`` c."""
    B, H, _, Nq, Nk, d, dv = problem[:7]
    tensors, strides = tiles.arguments((q, k, v, o), (c.Br, c.Bc, c.Bc, c.Br))
    launch(
        attention_forward,
        (tiles.count(Nq, c.Br), H, B),
        (*tensors, lse),
        (*strides, problem.group, Nq, Nk, d, dv, problem.scale_log2, problem.mask)
        + (c.Br, c.Bc, *problem.widths, Nk % c.Bc != 0, problem.precision),
        warps=c.warps,
        stages=c.stages,
    )


@triton.jit
def attention_forward(
    Q, K, V, O, lse,  # Q O [B, H, Nq, ...], K V [B, Hk, Nk, ...]: descriptors or pointers; lse [B, H, Nq] a pointer
    Q_strides, K_strides, V_strides, O_strides,
    group, Nq, Nk, d, dv,  # group: query heads per key/value head
    scale_log2,  # e^(scale * x) = 2^(scale_log2 * x)
    mask,  # (left, right), as ``masks.Window``
    Br: tl.constexpr, Bc: tl.constexpr, width: tl.constexpr, width_v: tl.constexpr,
    ragged: tl.constexpr, precision: tl.constexpr,  # ragged: Bc does not divide Nk
):  # fmt: skip
    """Compute rows i * Br .. (i + 1) * Br of O in head h of batch b: program (p, h, b), where i counts down with p."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)  # causal: the tiles that see most keys start first
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    Q = tiles.view(Q, [B, H, Nq, d], Q_strides, Br, width)
    K = tiles.view(K, [B, H // group, Nk, d], K_strides, Bc, width)
    V = tiles.view(V, [B, H // group, Nk, dv], V_strides, Bc, width_v)
    O = tiles.view(O, [B, H, Nq, dv], O_strides, Br, width_v)

    rows = i * Br + tl.arange(0, Br)  # [Br]
    ends = masks.ranges(mask, i * Br, Br, Bc, Nq, Nk, ragged)
    hk = h // group
    Q_i = tiles.load(Q, b, h, i * Br, Br, width)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, width_v], tl.float32)  # [Br, dv]
    for part in tl.static_range(3):  # tiles that are cut by the mask, whole ones, cut ones
        for start in range(ends[part], ends[part + 1], Bc):
            m_i, l_i, O_i = update(
                m_i, l_i, O_i, Q_i, K, V, b, hk, start, rows, Nq, Nk, scale_log2, mask,
                Bc, part != 1, ragged, precision,
            )  # fmt: skip

    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]      a row that sees no key: O = 0, lse = -inf
    tiles.store(O, b, h, i * Br, O_i * (1 / l_safe)[:, None], Br, width_v)
    lse_i = tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2)  # [Br]
    tl.store(lse + (b * H + h).to(tl.int64) * Nq + rows, lse_i, mask=rows < Nq)


@triton.jit
def update(
    m_i, l_i, O_i, Q_i, K, V, b, hk, start, rows, Nq, Nk, scale_log2, mask,
    Bc: tl.constexpr, masked: tl.constexpr, ragged: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Take in one tile of keys and values. m_i is in units of log2, and so are the scores once they are scaled."""
    K_j = tiles.load(K, b, hk, start, Bc, Q_i.shape[1])  # [Bc, d]
    S_ij = tl.dot(Q_i, K_j.T, input_precision=precision)  # [Br, Bc]  not yet scaled
    if masked:
        S_ij = tl.where(masks.visible(mask, rows, start + tl.arange(0, Bc), Nq, Nk, ragged), S_ij, -float("inf"))
    # The scale is positive, so it may wait until after the maximum, and S * scale - m is one instruction.
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = tl.exp2(m_i - m_safe)  # [Br]
    P_ij = tl.exp2(S_ij * scale_log2 - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    V_j = tiles.load(V, b, hk, start, Bc, O_i.shape[1])  # [Bc, dv]
    P_ij = P_ij.to(V_j.dtype)  # the one narrowing
    O_i = tl.dot(P_ij, V_j, alpha[:, None] * O_i, input_precision=precision)  # [Br, dv]
    return m_new, l_i, O_i
