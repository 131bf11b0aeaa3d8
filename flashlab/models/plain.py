"""Attentions of torch's own operations, to be put in the place of ``flash_attention`` and compared with it.

All take Q [B, H, Nq, d], K [B, H, Nk, d], V [B, H, Nk, dv] and ``causal``, and return O [B, H, Nq, dv].
"""

import numpy as np
import torch


def dense(Q, K, V, *, causal, window=None):
    """Attention from its definition: the N x N matrix is there, and autograd keeps it for the backward pass.

    causal: query i sees keys j <= i + Nk - Nq. window: and none that is so many places away or more.
    Raises ValueError if causal and Nq > Nk: the first queries would see no key.
    """
    S = Q @ K.mT * Q.shape[-1] ** -0.5  # [B, H, Nq, Nk]
    Nq, Nk = S.shape[-2:]
    seen = torch.ones(Nq, Nk, dtype=torch.bool, device=S.device)  # [Nq, Nk]
    if causal:
        if Nq > Nk:
            raise ValueError(f"expected a key for each of the {Nq} causal queries, got {Nk} keys")
        seen = seen.tril(Nk - Nq)
    if window is not None:
        seen = seen.tril(Nk - Nq + window - 1).triu(Nk - Nq - window + 1)
    return S.masked_fill(~seen, -torch.inf).softmax(-1) @ V  # [B, H, Nq, dv]


def windowed(w):
    """``dense`` within a sliding window: a query sees keys less than w places away. Source: arXiv 2004.05150."""
    return lambda Q, K, V, *, causal: dense(Q, K, V, causal=causal, window=w)


def reordered(seed):
    """``dense`` with the d products of each score added up in another order: the same sums, rounded differently."""
    generator = np.random.default_rng(seed)

    def attention(Q, K, V, *, causal):
        order = generator.permutation(Q.shape[-1])  # [d], another one in each call
        return dense(Q[..., order], K[..., order], V, causal=causal)

    return attention
