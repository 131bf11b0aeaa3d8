"""Attention written out, with masks, score functions, sinks and dropout: the oracle for the kernels."""

import math

import numpy as np
import torch

from flashlab.kernels import DEVICE
from flashlab.reference.dropout import Dropout


def attention(q, k, v, seen, score=None, sinks=None, Z=None, scale=None):
    """Return O [B, H, Nq, dv] and lse [B, H, Nq] in the dtype of q, with all scores in memory.

    seen: boolean, Z: factors of dropout, both broadcastable to [B, H, Nq, Nk]. score: a function of the scaled scores.
    """
    group = q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    S = q @ k.repeat_interleave(group, 1).mT * scale  # [B, H, Nq, Nk]
    S = (S if score is None else score(S)).masked_fill(~seen, -math.inf)
    if sinks is not None:
        S = torch.cat([S, sinks[None, :, None, None].expand(*S.shape[:3], 1).to(S)], -1)  # [B, H, Nq, Nk + 1]
    m = S.amax(-1, keepdim=True)  # [B, H, Nq, 1]
    P = (S - m.masked_fill(m == -math.inf, 0)).exp()  # as S
    l = P.sum(-1, keepdim=True)  # [B, H, Nq, 1]
    P, lse = P / l.masked_fill(l == 0, 1), (m + l.log())[..., 0]
    P = P if sinks is None else P[..., :-1]
    return (P if Z is None else P * Z.to(P)) @ v.repeat_interleave(group, 1), lse


def linear(q, k, v, decay, dtype):
    """Return O of linear attention, with both products, and the scores between them, in this dtype."""
    q, k, v = (x.to(dtype) for x in (q, k, v))
    i, j = own(q.shape[2], k.shape[2])  # [N, 1], [1, N]
    near = torch.where(i >= j, decay.double()[:, None, None] ** (i - j).clamp(min=0), 0)  # [H, N, N]
    return (near * (q @ k.mT)).to(dtype) @ v


def factors(B, H, Nq, Nk, p, seed):
    """Return the factors of dropout [B, H, Nq, Nk], as the reference defines them."""
    tiles = [Dropout(p, seed, h, b).tile(slice(0, Nq), slice(0, Nk), np.float64) for b in range(B) for h in range(H)]
    return torch.tensor(np.stack(tiles)).view(B, H, Nq, Nk).to(DEVICE)


def own(Nq, Nk):
    """Return the key at the position of each query, [Nq, 1], and all keys, [1, Nk]."""
    return torch.arange(Nk - Nq, Nk, device=DEVICE)[:, None], torch.arange(Nk, device=DEVICE)[None]
