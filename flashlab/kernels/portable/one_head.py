"""The smallest attention kernel: one head, with pointers, for lengths that the tiles divide.

It has only the loop of ``forward``, the portable kernel of ``flash_attention``: no other lengths, masks, batches, heads
or lse, and e^x in place of 2^x. Begin here.

Source: FlashAttention-2, Algorithm 1.
"""

import torch
import triton
import triton.language as tl


def run(Q, K, V, Br, Bc):
    """Return O [N, d] for Q, K, V [N, d], contiguous float16 tensors; Br and Bc, powers of two from 16 on, divide N.

    d is a power of two from 16 on. Elements that no program writes are NaN.
    """
    N, d = Q.shape
    O = torch.full_like(Q, torch.nan)  # [N, d]
    attention_small[(N // Br,)](Q, K, V, O, N, d**-0.5, d, Br, Bc)
    return O


@triton.jit
def attention_small(Q, K, V, O, N, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr):
    i = tl.program_id(0)
    rows, columns = i * Br + tl.arange(0, Br), tl.arange(0, d)  # [Br], [d]
    Q_i = tl.load(Q + rows[:, None] * d + columns)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, d], tl.float32)  # [Br, d]
    for start in range(0, N, Bc):
        keys = start + tl.arange(0, Bc)  # [Bc]
        K_j = tl.load(K + keys[:, None] * d + columns)  # [Bc, d]
        V_j = tl.load(V + keys[:, None] * d + columns)  # [Bc, d]
        S_ij = tl.dot(Q_i, K_j.T) * scale  # [Br, Bc]
        m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j)
    tl.store(O + rows[:, None] * d + columns, O_i / l_i[:, None])


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j):
    m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]
    alpha = tl.exp(m_i - m_safe)  # [Br]
    P_ij = tl.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    O_i = alpha[:, None] * O_i + tl.dot(P_ij.to(V_j.dtype), V_j)  # [Br, d]
    return m_new, l_i, O_i
