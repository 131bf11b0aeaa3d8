"""The implementations of attention that are compared, as functions (q, k, v, causal) -> O on [B, H, N, d]."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from flashlab.kernels import flash_attention

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
OURS = {"flashlab": None, "portable": "portable", "hopper": "hopper"}  # flash_attention's argument ``kernel``
USUAL = ("flashlab", *BACKENDS, "flex")
NAMES = (*USUAL, "portable", "hopper", "fa4")


def implementation(name: str) -> Attention:
    """Return the implementation of that name, one of ``NAMES``.

    It raises an exception of its own kind for inputs that it cannot take. Raises ValueError for another name.
    """
    if name in OURS:
        return lambda q, k, v, causal: flash_attention(q, k, v, causal=causal, kernel=OURS[name])
    if name in BACKENDS:
        return functools.partial(_sdpa, BACKENDS[name])
    if name == "flex":
        return _flex()
    if name == "fa4":
        return _fa4
    raise ValueError(f"expected one of {', '.join(NAMES)}, got {name!r}")


def absent(name: str) -> str | None:
    """Return which package this competitor lacks, and how to install it; None if it lacks none."""
    if name == "fa4":
        try:
            _flash_attn_func()
        except RuntimeError as error:
            return str(error)
    return None


def _sdpa(backend, q, k, v, causal):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def _fa4(q, k, v, causal):
    """Call FlashAttention-4, which expects [B, N, H, d]: inputs and outputs are transposed views, no copies."""
    O = _flash_attn_func()(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    return (O[0] if isinstance(O, tuple) else O).transpose(1, 2)


@functools.cache
def _flash_attn_func():
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        raise RuntimeError("FlashAttention-4 is not installed: pip install flash-attn-4") from error
    return flash_attn_func


def _flex() -> Attention:
    """Call FlexAttention, compiled anew for each case: otherwise torch soon gives up and runs it uncompiled."""
    attend, masks = torch.compile(flex_attention, dynamic=False), {}

    def flex(q, k, v, causal):
        case = q.shape, causal, q.requires_grad
        if case not in masks:
            masks.clear()
            torch.compiler.reset()
            N = q.shape[2]
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device=q.device) if causal else None
            masks[case] = mask
        return attend(q, k, v, block_mask=masks[case])

    return flex
