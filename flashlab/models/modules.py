"""Attention where models expect it: torch's function and a module, both with ``flash_attention`` inside."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from flashlab.kernels import flash_attention, masks, scores
from flashlab.kernels.checks import check_dense, check_place, check_values, kind_of
from flashlab.kernels.dropout import check_probability
from flashlab.kernels.problem import check
from flashlab.machine.arguments import check_flag, check_whole, shown

NAMES = "query", "key", "value"


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute what ``torch.nn.functional.scaled_dot_product_attention`` does, with its signature.

    Args:
        query: [..., H, Nq, d]; key: [..., Hk, Nk, d]; value: [..., Hk, Nk, dv], of float16, bfloat16 or float32.
            Leading dimensions broadcast, and there may be none.
        attn_mask: [Nq, Nk] or with more dimensions, broadcastable to [..., H, Nq, Nk]: boolean, True where a key is
            seen; or numbers, which are added to the scaled scores and get a gradient.
        dropout_p: each weight becomes 0 with this probability, rounded to a multiple of 2^-16. The random numbers
            are not those of torch.
        is_causal: query i sees keys j <= i, aligned at the upper left, as in torch. ``flash_attention`` aligns at the
            lower right; the two differ where Nq and Nk do.
        scale: factor on the scores, 1/sqrt(d) if None.
        enable_gqa: the H query heads share Hk key/value heads, H a multiple of Hk.

    Returns:
        [..., H, Nq, dv] in the dtype of query.

    Raises:
        TypeError, ValueError, RuntimeError: inputs that are no dense tensors, dtypes, devices or shapes that do not
            match, or both attn_mask and is_causal.
    """
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    check_probability(dropout_p, "dropout_p")
    _check(query, key, value)
    query, key, value, batch = _with_four_dimensions(query, key, value, enable_gqa)
    check(query, key, value, names=NAMES)
    Nq, Nk = query.shape[2], key.shape[2]
    options: dict[str, Any] = {"scale": scale, "dropout": dropout_p}
    if attn_mask is not None:
        if is_causal:
            raise ValueError("attn_mask must be None under is_causal=True, as in torch, got both")
        options |= mask_options("attn_mask", attn_mask, (*batch, Nq, Nk))
    if is_causal and Nq != Nk:  # only the square from the upper left corner is causal: keys beyond it are never seen
        N = min(Nq, Nk)
        O = flash_attention(query[:, :, :N], key[:, :, :N], value[:, :, :N], causal=True, **options)
        if Nq > Nk:  # and queries beyond it see every key
            O = torch.cat([O, flash_attention(query[:, :, N:], key, value, **options)], 2)  # [B, H, Nq, dv]
    else:
        O = flash_attention(query, key, value, causal=is_causal, **options)  # [B, H, Nq, dv]
    return O.reshape(*batch, *O.shape[-2:])


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise TypeError or ValueError for what slices and views below would hide from ``flash_attention``."""
    for name, x in zip(NAMES, (query, key, value), strict=True):
        check_dense(**{name: x})
        if x.dim() < 2:
            raise ValueError(f"{name} must have at least the dimensions [N, d], got shape {list(x.shape)}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value must have one length, got {key.shape[-2]} and {value.shape[-2]}")


def mask_options(name: str, mask: torch.Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the options of ``flash_attention`` for a mask that is broadcastable to a shape [..., H, Nq, Nk].

    Raises TypeError or ValueError, under the name of the argument, for another mask.
    """
    if not isinstance(mask, torch.Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(f"{name} must be a boolean or floating-point tensor, got {kind_of(mask)}")
    check_dense(**{name: mask})
    if mask.is_floating_point():
        check_values(f"{name} must hold finite numbers of float32, or -inf", mask)
    fits = all(size in (1, whole) for size, whole in zip(mask.shape[::-1], shape[::-1], strict=False))
    if not fits or not 2 <= mask.dim() <= len(shape):
        raise ValueError(
            f"{name} must have at least the dimensions [Nq, Nk] and be broadcastable to {list(shape)}, "
            f"got {list(mask.shape)}"
        )
    if mask.dim() > 4:  # the kernels have one dimension of batches
        mask = mask.expand(*shape[:-3], *mask.shape[-3:]).flatten(0, -4)
    return {"mask": masks.dense(mask)} if mask.dtype == torch.bool else {"score": scores.bias(mask)}


def _with_four_dimensions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[Any, ...]:
    """Return the tensors as [B, H, N, d], and the dimensions of the result before its last two."""
    tensors, own = (query, key, value), 3 if enable_gqa else 2  # the last dimensions, which do not broadcast
    if min(tensor.dim() for tensor in tensors) < own:
        found = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"with enable_gqa, query, key and value need at least the dimensions [H, N, d], got {found}")
    leading = _leading([tensor.shape[:-own] for tensor in tensors])
    expanded = [tensor.expand(*leading, *tensor.shape[-own:]) for tensor in tensors]
    batch = expanded[0].shape[:-2]
    while expanded[0].dim() < 4:
        expanded = [tensor[None] for tensor in expanded]
    return *(tensor.flatten(0, -4) for tensor in expanded), batch


