"""``flash_attention``: the kernels as one differentiable torch operator."""

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from flashlab.kernels import DEVICE, tiles
from flashlab.kernels.configurations import configuration
from flashlab.kernels.portable import backward, forward

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256  # columns of a head
LONGEST = 65535  # programs of a grid along y or z


def flash_attention(q, k, v, *, causal=False, scale=None, return_lse=False, kernel=None):
    """Attention softmax(scale * Q K^T) V, exact, without a tensor of size Nq x Nk in the forward or the backward pass.

    Args:
        q: queries [B, H, Nq, d]; k: keys [B, Hk, Nk, d]; v: values [B, Hk, Nk, dv]. One dtype out of float16, bfloat16
            and float32, one device; d and dv from 1 to 256; H a multiple of Hk: query head h uses key/value head
            h // (H // Hk). Any strides; inputs whose rows do not start at multiples of 16 bytes, or whose last stride
            is not 1, are copied first.
        causal: query i sees keys j <= i + Nk - Nq, aligned at the lower right: the queries are the last ones.
        scale: factor on the scores, 1/sqrt(d) if None.
        return_lse: also return the log-sum-exp of each row of scores, in natural logarithms. Differentiable too.
        kernel: "portable" for the kernels in Triton; "hopper" for those in Gluon, on compute capability 9.0; None for
            what was measured to be faster: ``configuration("forward", q, k, v, causal)`` tells which, and why.

    Returns:
        O [B, H, Nq, dv] in the dtype of q, or (O, lse) with lse [B, H, Nq] in float32. A row that sees no key has
        O = 0, lse = -inf and no gradient. The same inputs give the same bits, gradients included, with one exception:
        the Hopper kernels add up dQ in an order that varies. Under ``torch.use_deterministic_algorithms(True)`` the
        portable ones make the gradients.

    Sums are kept in float32. Products of float32 inputs are true float32 products if
    ``torch.get_float32_matmul_precision()`` is "highest" (torch's default), and TF32 products otherwise.
    Under autocast, q, k and v are first cast to autocast's dtype.

    Raises:
        TypeError, ValueError: in one sentence, what was expected and what came.

    Source: FlashAttention-2, Algorithms 1 and 2.
    """
    if torch.is_autocast_enabled(DEVICE.type):  # dtypes may differ before it, not after; float64 is left as it is
        narrow = torch.get_autocast_dtype(DEVICE.type)
        q, k, v = (x.to(narrow) if getattr(x, "dtype", None) in DTYPES else x for x in (q, k, v))
    _check(q, k, v)
    if kernel not in (None, "portable", "hopper"):
        raise ValueError(f'kernel must be "portable", "hopper" or None, got {kernel!r}')
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}")
    if scale <= 0:  # the kernels take the maximum before they scale
        q, scale = q * math.copysign(bool(scale), scale), abs(scale) or 1.0
    dv = v.shape[-1]
    attend = torch.ops.flashlab.attention if torch.compiler.is_compiling() else _Attention.apply
    o, lse = attend(_pad_rows(q), _pad_rows(k), _pad_rows(v), causal, scale, kernel)
    o = o if o.shape[-1] == dv else o[..., :dv]
    return (o, lse) if return_lse else o


def _empty_outputs(q, k, v, causal, scale, kernel):
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_gradients(do, dlse, q, k, v, o, lse, causal, scale, kernel):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _attention(q, k, v, causal, scale, kernel):
    o, lse = _empty_outputs(q, k, v, causal, scale, kernel)
    if o.numel() == 0 or k.shape[2] == 0:
        return o.zero_(), lse.fill_(-math.inf)
    if (dim := _too_long(q)) is not None:
        parts = [
            _attention(*x, causal, scale, kernel) for x in zip(*(_parts(x, q, k, dim) for x in (q, k, v)), strict=True)
        ]
        return tuple(torch.cat(x, dim) for x in zip(*parts, strict=True))
    q, k, v = (tiles.ready(x) for x in (q, k, v))
    c = configuration("forward", q, k, v, causal, kernel)
    (_hopper().forward if c.implementation == "hopper" else forward).run(o, lse, q, k, v, causal, scale, c)
    return o, lse


def _attention_backward(do, dlse, q, k, v, o, lse, causal, scale, kernel):
    dq, dk, dv = _empty_gradients(do, dlse, q, k, v, o, lse, causal, scale, kernel)
    if o.numel() == 0 or k.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    if (dim := _too_long(q)) is not None:
        tensors = (_parts(x, q, k, dim) for x in (do, dlse, q, k, v, o, lse))
        parts = [_attention_backward(*x, causal, scale, kernel) for x in zip(*tensors, strict=False)]
        return tuple(torch.cat(x, dim) for x in zip(*parts, strict=True))
    q, k, v, o, do, lse = (tiles.ready(x) for x in (q, k, v, o, do, lse))
    choose = functools.partial(configuration, q=q, k=k, v=v, causal=causal)
    c = choose("backward", implementation=kernel)
    if c.implementation == "hopper":
        _hopper().backward.run(dq, dk, dv, do, dlse, q, k, v, o, lse, causal, scale, c, choose("row_constants"))
    else:
        backward.run(dq, dk, dv, do, dlse, q, k, v, o, lse, causal, scale, choose)
    return dq, dk, dv


