"""The cache of keys and values: its bytes per token, the room it wastes, and latent attention in absorbed form."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments, check_fields
from flashlab.reference.attention import attention
from flashlab.reference.dtypes import one_dtype


class Kind(NamedTuple):
    """One way to keep a token in one layer: numbers, bytes per number, and bytes of scales."""

    numbers: int
    itemsize: int = 2
    scale_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes per token and layer."""
        check_fields(self, scale_bytes=0)
        return self.numbers * self.itemsize + self.scale_bytes


@check_arguments(rope=0)
def kinds(H: int = 128, Hk: int = 8, d: int = 128, latent: int = 512, rope: int = 64) -> dict[str, Kind]:
    """Return the ways to keep a token of a layer with H query heads of d columns, by name.

    Multi-head attention keeps a key and a value for each query head, grouped heads for Hk of them, multi-query for one.
    Latent attention keeps one vector for all heads, and beside it ``rope`` columns that carry the position; the sizes
    are DeepSeek's. 8 bits: a scale of 4 bytes for each key and value.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    if H % Hk:
        raise ValueError(f"H must be a multiple of Hk, got H = {H} and Hk = {Hk}")
    return {
        "MHA": Kind(2 * H * d),
        "GQA": Kind(2 * Hk * d),
        "GQA, 8 bits": Kind(2 * Hk * d, 1, 2 * Hk * 4),
        "MQA": Kind(2 * d),
        "MLA": Kind(latent + rope),
    }


def expanded(
    q: np.ndarray, q_rope: np.ndarray, C: np.ndarray, R: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, scale: float
) -> np.ndarray:
    """Compute latent attention as it is defined: keys and values are made from the latents, one head after another.

    Args:
        q: [H, dn] and q_rope: [H, dr], the query of one token.
        C: latents [N, r]; R: the keys' columns with the position [N, dr], the same for all heads.
        W_K: [H, dn, r] and W_V: [H, dv, r] make keys and values from latents.
        scale: factor on the scores, 1/sqrt(dn + dr).

    Returns:
        O [H, dv].
    """
    _check(q, q_rope, C, R, W_K, W_V)
    outputs = []
    for h in range(len(q)):
        K = np.concatenate([C @ W_K[h].T, R], 1)  # [N, dn + dr]
        V = C @ W_V[h].T  # [N, dv]
        outputs.append(attention(np.concatenate([q[h], q_rope[h]])[None], K, V, scale=scale)[0])
    return np.stack(outputs)


def absorbed(
    q: np.ndarray, q_rope: np.ndarray, C: np.ndarray, R: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, scale: float
) -> np.ndarray:
    """Compute the same without making a key or a value. Arguments and result as ``expanded``.

    W_K is applied to the query, and W_V after the sum. In between, every head is a query to the same keys [C, R] of
    r + dr columns, and the first r of these are the values.
    """
    _check(q, q_rope, C, R, W_K, W_V)
    q = np.einsum("hn,hnr->hr", q, W_K)  # [H, r]
    K = np.concatenate([C, R], 1)  # [N, r + dr]
    O = attention(np.concatenate([q, q_rope], 1), K, C, scale=scale)  # [H, r]
    return np.einsum("hr,hvr->hv", O, W_V)


def _check(q: np.ndarray, q_rope: np.ndarray, C: np.ndarray, R: np.ndarray, W_K: np.ndarray, W_V: np.ndarray) -> None:
    """Raise TypeError or ValueError unless the arrays of latent attention match."""
    one_dtype(q=q, q_rope=q_rope, C=C, R=R, W_K=W_K, W_V=W_V)
    shapes = [x.shape for x in (q, q_rope, C, R, W_K, W_V)]
    if [len(shape) for shape in shapes] == [2, 2, 2, 2, 3, 3]:
        (H, dn), dr, (N, r), dv = shapes[0], shapes[1][1], shapes[2], shapes[5][1]
        if shapes == [(H, dn), (H, dr), (N, r), (N, dr), (H, dn, r), (H, dv, r)]:
            return
    expected = "q [H, dn], q_rope [H, dr], C [N, r], R [N, dr], W_K [H, dn, r] and W_V [H, dv, r]"
    raise ValueError(f"expected {expected}, got {', '.join(map(str, shapes))}")


@check_arguments(lengths=0, longest=0)
def reserved(lengths: Sequence[int], page: int | None = None, longest: int | None = None) -> int:
    """Return for how many tokens the cache has room: whole pages of ``page`` tokens, or ``longest`` for every text."""
    if page is not None:
        return sum(-(-N // page) * page for N in lengths)
    if longest is None or longest < max(lengths, default=0):
        raise ValueError(f"expected a page, or a longest at least as large as each length, got longest = {longest}")
    return longest * len(lengths)


@check_arguments(P=0, N=0)
def prefix_bytes(B: int, P: int, N: int, per_token: int) -> tuple[int, int]:
    """Return the bytes that a step reads for B texts with P shared tokens and N own ones each.

    per_token: bytes of the cache for one token. The first number is for shared tokens that are read for every text, the
    second for shared tokens that are read once.
    """
    return B * (P + N) * per_token, (P + B * N) * per_token
