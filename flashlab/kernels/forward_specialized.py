"""The forward pass with warps that specialize: a second rung above ``forward``, for compute capability 9.0.

What changed against ``forward``, and why. (1) ``warp_specialize=True``: the compiler gives the copying of tiles to
warps of their own, and splits the rows between two groups of warps, so that one group takes exponentials while the
other multiplies. (2) The product with V_j lags one tile behind: P_ij of the tile before meets its values while the
scores of this tile are computed, so the matrix unit always has a product at hand. (3) The compiler can specialize only
a single loop without branches, so a causal mask is applied in all tiles, not only on the diagonal. (4) Each group of
warps takes half of the rows, so Q comes through a descriptor made in the kernel, and O leaves through pointers.

It is chosen only with the version of Triton that it was measured with (``configurations``): the compiler's part in it
is large, and with other tiles and three stages it gave NaN. On the tiles in use results agree with torch's, but
compute-sanitizer's racecheck reports hazards in shared memory here (none in the plain kernels), not yet explained.

The five lines are those of ``forward.update``, with P_ij used one tile later. Source: FlashAttention-3, section 3.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels import tiles
from flashlab.kernels.forward import LOG2_E
from flashlab.kernels.launch import launch


def run(o, lse, q, k, v, causal, scale, c):
    """Fill o and lse, with tiles, warps and stages of the ``Configuration`` c. Arguments as ``forward.run``."""
    B, H, Nq, d = q.shape
    Nk, dv = v.shape[2:]
    # The descriptor that the kernel makes of Q wants memory from us.
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=q.device))
    (k, v), strides = tiles.arguments((k, v), (c.Bc, c.Bc))
    sizes = (H // k.shape[1], Nq, Nk, d, dv, scale * LOG2_E, c.Br, c.Bc, tiles.width_of(d), tiles.width_of(dv))
    launch(
        attention_forward_specialized,
        (tiles.count(Nq, c.Br), H, B),
        (q, k, v, o, lse),
        (tiles.strides_of(q), *strides, tiles.strides_of(o), *sizes, causal, causal or Nk % c.Bc != 0),
        warps=c.warps,
        stages=c.stages,
    )


@triton.jit
def attention_forward_specialized(
    Q, K, V, O, lse,  # K V [B, Hk, Nk, ...]: descriptors or pointers; pointers to Q O [B, H, Nq, ...], lse [B, H, Nq]
    Q_strides, K_strides, V_strides, O_strides,
    group, Nq, Nk, d, dv, scale_log2,
    Br: tl.constexpr, Bc: tl.constexpr, width: tl.constexpr, width_v: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Program (p, h, b) computes rows i * Br .. (i + 1) * Br of O in head h of batch b."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    hk = h // group
    K = tiles.view(K, [B, H // group, Nk, d], K_strides, Bc, width)
    V = tiles.view(V, [B, H // group, Nk, dv], V_strides, Bc, width_v)
    Q += b.to(tl.int64) * Q_strides[0] + h.to(tl.int64) * Q_strides[1]
    O += b.to(tl.int64) * O_strides[0] + h.to(tl.int64) * O_strides[1]

    rows = i * Br + tl.arange(0, Br)  # [Br]
    if causal:
        last_seen = rows + Nk - Nq  # [Br]
        seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)
    else:
        last_seen = tl.full([Br], Nk - 1, tl.int32)  # [Br]
        seen = Nk

    # The compiler moves the second group on by Br / 2 rows, and with it whatever else uses the coordinate that Q is
    # loaded from: so that is computed apart from ``rows``.
    first = tl.num_programs(0) * Br - (tl.program_id(0) + 1) * Br
    Q_i = tl.make_tensor_descriptor(Q, [Nq, d], [Q_strides[2], 1], [Br, width]).load([first, 0])  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, width_v], tl.float32)  # [Br, dv]
    P_ij = tl.zeros([Br, Bc], tl.float32)  # [Br, Bc]      of the tile before: there was none
    for start in tl.range(0, seen, Bc, warp_specialize=True):
        K_j = tiles.load(K, b, hk, start, Bc, width)  # [Bc, d]
        V_j = tiles.load(V, b, hk, tl.maximum(start - Bc, 0), Bc, width_v)  # [Bc, dv]      of the tile before
        P_before = P_ij.to(V_j.dtype)  # the one narrowing
        S_ij = tl.dot(Q_i, K_j.T)  # [Br, Bc]
        O_i = tl.dot(P_before, V_j, O_i)  # [Br, dv]
        if masked:
            S_ij = tl.where(start + tl.arange(0, Bc)[None, :] <= last_seen[:, None], S_ij, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)  # [Br]
        m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]
        alpha = tl.exp2(m_i - m_safe)  # [Br]
        P_ij = tl.exp2(S_ij * scale_log2 - m_safe[:, None])  # [Br, Bc]
        l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
        O_i = alpha[:, None] * O_i  # [Br, dv]      relative to m_new already
        m_i = m_new
    V_j = tiles.load(V, b, hk, tl.maximum(tl.cdiv(seen, Bc) - 1, 0) * Bc, Bc, width_v)  # [Bc, dv]      the last tile
    O_i = tl.dot(P_ij.to(V_j.dtype), V_j, O_i)  # [Br, dv]

    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]
    O_i = O_i * (1 / l_safe)[:, None]  # [Br, dv]
    columns = tl.arange(0, width_v)  # [dv]
    inside = (rows[:, None] < Nq) & (columns[None, :] < dv)  # [Br, dv]
    tl.store(O + rows[:, None].to(tl.int64) * O_strides[2] + columns[None, :], O_i.to(O.dtype.element_ty), mask=inside)
    LN2: tl.constexpr = 0.6931471805599453
    lse_i = tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2)  # [Br]
    tl.store(lse + (b * H + h).to(tl.int64) * Nq + rows, lse_i, mask=rows < Nq)
