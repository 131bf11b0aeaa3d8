"""Merge the splits of decoding: attention to S "keys", with lse as the scores and the outputs of the splits as values.

The reference is ``reference.decoding.merge``: the six lines, without a scale, and natural logarithms throughout.
"""

import triton
import triton.language as tl

from flashlab.kernels import log_sum_exp
from flashlab.kernels.decode.split import divided


@triton.jit(do_not_specialize=["sizes", "splits"])
def attention_combine(
    O_s, lse_s, rest_s,  # [S, rows, dv] in float32, [S, rows] each, rest or None; empty splits were never written
    O, lse, rest,  # [rows, dv], [rows] each, rest as for ``log_sum_exp.store``
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
    m_i = tl.full([1], -float("inf"), tl.float32)  # [1]
    l_i = tl.zeros([1], tl.float32)  # [1]
    O_i = tl.zeros([1, width], tl.float32)  # [1, dv]
    if early:
        tl.extra.cuda.gdc_wait()
    for start in range(0, written, Bs):
        s = start + tl.arange(0, Bs)  # [Bs]
        at = s.to(tl.int64) * rows + i  # [Bs]
        S_ij = tl.load(lse_s + at, mask=s < written, other=-float("inf"))[None, :]  # [1, Bs]
        there = (s < written)[:, None] & (cols < dv)[None, :]  # [Bs, dv]
        V_j = tl.load(O_s + at[:, None] * dv + cols[None, :], mask=there, other=0.0)  # [Bs, dv]
        rest_j = 0.0 if rest_s is None else tl.load(rest_s + at, mask=s < written, other=0.0)[None, :]  # [1, Bs]
        m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j, rest_j)

    lse_i, rest_i, inverse = log_sum_exp.finish(m_i, l_i, None)  # [1] each
    one = i.to(tl.int64) + tl.arange(0, 1)  # [1]
    tl.store(
        O + one[:, None] * dv + cols[None, :], (O_i * inverse[:, None]).to(O.dtype.element_ty), (cols < dv)[None, :]
    )
    log_sum_exp.store(lse, rest, one, lse_i, rest_i, tl.program_id(1) + tl.arange(0, 1) == 0)


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j, rest):
    """Add the lse [1, Bs] and the outputs [Bs, dv] of some splits. Splits that saw no key have -inf.

    rest: the part of lse beyond float32, too small to matter for the maximum.
    """
    m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [1]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [1]      no split so far saw a key
    alpha = tl.exp(m_i - m_safe)  # [1]
    P_ij = tl.exp(S_ij - m_safe[:, None] + rest)  # [1, Bs]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [1]
    O_i = alpha[:, None] * O_i + tl.sum(tl.trans(P_ij) * V_j, 0)[None, :]  # [1, dv]
    return m_new, l_i, O_i
