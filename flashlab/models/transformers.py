"""``flash_attention`` as an implementation of attention for the models of Hugging Face transformers.

    from flashlab.models.transformers import register
    register("lab_attention")
    model.set_attn_implementation("lab_attention")

Causal models and full attention work, with caches that grow. Padding, packed and sliding-window masks, static caches,
dropout in training and additions to the scores raise NotImplementedError as they are met.
"""

import torch

from flashlab.kernels import flash_attention

CANNOT = (  # options of layers that change the scores, hide some, or ask for them
    "softcap", "s_aux", "sinks", "position_bias", "head_mask", "score_mod", "output_attentions",
    "indices", "block_indices", "cu_seq_lens_q", "cu_seq_lens_k",
)  # fmt: skip


def register(name: str = "lab_attention") -> None:
    """Make ``attn_implementation=name`` mean ``flash_attention`` in models of transformers.

    Raises ImportError if transformers is not installed, and ValueError if the name contains "flash": transformers takes
    such names for packages of its own.
    """
    if "flash" in name:
        raise ValueError(f'transformers reserves names that contain "flash": choose another one than {name!r}')
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError("Hugging Face transformers is not installed: pip install transformers") from error
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """Compute attention as a layer of transformers calls it.

    query: [B, H, Nq, d], key: [B, Hk, Nk, d], value: [B, Hk, Nk, dv]. Returns (O [B, Nq, H, dv], None): no weights.
    Raises NotImplementedError for a mask, dropout, a window shorter than the keys, or an option out of ``CANNOT``.
    """
    refused = ["an attention mask"] * (attention_mask is not None) + [f"dropout={dropout}"] * bool(dropout)
    refused += ["a sliding window"] * (sliding_window is not None and sliding_window < key.shape[2])
    refused += [name for name in CANNOT if not (options.get(name) is None or options[name] is False)]
    if refused:
        raise NotImplementedError(
            f"flashlab's attention supports the causal mask only, but was given {', '.join(refused)}"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # With a cache the queries are the last positions: the causal mask aligned at the lower right is the right one.
    O = flash_attention(query, key, value, causal=causal, scale=scaling)  # [B, H, Nq, dv]
    return O.transpose(1, 2).contiguous(), None


def mask(*, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **_) -> None:
    """Build no mask, as transformers asks for one before the layers run; refuse what would need one."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if mask_function not in (None, causal_mask_function, bidirectional_mask_function):
        raise NotImplementedError(
            "flashlab's attention supports causal and full masks, not packed or sliding-window ones"
        )
    if attention_mask is not None and not attention_mask.all():
        raise NotImplementedError("flashlab's attention supports no padding: give sequences of one length")
    if mask_function is not bidirectional_mask_function and q_offset + q_length != kv_offset + kv_length:
        raise NotImplementedError(
            "flashlab's attention takes the queries to be the last positions, but "
            f"{q_length} queries from {q_offset} on meet keys {kv_offset} to {kv_offset + kv_length - 1}: "
            "is the cache a static one?"
        )
