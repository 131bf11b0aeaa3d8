"""Attention where models expect it: torch's function, a module, and an implementation for Hugging Face transformers.

All three call ``flashlab.kernels.flash_attention``. What its kernels cannot do (masks other than causal, dropout) is
refused in a sentence, never computed in some slower way.
"""

import torch
from torch import nn

from flashlab.kernels import flash_attention


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """``torch.nn.functional.scaled_dot_product_attention``, with its signature and meaning.

    Args:
        query: [..., H, Nq, d]; key: [..., Hk, Nk, d]; value: [..., Hk, Nk, dv], of float16, bfloat16 or float32.
            Leading dimensions broadcast, and there may be none.
        attn_mask: must be None. dropout_p: must be 0.
        is_causal: query i sees keys j <= i, aligned at the upper left, as in torch. ``flash_attention`` aligns at the
            lower right; the two differ where Nq and Nk do.
        scale: factor on the scores, 1/sqrt(d) if None.
        enable_gqa: the H query heads share Hk key/value heads, H a multiple of Hk.

    Returns:
        [..., H, Nq, dv] in the dtype of query.

    Raises:
        NotImplementedError: attn_mask or dropout_p is given.
        TypeError, ValueError: dtypes, devices or shapes that do not match.
    """
    if attn_mask is not None:
        raise NotImplementedError(
            "attn_mask is not supported: these kernels know the causal mask only (is_causal=True)"
        )
    if dropout_p != 0:
        raise NotImplementedError(f"dropout is not supported: expected dropout_p=0, got {dropout_p}")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError("query, key and value must have at least the dimensions [N, d]")
    query, key, value, batch = _with_four_dimensions(query, key, value, enable_gqa)
    Nq, Nk = query.shape[2], key.shape[2]
    if is_causal and Nq != Nk:  # only the square from the upper left corner is causal: keys beyond it are never seen
        N = min(Nq, Nk)
        O = flash_attention(query[:, :, :N], key[:, :, :N], value[:, :, :N], causal=True, scale=scale)
        if Nq > Nk:  # and queries beyond it see every key
            O = torch.cat([O, flash_attention(query[:, :, N:], key, value, scale=scale)], 2)  # [B, H, Nq, dv]
    else:
        O = flash_attention(query, key, value, causal=is_causal, scale=scale)  # [B, H, Nq, dv]
    return O.reshape(*batch, *O.shape[-2:])


def _with_four_dimensions(query, key, value, enable_gqa):
    """The tensors as [B, H, N, d], and the dimensions of the result before its last two."""
    tensors, own = (query, key, value), 3 if enable_gqa else 2  # the last dimensions, which do not broadcast
    if min(tensor.dim() for tensor in tensors) < own:
        raise ValueError("with enable_gqa, query, key and value must have at least the dimensions [H, N, d]")
    leading = torch.broadcast_shapes(*(tensor.shape[:-own] for tensor in tensors))
    expanded = [tensor.expand(*leading, *tensor.shape[-own:]) for tensor in tensors]
    batch = expanded[0].shape[:-2]
    while expanded[0].dim() < 4:
        expanded = [tensor[None] for tensor in expanded]
    return *(tensor.flatten(0, -4) for tensor in expanded), batch


class FlashAttention(nn.Module):
    """Multi-head attention: project to queries, keys and values, attend, project back.

    Args:
        d_model: width of the input and the output; each head has d_model / num_heads of it.
        num_heads: query heads.
        num_kv_heads: key/value heads, a divisor of num_heads, which share them out; num_heads if None.
        causal: position i sees positions up to i.
        bias: whether the projections have one.
        attention: the function (Q, K, V, *, causal) -> O on [B, H, N, d] that is used, to try another one in its place.
        device, dtype: of the parameters.

    Raises:
        ValueError: head counts that do not divide.
    """

    def __init__(
        self, d_model, num_heads, num_kv_heads=None, *, causal=False, bias=False, attention=flash_attention,
        device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if d_model % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                "num_heads must divide d_model and be a multiple of num_kv_heads, "
                f"got d_model={d_model}, num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        self.num_heads, self.num_kv_heads, self.causal, self.attention = num_heads, num_kv_heads, causal, attention
        d = d_model // num_heads
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(d_model, num_heads * d, **options)
        self.k_proj = nn.Linear(d_model, num_kv_heads * d, **options)
        self.v_proj = nn.Linear(d_model, num_kv_heads * d, **options)
        self.o_proj = nn.Linear(num_heads * d, d_model, **options)

    def forward(self, x):
        """x: [B, N, d_model]. Returns the same shape."""
        Q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, N, d]
        K = self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # [B, Hk, N, d]
        V = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # [B, Hk, N, d]
        O = self.attention(Q, K, V, causal=self.causal)  # [B, H, N, d]
        return self.o_proj(O.transpose(1, 2).flatten(2))


def register_with_transformers(name="lab_attention"):
    """Make ``attn_implementation=name`` mean these kernels, in models of Hugging Face transformers.

    Causal models and full attention work, caches that grow included. Padding, packed or sliding-window masks, static
    caches, dropout in training and additions to the scores raise NotImplementedError as they are met. The name must
    not contain "flash": transformers takes such names for packages of its own.
    """
    if "flash" in name:
        raise ValueError(f'transformers keeps names with "flash" in them to itself: choose another one than {name!r}')
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError("Hugging Face transformers is not installed: pip install transformers") from error
    AttentionInterface.register(name, _attention_of_transformers)
    AttentionMaskInterface.register(name, _mask_of_transformers)


def _attention_of_transformers(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **options
):
    """What a model calls: query [B, H, Nq, d], key, value [B, Hk, Nk, d]. Returns ([B, Nq, H, d], no weights)."""
    refused = [
        o for o in ("softcap", "s_aux", "position_bias", "output_attentions") if options.get(o) not in (None, False)
    ]
    if attention_mask is not None or dropout or refused:
        found = ["an attention mask"] * (attention_mask is not None) + [f"dropout={dropout}"] * bool(dropout) + refused
        raise NotImplementedError(f"flashlab's attention knows the causal mask only, but was given {', '.join(found)}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # With a cache the queries are the last positions: the causal mask aligned at the lower right is the right one.
    O = flash_attention(query, key, value, causal=causal, scale=scaling)  # [B, H, Nq, d]
    return O.transpose(1, 2).contiguous(), None


def _mask_of_transformers(
    *, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **_
):
    """What transformers calls before the layers, to build a mask: None is built, and what would need one is refused."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if mask_function not in (None, causal_mask_function, bidirectional_mask_function):
        raise NotImplementedError("flashlab's attention knows causal and full masks: not packed or sliding-window ones")
    if attention_mask is not None and not attention_mask.all():
        raise NotImplementedError("flashlab's attention knows no padding: give sequences of one length")
    if mask_function is not bidirectional_mask_function and q_offset + q_length != kv_offset + kv_length:
        raise NotImplementedError(
            "flashlab's attention takes the queries to be the last positions, but "
            f"{q_length} queries from {q_offset} on meet keys {kv_offset} to {kv_offset + kv_length - 1}: "
            "is the cache a static one?"
        )
