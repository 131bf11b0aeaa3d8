"""The implementations of attention that are compared, as functions (q, k, v, causal) -> O on [B, H, N, d]."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

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
NAMES = (*USUAL, "portable", "hopper", "fa3", "fa4")


def implementation(name: str) -> Attention:
    """Return the implementation of that name, one of ``NAMES``.

    Raises ValueError for another name. What an implementation raises for inputs that it cannot take is its own choice.
    """
    if name in OURS:
        return lambda q, k, v, causal: flash_attention(q, k, v, causal=causal, kernel=OURS[name])
    if name in BACKENDS:
        return functools.partial(sdpa, BACKENDS[name])
    if name == "flex":
        return _flex()
    if name in LATEST:
        return LATEST[name]
    raise ValueError(f"expected one of {', '.join(NAMES)}, got {name!r}")


def absent(name: str) -> str | None:
    """Return which package this competitor lacks, and how to install it; None if it lacks none."""
    try:
        {"fa3": _flash_attn_3, "fa4": _flash_attn_func}.get(name, lambda: None)()
    except RuntimeError as error:
        return str(error)
    return None


def sdpa(backend: SDPBackend, q, k, v, causal: bool) -> torch.Tensor:
    """Call torch's attention with one of its backends."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def fa3(q, k, v, causal: bool, window: int | None = None, cap: float = 0.0) -> torch.Tensor:
    """Call FlashAttention-3, which expects [B, N, H, d]: inputs and outputs are transposed views, no copies.

    window: the number of keys before its own position that a query sees; it sees no later keys. None: no window.
    cap: that of the scores; 0: none.
    """
    options = {"is_causal": causal and window is None, "softcap": cap, "window_size_left": -1, "window_size_right": -1}
    if window is not None:
        options |= {"window_size_left": window, "window_size_right": 0}
    return _FlashAttention3.apply(*(x.transpose(1, 2) for x in (q, k, v)), options).transpose(1, 2)


class _FlashAttention3(torch.autograd.Function):
    """Attention of [B, N, H, d] by the operators of flash_attn_3, as their own Python interface calls them."""

    @staticmethod
    def forward(ctx, q, k, v, options):
        options = options | {"softmax_scale": q.shape[-1] ** -0.5}
        parts = 1 if q.shape[1] > 1 else 0  # of the keys; 0: as many as fill the GPU, for a step of decoding
        O, lse, *_ = _flash_attn_3().fwd(q, k, v, num_splits=parts, **options)  # [B, Nq, H, dv], [B, H, Nq]
        ctx.save_for_backward(q, k, v, O, lse)
        ctx.options = options
        return O

    @staticmethod
    def backward(ctx, dO):
        q, k, v, O, lse = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in (q, k, v)]  # filled by the operator
        _flash_attn_3().bwd(dO, q, k, v, O, lse, *gradients, **ctx.options)
        return *gradients, None


@functools.cache
def _flash_attn_3():
    """Load the operators of FlashAttention-3 from the package flash_attn_3, or from xformers, which has them too."""
    for package in "flash_attn_3", "xformers":
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for library in sorted(Path(folder).rglob("_C*.so")):
                if "flash_attn_3" in str(library):
                    torch.ops.load_library(str(library))
                    return torch.ops.flash_attn_3
    raise RuntimeError("FlashAttention-3 is not installed: pip install xformers")


def fa4(q, k, v, causal: bool, window: int | None = None, cap: float = 0.0, sinks=None) -> torch.Tensor:
    """Call FlashAttention-4, with the arguments of ``fa3`` and a sink per head."""
    options = {"window_size": (window, 0)} if window is not None else {"causal": causal}
    options |= {"softcap": cap} if cap else {}
    options |= {} if sinks is None else {"learnable_sink": sinks}
    O = _flash_attn_func()(*(x.transpose(1, 2) for x in (q, k, v)), **options)
    return (O[0] if isinstance(O, tuple) else O).transpose(1, 2)


LATEST = {"fa3": fa3, "fa4": fa4}


@functools.cache
def _flash_attn_func():
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        raise RuntimeError("FlashAttention-4 is not installed: pip install flash-attn-4") from error
    return flash_attn_func


def _flex() -> Attention:
    """Return FlexAttention, compiled anew for each case: otherwise torch soon gives up and runs it uncompiled."""
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
