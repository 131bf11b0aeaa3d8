"""Attention in torch's own operations, to compare with ``flash_attention`` or to put in its place.

``dense`` and its variants take Q [B, H, Nq, d], K [B, H, Nk, d], V [B, H, Nk, dv] and ``causal``, and return
O [B, H, Nq, dv]. ``tiled`` takes one head.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from flashlab.machine.arguments import check_arguments


@check_arguments()
def dense(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """Compute attention from its definition. Autograd keeps the N x N matrix for the backward pass.

    causal: query i sees keys j <= i + Nk - Nq. window: if given, mask keys at distance ``window`` or more.
    Raises ValueError if the first queries would see no key.
    """
    _check(Q, K, V)
    S = Q @ K.mT * Q.shape[-1] ** -0.5  # [B, H, Nq, Nk]
    Nq, Nk = S.shape[-2:]
    after = 0 if causal else Nq if window is None else window - 1  # keys after its own that a query may see
    if Nk - Nq + after < 0:
        raise ValueError(f"expected a key that each of the {Nq} queries sees, got {Nk} keys")
    seen = torch.ones(Nq, Nk, dtype=torch.bool, device=S.device)  # [Nq, Nk]
    if causal:
        seen = seen.tril(Nk - Nq)
    if window is not None:
        seen = seen.tril(Nk - Nq + window - 1).triu(Nk - Nq - window + 1)
    return S.masked_fill(~seen, -torch.inf).softmax(-1) @ V  # [B, H, Nq, dv]


def _check(Q: Tensor, K: Tensor, V: Tensor) -> None:
    """Raise TypeError or ValueError unless Q [..., Nq, d], K [..., Nk, d], V [..., Nk, dv] match in dtype and shape."""
    fits = min(Q.ndim, K.ndim, V.ndim) >= 2 and Q.shape[:-2] == K.shape[:-2] == V.shape[:-2]
    if not fits or Q.shape[-1] != K.shape[-1] or K.shape[-2] != V.shape[-2]:
        found = f"{list(Q.shape)}, {list(K.shape)} and {list(V.shape)}"
        raise ValueError(f"expected Q [B, H, Nq, d], K [B, H, Nk, d] and V [B, H, Nk, dv], got {found}")
    if not (Q.dtype == K.dtype == V.dtype and Q.is_floating_point()):
        raise TypeError(f"Q, K and V must have one floating-point dtype, got {Q.dtype}, {K.dtype} and {V.dtype}")


@check_arguments()
def windowed(W: int) -> Callable[..., Tensor]:
    """Return ``dense`` within a sliding window of W keys, of which the query's own key is one.

    Causal: a query sees its own key and the W - 1 keys before it, as in Hugging Face's models with a sliding window.
    Otherwise it sees W - 1 keys on either side. Raises ValueError if W is not a whole number from 1 on.

    Source: arXiv 2004.05150.
    """
    return lambda Q, K, V, *, causal: dense(Q, K, V, causal=causal, window=W)


@check_arguments(seed=0)
def reordered(seed: int) -> Callable[..., Tensor]:
    """Return ``dense`` with the d products of each score added in another order: the same sums, rounded differently."""
    generator = np.random.default_rng(seed)

    def attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool) -> Tensor:
        _check(Q, K, V)
        order = generator.permutation(Q.shape[-1])  # [d], another one in each call
        return dense(Q[..., order], K[..., order], V, causal=causal)

    return attention


@check_arguments()
def tiled(Q: Tensor, K: Tensor, V: Tensor, Br: int, Bc: int, *, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Compute attention of one head tile by tile: the loop of FlashAttention-2, without an N x N matrix.

    Args:
        Q: [Nq, d], K: [Nk, d], V: [Nk, dv]. Br, Bc: rows and columns of a tile of scores.
        causal: query i sees keys j <= i + Nk - Nq.

    Returns:
        O [Nq, dv] in the dtype of Q, and lse [Nq], the natural logarithm of the sum of exponentials of each row, in
        float32 or better. A row that sees no key has O = 0 and lse = -inf.

    Raises:
        ValueError: Br or Bc is not a whole number from 1 on.

    Source: FlashAttention-2, Algorithm 1.
    """
    if not Q.ndim == K.ndim == V.ndim == 2 or Q.shape[1] != K.shape[1] or len(K) != len(V):
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {Q.shape}, {K.shape}, {V.shape}")
    _check(Q, K, V)
    (Nq, d), (Nk, dv) = Q.shape, V.shape
    wide = torch.promote_types(Q.dtype, torch.float32)
    O, lse = Q.new_empty(Nq, dv), Q.new_empty(Nq, dtype=wide)  # [Nq, dv], [Nq]
    for i in range(0, Nq, Br):
        Q_i = Q[i : i + Br].to(wide)  # [Br, d]
        rows = torch.arange(i, i + len(Q_i), device=Q.device)  # [Br]
        m_i, l_i, O_i = Q_i.new_full((len(Q_i),), -torch.inf), Q_i.new_zeros(len(Q_i)), Q_i.new_zeros(len(Q_i), dv)
        for j in range(0, min(i + Br + Nk - Nq, Nk) if causal else Nk, Bc):
            K_j, V_j = K[j : j + Bc].to(wide), V[j : j + Bc].to(wide)  # [Bc, d], [Bc, dv]
            S_ij = Q_i @ K_j.T * d**-0.5  # [Br, Bc]
            if causal:
                cols = torch.arange(j, j + len(K_j), device=Q.device)  # [Bc]
                S_ij = S_ij.masked_fill(cols > rows[:, None] + Nk - Nq, -torch.inf)
            m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j)
        l_safe = torch.where(l_i == 0, 1, l_i)  # [Br]      a row that sees no key
        O[i : i + Br] = O_i / l_safe[:, None]
        lse[i : i + Br] = torch.where(l_i == 0, -torch.inf, m_i + torch.log(l_safe))
    return O, lse


@check_arguments()
def update(m_i: Tensor, l_i: Tensor, O_i: Tensor, S_ij: Tensor, V_j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take in one tile of scores S_ij [Br, Bc] and its values V_j [Bc, dv]. Masked scores are -inf.

    m_i, l_i: [Br], O_i: [Br, dv], of the keys so far. Returns the same three, with the keys of the tile.
    """
    if S_ij.shape != (len(m_i), len(V_j)) or V_j.shape[1:] != O_i.shape[1:]:
        raise ValueError(f"expected S_ij [Br, Bc], V_j [Bc, dv] for O_i {O_i.shape}, got {S_ij.shape}, {V_j.shape}")
    m_new = torch.maximum(m_i, S_ij.amax(-1))  # [Br]
    m_safe = torch.where(m_new == -torch.inf, 0, m_new)  # [Br]      a row that has met no key yet
    alpha = torch.exp(m_i - m_safe)  # [Br]
    P_ij = torch.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = alpha[:, None] * O_i + P_ij @ V_j  # [Br, dv]
    return m_new, l_i, O_i
