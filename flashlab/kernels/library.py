"""Calls with a window at most as operators of torch's library, ``torch.ops.flashlab``.

torch.compile, traces and fake tensors take each as one step. torch.func refuses operators with a derivative, so it has
``recorded.Transformed``.
"""

import torch

from flashlab.kernels import masks, tiles
from flashlab.kernels import plan as plans
from flashlab.kernels.checks import differentiate_once, refuse
from flashlab.kernels.passes import forward, gradients_of
from flashlab.kernels.plan import Plan
from flashlab.kernels.problem import Problem, check, scale_above_zero

_OPTIONS = "int? left, int? right, float scale, str? kernel"
torch.library.define("flashlab::attention", f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "flashlab::attention_backward",
    "(Tensor dO, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor rest, "
    f"{_OPTIONS}) -> (Tensor dQ, Tensor dK, Tensor dV)",
)


def _operator(q, k, v, left, right, scale, kernel):
    o, lse, rest = forward(q, k, v, _plan(q, k, v, left, right, scale, kernel))
    return o, lse, lse.new_empty(0) if rest is None else rest  # an operator returns tensors


def _operator_backward(do, dlse, q, k, v, o, lse, rest, left, right, scale, kernel):
    rest = rest if rest.numel() else None
    return gradients_of(do, dlse, q, k, v, o, lse, rest, _plan(q, k, v, left, right, scale, kernel))[:3]


def _plan(q, k, v, left, right, scale, kernel):
    """Return the ``Plan`` of an operator's arguments, or raise: the operators can be called without ``attend``."""
    mask = masks.Window(left, right)
    kind = plans.kind_of(q, k, v, False, mask, None, None, scale, kernel)
    if kind is not None and (plan := plans.find(kind, mask, q.device)) is not None:
        return plan
    check(q, k, v)
    if any(tiles.pad_rows(x) is not x for x in (q, k, v)):
        sizes = f"d = {q.shape[-1]} and dv = {v.shape[-1]} in {q.dtype}"
        raise ValueError(f"the operator needs rows of whole 16 bytes, got {sizes}: call flash_attention, which pads")
    plan = Plan(Problem.of(q, k, v, mask, scale_above_zero(scale, q.shape[-1])), kernel)
    mask.check(plan.problem)
    if kind is not None and all(tiles.ready(x) is x for x in (q, k, v)):
        plans.keep(kind, plan)
    return plan


def _shapes(q, k, v, left, right, scale, kernel):
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    natural = Problem.of(q, k, v, masks.full(), scale).natural
    return q.new_empty(*q.shape[:3], v.shape[3]), lse, torch.empty_like(lse) if natural else lse.new_empty(0)


def _shapes_backward(do, dlse, q, k, v, *others):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output):
    *qkv, left, right, scale, kernel = inputs
    ctx.options = left, right, scale, kernel
    ctx.save_for_backward(*output, *qkv)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dlse, _):
    return differentiate_once(_gradients_of_operator, ctx, do, dlse)


def _gradients_of_operator(ctx, do, dlse, o, lse, rest, q, k, v):
    return *torch.ops.flashlab.attention_backward(do, dlse, q, k, v, o, lse, rest, *ctx.options), None, None, None, None


torch.library.impl("flashlab::attention", "default", _operator)
torch.library.impl("flashlab::attention_backward", "default", _operator_backward)
torch.library.register_fake("flashlab::attention", _shapes)
torch.library.register_fake("flashlab::attention_backward", _shapes_backward)
torch.library.register_autograd("flashlab::attention", _differentiate, setup_context=_save)
torch.library.register_autograd("flashlab::attention_backward", refuse)

attention = torch.ops.flashlab.attention
