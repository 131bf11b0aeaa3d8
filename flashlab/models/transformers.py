"""``flash_attention`` as an implementation of attention for the models of Hugging Face transformers.

    from flashlab.models.transformers import register
    register("lab_attention")
    model.set_attn_implementation("lab_attention")

Supported: causal and full attention, sliding windows, packed and padded batches, every other mask that transformers can
write out, masks of numbers that are added to the scores, soft caps, sinks as the option ``s_aux``, dropout in training,
and caches. Refused with NotImplementedError: the options of layers in ``CANNOT``, and in a layer that passes no mask, a
window that is not causal.

A layer uses the mask that the model built, as with ``attn_implementation="eager"``, and not what the layer itself says
of causality and windows. Causal masks, windows and padding are not written out as [Nq, Nk] if the queries are the last
positions and padding has a value for each key, unless the model itself or ``torch.compile`` reads the mask. Other masks
are written out, by transformers. A query that sees no key, such as padding on the left, has O = 0, as with ``"sdpa"``;
``"eager"`` averages all values. A model that lets padding flow into other tokens, such as BLT, therefore computes as
with ``"sdpa"``.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from flashlab.kernels import flash_attention, masks, scores
from flashlab.kernels.problem import check, check_sinks, scale_of
from flashlab.machine.arguments import check_flag, check_number, check_whole, shown
from flashlab.models.modules import mask_options

CANNOT = (  # options of layers that change the scores, hide some, or ask for them
    "sinks", "position_bias", "head_mask", "score_mod", "output_attentions", "cache",
    "indices", "block_indices", "cu_seq_lens_q", "cu_seq_lens_k",
)  # fmt: skip


def register(name: str = "lab_attention") -> None:
    """Make ``attn_implementation=name`` mean ``flash_attention`` in models of transformers.

    Raises ImportError if transformers is not installed, and ValueError for the name of an attention of transformers,
    or one that contains "flash": transformers takes such names for packages of its own.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a text, got {type(name).__name__}")
    if not name:
        raise ValueError("name must not be empty, got ''")
    if "flash" in name:
        raise ValueError(f'transformers reserves names that contain "flash": choose another one than {name!r}')
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError("Hugging Face transformers is not installed: pip install transformers") from error
    theirs = getattr(AttentionInterface().get(name), "__module__", "").startswith("transformers.")
    if theirs or name == "eager":
        raise ValueError(f"transformers has an attention of its own called {name!r}: choose another name")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


class Mask(torch.Tensor):
    """The mask [B, 1, Nq, Nk] of a model: ``rule`` for ``attend``, and numbers for a model that reads them itself.

    It has the shape and the dtype of transformers' own mask for ``"eager"``, which every model understands: numbers to
    add to the scores. They are written out when an operation of torch needs them, not for the shape, the dtype or
    ``attend``. From then on rule is None, because the model may have changed them.
    """

    @staticmethod
    def of(
        rule: masks.Window | masks.Rule,
        write: Callable[[], torch.Tensor],
        shape: tuple[int, ...],
        dtype: Any,
        device: Any,
    ) -> "Mask":
        """Return a mask of a shape [B, 1, Nq, Nk]. write: () -> its numbers."""
        unread = torch.full((), torch.nan, dtype=dtype, device=device).expand(shape)  # [B, 1, Nq, Nk]
        mask = unread.as_subclass(Mask)
        mask.rule, mask._write, mask._numbers = rule, write, None
        return mask

    def numbers(self) -> torch.Tensor:
        """Return the numbers to add to the scores, [B, 1, Nq, Nk]."""
        if self.rule is not None:
            self.rule, self._numbers = None, self._write()
        return self._numbers

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _OF_SHAPE or function.__name__ == "__get__":
            found = super().__torch_function__(function, types, args, kwargs or {})
            if not isinstance(found, torch.Tensor):  # the shape, or a property such as dtype
                return found
        return function(*_plain(args), **_plain(kwargs or {}))


_OF_SHAPE = {torch.Tensor.dim, torch.Tensor.size, torch.Tensor.stride, torch.Tensor.__len__}


