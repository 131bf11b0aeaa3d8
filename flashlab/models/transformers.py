"""``flash_attention`` as an implementation of attention for the models of Hugging Face transformers.

    from flashlab.models.transformers import register
    register("lab_attention")
    model.set_attn_implementation("lab_attention")

Causal models and full attention work, with sliding windows, soft caps, sinks, padded batches, dropout in training, and
caches. A causal mask, a window and padding are never written out as [Nq, Nk]; other masks are, by transformers.
"""

from collections.abc import Callable

import torch

from flashlab.kernels import flash_attention, masks, scores

CANNOT = (  # options of layers that change the scores, hide some, or ask for them
    "sinks", "position_bias", "head_mask", "score_mod", "output_attentions",
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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """Compute attention as a layer of transformers calls it.

    query: [B, H, Nq, d], key: [B, Hk, Nk, d], value: [B, Hk, Nk, dv]. attention_mask: as ``mask`` returns it, or
    numbers that are added to the scores, [B or 1, H or 1, Nq, Nk]. s_aux: sinks [H]. Returns (O [B, Nq, H, dv], None):
    no weights. Raises NotImplementedError for an option out of ``CANNOT``, or a window in a layer that is not causal.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    Nk = key.shape[2]
    narrow = sliding_window is not None and sliding_window < Nk
    refused = [name for name in CANNOT if not (options.get(name) is None or options[name] is False)]
    refused += ["a sliding window that is not causal"] * (narrow and not causal and attention_mask is None)
    if refused:
        raise NotImplementedError(f"flashlab's attention was given what it does not support: {', '.join(refused)}")
    # With a cache the queries are the last positions: masks aligned at the lower right are the right ones.
    seen = masks.full() if not causal else masks.window(sliding_window - 1) if narrow else masks.causal()
    steps = () if softcap is None else (scores.softcap(softcap),)
    if attention_mask is not None and attention_mask.dim() == 2:  # padding
        seen = seen & masks.dense(attention_mask[:, None, None, :Nk])
    elif attention_mask is not None:  # it says all of causality, windows and padding
        written = attention_mask[..., :Nk]
        seen, steps = (masks.dense(written), steps) if written.dtype == torch.bool else (
            masks.full(), (*steps, scores.bias(written)),
        )  # fmt: skip
    O = flash_attention(
        query, key, value, mask=seen, score=steps or None, sinks=s_aux, dropout=dropout, scale=scaling
    )  # [B, H, Nq, dv]
    return O.transpose(1, 2).contiguous(), None


def mask(
    *, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **options
) -> torch.Tensor | None:
    """Return the mask that transformers asks for before the layers run: as little of it as ``attend`` needs.

    Returns:
        None for a causal mask, a causal window, or none. For one of these with padding: boolean [B, kv_length], True
        where there is no padding. Otherwise boolean [B, 1, q_length, kv_length], True where a key is seen.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    last = int(q_offset) + q_length == kv_offset + kv_length  # the queries are the last positions
    known = function is bidirectional_mask_function or (
        last and (function is causal_mask_function or _is_window(function))
    )
    if not known:
        sizes = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(**sizes, mask_function=function, attention_mask=attention_mask, **options)
    if attention_mask is None or attention_mask.all():
        return None
    return attention_mask[:, kv_offset : kv_offset + kv_length].bool()


def _is_window(function: Callable) -> bool:
    """Return whether a mask function of transformers is that of a causal sliding window, and of nothing more."""
    from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

    if function.__code__ is not and_masks(causal_mask_function).__code__:
        return False
    (parts,) = (cell.cell_contents for cell in function.__closure__)
    window, *others = parts
    return window.__code__ is sliding_window_overlay(1).__code__ and others == [causal_mask_function]
