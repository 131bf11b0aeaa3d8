"""Writing one token after another: keys and values of the past wait in a cache, and only queries of the new are asked.

The lesson on decoding will make it fast. Here it is made right.
"""

from typing import NamedTuple

import torch

from flashlab.kernels import flash_attention


class Step(NamedTuple):
    """Outputs of the new tokens, and the cache with them in it."""

    O: torch.Tensor  # [B, H, n, d]
    K: torch.Tensor  # [B, Hk, N + n, d]
    V: torch.Tensor  # [B, Hk, N + n, d]


def step(Q, K, V, past_K, past_V) -> Step:
    """Attention of n new tokens, Q [B, H, n, d] and K, V [B, Hk, n, d], to N past ones [B, Hk, N, d] and to each other.

    Causal: a new token sees all of the past, itself, and what is new before it.
    """
    K = torch.cat([past_K, K], 2)  # [B, Hk, N + n, d]
    V = torch.cat([past_V, V], 2)  # [B, Hk, N + n, d]
    return Step(flash_attention(Q, K, V, causal=True), K, V)


def nbytes(N, *, layers, kv_heads, d, itemsize=2) -> int:
    """What the cache of one text of N tokens takes: a key and a value for each token, head and layer."""
    return 2 * N * layers * kv_heads * d * itemsize