def _hopper():
    """Imported where it is used: Gluon takes its time to load, and elsewhere nobody needs it."""
    from flashlab.kernels import hopper

    return hopper


def _too_long(q):
    """The dimension of batches or heads that has more entries than a grid has programs along y or z, if one has."""
    return next((dim for dim in (0, 1) if q.shape[dim] > LONGEST), None)


def _parts(x, q, k, dim):
    """x split along batches or heads, such that a part holds whole groups of at most LONGEST query heads."""
    if x is None:
        return itertools.repeat(None)
    group = q.shape[dim] // k.shape[dim]  # 1 along batches
    return x.split(LONGEST // group * (group if x.shape[dim] == q.shape[dim] else 1), dim)


def _save(ctx, inputs, output):
    *qkv, ctx.causal, ctx.scale, ctx.kernel = inputs
    ctx.save_for_backward(*qkv, *output)  # Q, K, V, O and lse: nothing of size Nq x Nk
    ctx.set_materialize_grads(False)


def _differentiate(gradients, ctx, do, dlse):
    if do is None and dlse is None:
        return (None,) * 6
    q, k, v, o, lse = ctx.saved_tensors
    do = torch.zeros_like(o) if do is None else do
    return *gradients(do, dlse, q, k, v, o, lse, ctx.causal, ctx.scale, ctx.kernel), None, None, None


class _Attention(torch.autograd.Function):
    """One step for autograd."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _attention(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        return _differentiate(_attention_backward, ctx, do, dlse)


# The same as operators of torch's, so that torch.compile takes each as one step too. Eager calls do without them.
torch.library.define(
    "flashlab::attention", "(Tensor q, Tensor k, Tensor v, bool causal, float scale, str? kernel) -> (Tensor, Tensor)"
)
torch.library.define(
    "flashlab::attention_backward",
    "(Tensor dO, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, float scale,"
    " str? kernel) -> (Tensor dQ, Tensor dK, Tensor dV)",
)
torch.library.impl("flashlab::attention", "default", _attention)
torch.library.impl("flashlab::attention_backward", "default", _attention_backward)
torch.library.register_fake("flashlab::attention", _empty_outputs)
torch.library.register_fake("flashlab::attention_backward", _empty_gradients)
torch.library.register_autograd(
    "flashlab::attention",
    functools.partial(_differentiate, torch.ops.flashlab.attention_backward),
    setup_context=_save,
)


def _check(q, k, v):
    named = {"q": q, "k": k, "v": v}
    for name, x in named.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ValueError(f"{name} must have dimensions [batch, heads, length, width], got shape {list(x.shape)}")
    if len({x.dtype for x in named.values()}) > 1 or q.dtype not in DTYPES:
        found = ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        raise TypeError(f"q, k and v must have one dtype out of float16, bfloat16 and float32, got {found}")
    if any(x.device.type != DEVICE.type for x in named.values()) or len({x.device for x in named.values()}) > 1:
        found = ", ".join(f"{name} on {x.device}" for name, x in named.items())
        raise ValueError(f"the kernels run on {DEVICE.type} here, and q, k and v must all be there, got {found}")
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is no GPU and Triton's interpreter is off: set TRITON_INTERPRET=1 and start again")
    B, H, Nq, d, Hk, Nk, dv = _sizes(q, k, v)
    if k.shape[0] != B or v.shape[0] != B or v.shape[1:3] != k.shape[1:3] or k.shape[3] != d:
        raise ValueError(
            "expected q [B, H, Nq, d], k [B, Hk, Nk, d] and v [B, Hk, Nk, dv], "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if H % Hk if Hk else H:
        raise ValueError(f"the {H} query heads must be a multiple of the key/value heads, of which there are {Hk}")
    if not (1 <= d <= WIDEST and 1 <= dv <= WIDEST):
        raise ValueError(f"head dimensions must lie between 1 and {WIDEST}, got d = {d} and dv = {dv}")


def _sizes(q, k, v):
    return *q.shape, *k.shape[1:3], v.shape[3]


def _pad_rows(x):
    """x with zero columns appended until a row is a multiple of 16 bytes. Zeros change no score, and O is cut."""
    missing = -x.shape[-1] % (16 // x.element_size())
    return F.pad(x, (0, missing)) if missing else x
