"""A function for models refuses a wrong argument in one sentence, which names the argument as the caller does."""

import math
import re

import pytest
import torch

pytest.importorskip("flashlab.models.modules", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE, INTERPRETED  # noqa: E402
from flashlab.models import kv_cache, needle, plain, saved, transformers, writing  # noqa: E402
from flashlab.models.modules import FlashAttention, scaled_dot_product_attention  # noqa: E402
from tests.tools.refused import assert_refused  # noqa: E402

QKV = {name: torch.randn(1, 2, 5, 16, device=DEVICE) for name in ("query", "key", "value")}
ATTENTIONS = {
    "sdpa": lambda **tensors: scaled_dot_product_attention(**tensors),
    "transformers": lambda **tensors: transformers.attend(
        torch.nn.Identity(), **tensors, attention_mask=None, is_causal=True
    ),
}
WRONG = {
    "another dtype": (lambda x: x.double(), "{} torch.float64"),
    "integers": (lambda x: x.int(), "{} torch.int32"),
    "another device": (lambda x: x.to("meta"), "{} on meta"),
    "no tensor": (lambda x: x.cpu().numpy(), "{} must be a torch tensor, got ndarray"),
    "no dimensions": (lambda x: x[0, 0, 0], "{} must have "),
    "three heads": (lambda x: x[:, [0, 1, 0]], ", got "),
    "wide heads": (lambda x: torch.cat([x] * 20, -1), ", got "),
}


@pytest.mark.parametrize("name", QKV)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tensors_are_named_as_the_caller_names_them(attention, wrong, name):
    change, sentence = WRONG[wrong]
    with pytest.raises((TypeError, ValueError)) as error:
        ATTENTIONS[attention](**QKV | {name: change(QKV[name])})
    message = str(error.value)
    assert sentence.format(name) in message and not re.search(r"\b[qkv]\b|\n", message), message


def attend(**options):
    return transformers.attend(
        torch.nn.Identity(), *QKV.values(), **{"attention_mask": None, "is_causal": True} | options
    )


def sdpa(**options):
    return scaled_dot_product_attention(*QKV.values(), **options)


X = torch.ones(1, 2, 5, 16, device=DEVICE)
REFUSED = {  # sentence: call
    "x must have the dtype of the parameters, torch.float32, got torch.float16": lambda: FlashAttention(
        16, 2, device=DEVICE
    )(X[0].half()),
    "attention must return O [B, H, N, d] = [2, 2, 5, 8], got None": lambda: FlashAttention(
        16, 2, attention=lambda *_, causal: None, device=DEVICE
    )(X[0]),
    "dropout_p must be a probability below 1, got 1.5": lambda: sdpa(dropout_p=1.5),
    "dropout_p must be a number, got '0.1'": lambda: sdpa(dropout_p="0.1"),
    "scaling must be a number or None, got '1'": lambda: attend(scaling="1"),
    "softcap must be a finite number above 0, got -1": lambda: attend(softcap=-1),
    "s_aux must be [H] = [2]": lambda: attend(s_aux=torch.ones(3, device=DEVICE)),
    "s_aux must be a floating-point tensor [H], got list": lambda: attend(s_aux=[0.0, 0.0]),
    "sliding_window must be a whole number from 1 on, got '3'": lambda: attend(sliding_window="3"),
    "sliding_window must be a whole number from 1 on, got True": lambda: attend(sliding_window=True),
    "attention_mask must be a tensor [B, H, Nq, Nk] or None, got 'causal'": lambda: attend(attention_mask="causal"),
    "attention_mask must be a boolean or floating-point tensor, got torch.int32":
        lambda: attend(attention_mask=X.int()),
    "attention_mask must have at least the dimensions [Nq, Nk] and be broadcastable to [1, 2, 5, 5], got [1, 2, 5, 16]":
        lambda: attend(attention_mask=X),
    "name must not be empty, got ''": lambda: transformers.register(""),
    "device must be a device of torch, such as": lambda: FlashAttention(16, 2, device="gpu"),
    "dtype must be a floating-point torch.dtype or None, got 'float16'": lambda: FlashAttention(16, 2, dtype="float16"),
    "dtype must be a floating-point torch.dtype or None, got torch.int32":
        lambda: FlashAttention(16, 2, dtype=torch.int32),
    "past_K must have the heads and columns of K, got [1, 1, 5, 16] for [1, 2, 5, 16]":
        lambda: kv_cache.step(X, X, X, X[:, :1], X),
    "of one dtype, got [1, 2, 5, 16], [1, 2, 5, 16], [1, 2, 5, 16], [1, 2, 5, 16], [1, 2, 5, 16] of torch.float16 and":
        lambda: kv_cache.step(X, X, X, X.half(), X),
    "K and V [B, Hk, n, d]": lambda: kv_cache.step(X[:, :, :2], X, X, X, X),
    "past_V must be a torch tensor, got NoneType": lambda: kv_cache.step(X, X, X, X, None),
    "expected Q [B, H, Nq, d], K [B, H, Nk, d] and V [B, H, Nk, dv]":
        lambda: plain.dense(X, X, X[:, :, :3], causal=True),
    "got [1, 2, 5, 16], [1, 2, 5, 8] and [1, 2, 5, 16]": lambda: plain.reordered(1)(X, X[..., :8], X, causal=True),
    "Q, K and V must have one floating-point dtype, got torch.int32":
        lambda: plain.windowed(2)(*[X.int()] * 3, causal=True),
    "nbytes must be a function, got NoneType": lambda: saved.longest(100, None),
    "keys must be int64 [B, n] from 0 to 63, got torch.float32 [1, 4]":
        lambda: needle.train("linear", steps=0).answers(torch.ones(1, 4), torch.ones(1, 4)),
    "all with causal=True, got []": lambda: writing.Writer(torch.nn.Identity(), pages=4),
    "all with causal=True, got [False]": lambda: writing.Writer(FlashAttention(16, 2), pages=4),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_message_names_the_argument_and_what_was_passed(sentence):
    assert_refused(REFUSED[sentence], sentence)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU, values are not checked")
def test_masks_and_sinks_of_nan_are_refused():
    with pytest.raises(ValueError, match="attn_mask must hold finite numbers of float32, or -inf, got nan"):
        sdpa(attn_mask=torch.full((5, 5), math.nan))
    with pytest.raises(ValueError, match="sinks must be finite numbers of float32, or -inf, got nan"):
        attend(s_aux=torch.full((2,), math.nan))