def _leading(shapes: list[torch.Size]) -> torch.Size:
    """Return the shape to which the leading dimensions of query, key and value broadcast, or raise ValueError."""
    if shapes[0] == shapes[1] == shapes[2]:
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in zip(NAMES, shapes, strict=True))
        rule = "must broadcast (or pass enable_gqa=True where query heads share key/value heads)"
        raise ValueError(f"the leading dimensions of query, key and value {rule}, got {found}") from None


class FlashAttention(nn.Module):
    """Multi-head attention: project to queries, keys and values, attend, project back.

    Args:
        d_model: width of the input and the output; each head has d_model / num_heads columns.
        num_heads: query heads.
        num_kv_heads: key/value heads, a divisor of num_heads, which the query heads share; num_heads if None.
        causal: position i sees positions up to i.
        bias: whether the projections have one.
        attention: the function (Q, K, V, *, causal) -> O on [B, H, N, d] that attends; another one may take its place.
        device, dtype: of the parameters; a dtype of floating-point numbers.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        causal: bool = False,
        bias: bool = False,
        attention: Callable[..., torch.Tensor] = flash_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        sizes = {"d_model": d_model, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
        d_model, num_heads, num_kv_heads = (check_whole(name, size) for name, size in sizes.items())
        if d_model % num_heads or num_heads % num_kv_heads:
            found = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ValueError(f"num_heads must divide d_model and be a multiple of num_kv_heads, got {found}")
        check_flag("causal", causal)
        check_flag("bias", bias)
        if not callable(attention):
            raise TypeError(f"attention must be a function (Q, K, V, *, causal) -> O, got {shown(attention)}")
        if not (dtype is None or isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating-point torch.dtype or None, got {shown(dtype)}")
        device = None if device is None else check_place(device)
        self.num_heads, self.num_kv_heads, self.causal, self.attention = num_heads, num_kv_heads, causal, attention
        d = d_model // num_heads
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(d_model, num_heads * d, **options)
        self.k_proj = nn.Linear(d_model, num_kv_heads * d, **options)
        self.v_proj = nn.Linear(d_model, num_kv_heads * d, **options)
        self.o_proj = nn.Linear(num_heads * d, d_model, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within each of B texts: x [B, N, d_model], and the result has the same shape.

        Raises TypeError for an x that is no dense tensor of the parameters' dtype (of any floating-point dtype under
        autocast), ValueError for other dimensions of x, or of what ``attention`` returns.
        """
        check_dense(x=x)
        if not x.is_floating_point():
            raise TypeError(f"x must have a floating-point dtype, got {x.dtype}")
        own = self.q_proj.weight
        plain = type(self.q_proj) is nn.Linear and type(own) is nn.Parameter  # other modules may convert their input
        if plain and own.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"x must have the dtype of the parameters, {own.dtype}, got {x.dtype}")
        if x.dim() != 3 or x.shape[2] != self.q_proj.in_features:
            raise ValueError(f"x must have the dimensions [B, N, {self.q_proj.in_features}], got {list(x.shape)}")
        Q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, N, d]
        K = self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # [B, Hk, N, d]
        V = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # [B, Hk, N, d]
        O = self.attention(Q, K, V, causal=self.causal)  # [B, H, N, d]
        if not isinstance(O, torch.Tensor) or O.shape != Q.shape:
            raise ValueError(f"attention must return O [B, H, N, d] = {list(Q.shape)}, got {shown(O)}")
        return self.o_proj(O.transpose(1, 2).flatten(2))
