"""Backward passes that refuse a second derivative, in autograd and under ``torch.func``."""

import torch

TWICE = "attention has first derivatives only: the gradients of flash_attention cannot be differentiated again"


def differentiate_once(gradients, ctx, do, dlse):
    """Return the gradients of an attention whose outputs are O and lse, for the ``backward`` of an autograd.Function.

    gradients: a function (ctx, dO, dlse, *saved) that returns one gradient per input.
    do, dlse: gradients of O [B, H, Nq, dv] and lse [B, H, Nq]; None where an output is not used.
    O is the first of the saved tensors.

    ``once_differentiable`` does not suffice: it refuses a second derivative with respect to dO and dlse only.
    """
    if do is None and dlse is None:
        return (None,) * len(ctx.needs_input_grad)
    saved = ctx.saved_tensors
    do = torch.zeros_like(saved[0]) if do is None else do
    if torch.is_grad_enabled():
        return _Gradients.apply(gradients, ctx, do, dlse, *saved)
    return gradients(ctx, do, dlse, *saved)


def refuse(ctx, *_):
    """Raise: the derivative of a backward pass, backward or forward."""
    raise NotImplementedError(TWICE)


class _Gradients(torch.autograd.Function):
    """A backward pass as one step for autograd, whose own derivative raises."""

    generate_vmap_rule = True  # for ``torch.func.jacrev``: one step per output

    @staticmethod
    def forward(gradients, ctx, *tensors):
        return gradients(ctx, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save nothing."""

    backward = staticmethod(refuse)
    jvp = staticmethod(refuse)
