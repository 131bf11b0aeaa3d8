"""Merge the splits of decoding: attention to S "keys", with lse as the scores and the outputs of the splits as values.

The reference is ``reference.decoding.merge``: the six lines, without a scale, and natural logarithms throughout.
"""

import triton
import triton.language as tl

from flashlab.kernels.decode.split import divided


@triton.jit(do_not_specialize=["sizes", "splits"])
def attention_combine(
    O_s, lse_s,  # [S, rows, dv] in float32, [S, rows] in the dtype of lse; empty splits were never written
    O, lse,  # [rows, dv], [rows]
    lengths,  # [B] int32, or None
    sizes,  # rows = B * H * n, H * n, n, the largest number of keys of a batch
    splits, reach,  # as for ``attention_split``
    dv: tl.constexpr, Bc: tl.constexpr, Bs: tl.constexpr, width: tl.constexpr,  # Bs: splits that are merged at once
    early: tl.constexpr,  # launched before the splits are written
):  # fmt: skip
    """Merge the splits of one row, for one tile of its columns: program (row, tile)."""
    rows, per_batch, n, most = sizes
    i = tl.program_id(0)
    Nk = most
    if lengths is not None:
        Nk = tl.load(lengths + i // per_batch)
    read, _, size = divided(splits, n, Nk, most, reach, Bc)
    written = tl.maximum(tl.cdiv(read, size), 1)  # splits; the first always is written
    cols = tl.program_id(1) * width + tl.arange(0, width)  # [width]
    wide: tl.constexpr = lse_s.dtype.element_ty
    m_i = tl.full([1], -float("inf"), wide)  # [1]
    l_i = tl.zeros([1], wide)  # [1]
    O_i = tl.zeros([1, width], wide)  # [1, dv]
    if early:
        tl.extra.cuda.gdc_wait()
    for start in range(0, written, Bs):
        s = start + tl.arange(0, Bs)  # [Bs]
        at = s.to(tl.int64) * rows + i  # [Bs]
        S_ij = tl.load(lse_s + at, mask=s < written, other=-float("inf"))[None, :]  # [1, Bs]
        there = (s < written)[:, None] & (cols < dv)[None, :]  # [Bs, dv]
        V_j = tl.load(O_s + at[:, None] * dv + cols[None, :], mask=there, other=0.0)  # [Bs, dv]
        m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j)

    l_safe = tl.where(l_i == 0, 1, l_i)  # [1]      a row that sees no key: O = 0, lse = -inf
    one = i.to(tl.int64) + tl.arange(0, 1)  # [1]
    tl.store(
        O + one[:, None] * dv + cols[None, :], (O_i / l_safe[:, None]).to(O.dtype.element_ty), (cols < dv)[None, :]
    )
    lse_i = tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe))  # [1]
    tl.store(lse + one, lse_i, mask=tl.program_id(1) + tl.arange(0, 1) == 0)


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j):
    """Add the lse [1, Bs] and the outputs [Bs, dv] of some splits. Splits that saw no key have -inf."""
    m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [1]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [1]      no split so far saw a key
    alpha = tl.exp(m_i - m_safe)  # [1]
    P_ij = tl.exp(S_ij - m_safe[:, None])  # [1, Bs]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [1]
    O_i = alpha[:, None] * O_i + tl.sum(tl.trans(P_ij) * V_j, 0)[None, :]  # [1, dv]
    return m_new, l_i, O_i
