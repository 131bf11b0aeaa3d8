"""A call as one step of autograd (``Recorded``) or of ``torch.func`` (``Transformed``)."""

import torch

from flashlab.kernels.checks import check_gradient, differentiate_once
from flashlab.kernels.device import stepped_around
from flashlab.kernels.passes import forward, gradients_of


class Recorded(torch.autograd.Function):
    """A call as one step of autograd. torch needs a third of the time that it needs for ``Transformed``."""

    @staticmethod
    def forward(ctx, *inputs):
        """Return O, lse and the rest of lse. inputs: q, k, v, sinks, the tensors of scores, the plan, training."""
        *tensors, plan, training = inputs
        output = forward(*tensors[:3], plan, training)
        Recorded.save(ctx, inputs, output)
        return output

    @staticmethod
    def save(ctx, inputs, output):
        """Keep what the backward pass reads."""
        *tensors, ctx.plan, _ = inputs
        # Masks and score functions read their tensors again in the backward pass; autograd raises if they changed.
        ctx.save_for_backward(*output, *tensors, *ctx.plan.problem.mask.tensors)
        if output[2] is not None:
            ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)  # None instead of zeros where an output is not used

    @staticmethod
    def backward(ctx, do, dlse, _):
        """Return the gradient of each input."""
        return differentiate_once(_gradients, ctx, do, dlse)

    @staticmethod
    def jvp(ctx, *tangents):
        """Raise NotImplementedError."""
        raise NotImplementedError("flash_attention has no forward-mode derivative: use torch.func.grad or autograd")


class Transformed(Recorded):
    """A call as one step of ``torch.func``."""

    setup_context = Recorded.save

    @staticmethod
    def forward(*inputs):
        """Return what ``Recorded.forward`` does."""
        *tensors, plan, training = inputs
        return forward(*tensors[:3], plan, training)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        """Raise NotImplementedError."""
        raise NotImplementedError("flash_attention has no rule for torch.func.vmap: use its dimensions B and H instead")


@stepped_around("the backward pass of flash_attention, called from compiled code,")
def _gradients(ctx, do, dlse, o, lse, rest, q, k, v, sinks, *tensors):
    check_gradient(do)
    problem = ctx.plan.problem
    steps = [] if problem.score is None else problem.score.steps
    needs = iter(ctx.needs_input_grad[4:])
    learns = [any([next(needs) for _ in step.tensors]) for step in steps]
    sums = [step.sums(problem) if it else None for step, it in zip(steps, learns, strict=True)]
    *gradients, delta = gradients_of(do, dlse, q, k, v, o, lse, rest, ctx.plan, sums)
    dsinks = _gradient_of_sinks(sinks, lse, rest, delta) if ctx.needs_input_grad[3] else None
    others = [
        None if total is None else step.gradient(total).to(x.dtype)
        for step, total in zip(steps, sums, strict=True)
        for x in step.tensors
    ]
    return *gradients, dsinks, *others, None, None


def _gradient_of_sinks(sinks, lse, rest, delta):
    """Return the gradient of the sinks [H]: -sum over rows of e^(s - lse) * delta, delta [B, H, Nq_padded]."""
    power = sinks.float()[:, None] - lse  # [B, H, Nq]
    share = torch.exp(power if rest is None else power - rest).nan_to_num(0)  # [B, H, Nq]      nan: -inf - (-inf)
    return -(share * delta[..., : lse.shape[-1]]).sum((0, 2)).to(sinks.dtype)
