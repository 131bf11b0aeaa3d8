"""Writing one token after another: keys and values of the past stay in a cache, and only new tokens have queries.

Here the cache grows by a copy at every step. ``writing`` keeps it in pages.
"""

from typing import NamedTuple

import torch

from flashlab.kernels import flash_attention
from flashlab.kernels.checks import check_dense
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
    _check(Q, K, V, past_K, past_V)
    K = torch.cat([past_K, K], 2)  # [B, Hk, N + n, d]
    V = torch.cat([past_V, V], 2)  # [B, Hk, N + n, d]
    return Step(flash_attention(Q, K, V, causal=True), K, V)


def _check(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, past_K: torch.Tensor, past_V: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless the past and the new tokens have the same heads, columns and dtype."""
    check_dense(Q=Q, K=K, V=V, past_K=past_K, past_V=past_V)
    shapes = [list(x.shape) for x in (Q, K, V, past_K, past_V)]
    one_dtype = len({x.dtype for x in (Q, K, V, past_K, past_V)}) == 1
    if any(len(shape) != 4 for shape in shapes) or not one_dtype or Q.shape[2] != K.shape[2]:
        expected = "Q [B, H, n, d], K and V [B, Hk, n, d], past_K and past_V [B, Hk, N, d] of one dtype"
        dtypes = sorted({str(x.dtype) for x in (Q, K, V, past_K, past_V)})
        raise ValueError(f"expected {expected}, got {', '.join(map(str, shapes))} of {' and '.join(dtypes)}")
    for name, new, past in (("K", K, past_K), ("V", V, past_V)):
        if new.shape[:2] != past.shape[:2] or new.shape[3] != past.shape[3]:
            found = f"{list(past.shape)} for {list(new.shape)}"
            raise ValueError(f"past_{name} must have the heads and columns of {name}, got {found}")


@check_arguments(N=0)
def nbytes(N: int, *, layers: int, kv_heads: int, d: int, itemsize: int = 2) -> int:
    """Return the bytes of the cache of one text of N tokens: a key and a value for each token, head and layer."""
    return 2 * N * layers * kv_heads * d * itemsize
