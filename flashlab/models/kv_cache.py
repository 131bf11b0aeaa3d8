"""Writing one token after another: keys and values of the past stay in a cache, and only new tokens have queries.

Here the cache grows by a copy at every step. ``writing`` keeps it in pages.
"""

from typing import NamedTuple

import torch

from flashlab.kernels import flash_attention
from flashlab.machine.arguments import check_arguments


class Step(NamedTuple):
    """Outputs of the new tokens, and the cache with the new tokens in it."""

    O: torch.Tensor  # [B, H, n, d]
    K: torch.Tensor  # [B, Hk, N + n, d]
    V: torch.Tensor  # [B, Hk, N + n, d]


def step(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, past_K: torch.Tensor, past_V: torch.Tensor) -> Step:
    """Compute attention of n new tokens to N past ones and to each other.

    Q: [B, H, n, d], K, V: [B, Hk, n, d], of the new tokens; past_K, past_V: [B, Hk, N, d], the cache; N may be 0.
    Causal: a new token sees all of the past, itself, and the new tokens before it.
    """
    K = torch.cat([past_K, K], 2)  # [B, Hk, N + n, d]
    V = torch.cat([past_V, V], 2)  # [B, Hk, N + n, d]
    return Step(flash_attention(Q, K, V, causal=True), K, V)


@check_arguments(N=0)
def nbytes(N: int, *, layers: int, kv_heads: int, d: int, itemsize: int = 2) -> int:
    """Return the bytes of the cache of one text of N tokens: a key and a value for each token, head and layer."""
    return 2 * N * layers * kv_heads * d * itemsize
