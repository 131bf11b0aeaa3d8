"""The forward pass on numbers of 8 bits as a Triton kernel: the loop of ``forward``, with the scales of the numbers.

The scales of a query and a key multiply their score, and that of the values multiplies O. The weights are rounded to 8
bits, too. The largest of a row so far is 2^offset, so that small ones do not become 0. Sums of products leave the
tensor core after ``flush`` of them. There are no score functions, sinks or dropout.

Source: FlashAttention-3, section 3.3.
"""

import triton
import triton.language as tl

from flashlab.kernels import float8, log_sum_exp, tiles
from flashlab.kernels.masks import questions
from flashlab.kernels.portable import forward
from flashlab.kernels.problem import LOG2_E


def run(o, lse, q, k, v, problem, c):
    """Fill o and lse as ``forward.run`` does, for q, k and v in float8."""
    forward.run(o, lse, q, k, v, problem, c, kernel=attention_forward)


@triton.jit
def attention_forward(Q, K, V, O, lse, rest, strides, problem, tile: tl.constexpr):
    """Compute rows i * Br .. (i + 1) * Br of O. Arguments and programs: as for ``forward.attention_forward``."""
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    width: tl.constexpr = tile.width
    width_v: tl.constexpr = tile.width_v
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    Hk, Nq, Nk = H // problem.group, problem.Nq, problem.Nk
    Q = tiles.view(Q, [B, H, Nq, problem.d], strides[0], Br, width)
    K = tiles.view(K, [B, Hk, Nk, problem.d], strides[1], Bc, width)
    V = tiles.view(V, [B, Hk, Nk, problem.dv], strides[2], Bc, width_v, tile.transposed)
    O = tiles.view(O, [B, H, Nq, problem.dv], strides[3], Br, width_v)
    if tile.repair:
        if tiles.is_finite(tiles.load(O, b, h, i * Br, Br, width_v)):
            return

    rows = i * Br + tl.arange(0, Br)  # [Br]
    factor = float8.scaled(problem.factor, problem.scales, float8.OF_Q, b, h, i * Br)
    ends = questions.ranges(problem.mask, b, h, i * Br, Br, Bc, Nq, Nk, tile.ragged)
    Q_i = tiles.load(Q, b, h, i * Br, Br, width)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, width_v], tl.float32)  # [Br, dv]
    for part in tl.static_range(3):  # tiles that are cut by the mask, whole ones, cut ones
        for at in range(ends[part], ends[part + 1], questions.step(problem.mask, Bc)):
            start = questions.first_of(problem.mask, b, h, i, at, Bc)
            m_i, l_i, O_i = update(m_i, l_i, O_i, Q_i, K, V, b, h, rows, start, factor, problem, tile, part != 1)

    lse_i, rest_i, inverse = log_sum_exp.finish(m_i * (tile.unit / LOG2_E), l_i, None)  # [Br] each
    inverse = float8.scaled(inverse, problem.scales, float8.OF_V, b, h // problem.group, 0)  # [Br]
    tiles.store(O, b, h, i * Br, O_i * inverse[:, None], Br, width_v)
    log_sum_exp.store(lse, rest, (b * H + h).to(tl.int64) * Nq + rows, lse_i, rest_i, rows < Nq)


@triton.jit
def update(
    m_i, l_i, O_i, Q_i, K, V, b, h, rows, start, factor, problem, tile: tl.constexpr, masked: tl.constexpr
):  # fmt: skip
    """Take in one tile of keys and values, as ``forward.update`` does. factor has the scale of the queries already."""
    unit: tl.constexpr = tile.unit
    hk, offset = h // problem.group, tile.offset
    factor = float8.scaled(factor, problem.scales, float8.OF_K, b, hk, start)
    i, j = rows[:, None], (start + tl.arange(0, tile.Bc))[None, :]  # [Br, 1], [1, Bc]
    K_j = tiles.load(K, b, hk, start, tile.Bc, tile.width)  # [Bc, d]
    S_ij = tl.dot(Q_i, K_j.T)  # [Br, Bc]  not yet scaled
    if masked:
        seen = questions.visible(problem.mask, b, h, i, j, problem.Nq, problem.Nk, tile.ragged)  # [Br, Bc]
        S_ij = tl.where(seen, S_ij, -float("inf"))
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * factor - offset)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = tl.exp2((m_i - m_safe) * unit)  # [Br]
    P_ij = tl.exp2((S_ij * factor - m_safe[:, None]) * unit)  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    V_j = tiles.load(V, b, hk, start, tile.Bc, tile.width_v, tile.transposed)  # [Bc, dv]
    if masked and tile.repair:
        O_i, V_j = questions.finite(O_i, V_j, seen)
    elif masked and tile.unseen:
        V_j = questions.forget(V_j, seen)
    P_ij = P_ij.to(V_j.dtype)  # the one narrowing
    O_i = tl.dot(P_ij, V_j, alpha[:, None] * O_i, max_num_imprecise_acc=tile.flush)  # [Br, dv]
    return m_new, l_i, O_i