def _plain(x: Any) -> Any:
    """Return an argument of an operation with plain tensors in place of masks."""
    if isinstance(x, Mask):
        return x.numbers()
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    return type(x)(map(_plain, x)) if type(x) in (list, tuple) else x


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention as a layer of transformers calls it.

    Args:
        module: the layer; ``module.is_causal`` is read only if attention_mask and is_causal are None.
        query: [B, H, Nq, d]; key: [B, Hk, Nk, d]; value: [B, Hk, Nk, dv].
        attention_mask: a ``Mask``, or a tensor [B or 1, H or 1, Nq or 1, Nk or 1]: boolean, True where a key is seen,
            or numbers to add to the scores. None: the layer says by is_causal and sliding_window what is seen.
        is_causal: read only if attention_mask is None.
        options: sliding_window, read only if attention_mask is None; softcap; s_aux, the sinks [H]. Others are ignored
            unless ``CANNOT`` names them.

    Returns:
        (O [B, Nq, H, dv], None): no weights.

    Raises:
        NotImplementedError: an option in ``CANNOT``, or no mask and a window in a layer that is not causal.
        ValueError: a mask of other dimensions, or several queries, no mask, and no is_causal of the call or the layer.
    """
    check(query, key, value, names=("query", "key", "value"))
    if is_causal is not None:
        check_flag("is_causal", is_causal)
    refused = [name for name in CANNOT if not (options.get(name) is None or options[name] is False)]
    if refused:
        raise NotImplementedError(f"flashlab's attention does not support: {', '.join(refused)}")
    H, Nq, Nk = query.shape[1], query.shape[2], key.shape[2]
    seen, added = _parts(attention_mask, (len(query), H, Nq, Nk))
    if seen is None:
        seen = _of_layer(module, is_causal, options.get("sliding_window"), Nq, Nk)
    cap, sinks = options.get("softcap"), check_sinks(options.get("s_aux"), H, query.device, "s_aux")
    steps = () if cap is None else (scores.softcap(check_number("softcap", cap)),)
    scale = scale_of(scaling, query.shape[3], "scaling")
    O = flash_attention(
        query, key, value, mask=seen, score=(*steps, *added) or None, sinks=sinks, dropout=dropout, scale=scale
    )  # [B, H, Nq, dv]
    return O.transpose(1, 2).contiguous(), None


def _parts(mask: torch.Tensor | None, shape: tuple[int, ...]) -> tuple[Any, tuple]:
    """Return the mask for ``flash_attention``, None if there is none, and the steps for the scores."""
    if mask is None:
        return None, ()
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"attention_mask must be a tensor [B, H, Nq, Nk] or None, got {shown(mask)}")
    if mask.dim() != 4:
        raise ValueError(f"attention_mask must have the dimensions [B, H, Nq, Nk], got shape {list(mask.shape)}")
    if isinstance(mask, Mask):
        if mask.rule is not None and mask.shape[2:] == shape[2:]:
            return mask.rule, ()
        mask = mask.numbers()
    options = mask_options("attention_mask", mask, shape)
    return options.get("mask", masks.full()), (options["score"],) if "score" in options else ()


def _of_layer(module: torch.nn.Module, is_causal: bool | None, sliding_window: int | None, Nq: int, Nk: int) -> Any:
    """Return the mask that a layer without ``attention_mask`` describes."""
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None and Nq > 1:
        raise ValueError(f"{type(module).__name__} must pass attention_mask or is_causal: it passed neither")
    narrow = sliding_window is not None and check_whole("sliding_window", sliding_window) < Nk
    if narrow and not causal:
        raise NotImplementedError(
            "flashlab's attention does not support: a sliding window that is not causal, without attention_mask"
        )
    return masks.full() if not causal else _window(sliding_window, 0) if narrow else masks.causal()


def mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Any = None,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    **options: Any,
) -> Mask:
    """Return the mask that a model of transformers asks for before its layers run, [B, 1, q_length, kv_length].

    It says what each query sees: is_causal and sliding_window of the layers are ignored. Its rule is arithmetic for
    full attention, and for causal attention and windows if the queries are the last positions; padding then adds a
    boolean tensor. Otherwise, or if padding ends before the keys, the rule is a boolean tensor.
    """
    from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "device": device}
    options |= {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
    options |= {"mask_function": function, "attention_mask": attention_mask, "batch_size": batch_size}
    rule, end = _rule(function), kv_offset + kv_length
    padded = attention_mask is not None and not attention_mask.all()
    last = rule == masks.full() or int(q_offset) + q_length == end
    if rule is None or not last or (padded and attention_mask.shape[1] < end):
        rule = masks.dense(sdpa_mask(**options))
    elif padded:
        rule = rule & masks.dense(attention_mask[:, None, None, kv_offset:end].bool())
    shape = batch_size, 1, q_length, kv_length
    return Mask.of(rule, functools.partial(eager_mask, dtype=dtype, **options), shape, dtype, device)


def _rule(function: Any) -> Any:
    """Return the mask of a mask function of transformers; None if it is none of causal or full attention or windows."""
    from transformers import masking_utils as theirs

    if function is theirs.causal_mask_function:
        return masks.causal()
    if function is theirs.bidirectional_mask_function:
        return masks.full()
    code: Any = getattr(function, "__code__", None)
    inside: Any = getattr(function, "__closure__", None)
    if code is theirs.and_masks().__code__:
        parts = [_rule(part) for part in inside[0].cell_contents]
        return None if None in parts else functools.reduce(operator.and_, parts)
    if code is theirs.sliding_window_overlay(1).__code__:
        return _window(inside[0].cell_contents, math.inf)
    if code is theirs.sliding_window_bidirectional_overlay(1).__code__:
        return masks.window(inside[0].cell_contents, inside[0].cell_contents)
    return None


def _window(W: Any, right: float) -> Any:
    """Return the mask of a window as transformers counts it: W keys up to the query's own key, and ``right`` more."""
    check_whole("sliding_window", W)  # with 0, no query would see a key
    return masks.window(W - 1, right)
