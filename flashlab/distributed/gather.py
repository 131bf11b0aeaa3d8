"""All-gather attention: every rank gets all keys and values first, then computes with its own queries.

It moves the same bytes as a ring, before it computes instead of meanwhile, and holds all N keys while it does. In
return there is one call of the kernel for each run of queries, and nothing to merge.

Source: Llama 3, arXiv 2407.21783, section 3.3.2.
"""

import torch
from torch import Tensor

from flashlab.distributed import compute
from flashlab.distributed.shards import together
from flashlab.distributed.state import State
from flashlab.distributed.task import Task, prepare
from flashlab.distributed.wire import Wire


def gather_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group=None,
    placement: str = "zigzag",
    causal: bool = False,
    mask=None,
    documents=None,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    timeout: float = 60.0,
    record: list | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute what ``ring_attention`` computes, from the same arguments, after all keys and values have arrived.

    The placement is "contiguous" or "zigzag": a rank's queries must be runs of neighbours.
    """
    if placement == "striped":
        raise ValueError("all keys in one piece need queries in runs of neighbours: the placement contiguous or zigzag")
    wire = Wire(group, timeout=timeout, record=record)
    dv = v.shape[-1] if isinstance(v, Tensor) and v.ndim else None
    q, k, v, task = prepare("gather", q, k, v, wire, placement, causal, mask, documents, scale, kernel)
    O, lse = _Gather.apply(q, k, v, wire, task)
    O = O[..., :dv]
    return (O, lse) if return_lse else O


class _Gather(torch.autograd.Function):
    """One step for autograd, which keeps the rank's own tokens and gathers the others' again."""

    @staticmethod
    def forward(ctx, q, k, v, wire, task):
        k_all, v_all = _gather("forward", k, v, wire, task)
        state = State(q, v.shape[3])
        compute.attend(state, q, k_all, v_all, _blocks("forward", wire, task), task.scale, task.kernel)
        O, lse = state.finish()
        ctx.save_for_backward(q, k, v, O, lse)
        ctx.wire, ctx.task = wire, task
        ctx.mark_non_differentiable(lse)
        return O, lse

    @staticmethod
    @compute.first_derivative
    def backward(ctx, dO, _):
        (q, k, v, O, lse), wire, task = ctx.saved_tensors, ctx.wire, ctx.task
        k_all, v_all = _gather("backward", k, v, wire, task)
        wide = torch.promote_types(q.dtype, torch.float32)
        gradients = compute.Gradients(dO, q, O, lse, task.scale, task.kernel)
        totals = [torch.zeros_like(x, dtype=wide) for x in (k_all, v_all)]  # dK, dV
        compute.add_up(totals, gradients.of(k_all, v_all, _blocks("backward", wire, task)))
        dk, dv = (_add_up(x, wire, task) for x in totals)
        return gradients.finish(), dk.to(k.dtype), dv.to(v.dtype), None, None


def _blocks(what, wire: Wire, task: Task):
    """Return the blocks of this rank's queries and all keys."""
    blocks = task.blocks(task.placement[wire.rank], task.whole)
    wire.log("compute", what, 0, wire.rank, sum(block.pairs for block in blocks))
    return blocks


def _gather(what, k, v, wire, task):
    """Return K [B, Hk, N, d] and V [B, Hk, N, dv] in the order of positions."""
    wire.log("send", f"{what} KV", 0, wire.rank, (wire.size - 1) * (k.nbytes + v.nbytes))
    return [together(x, wire, task.placement, 2) for x in (k, v)]


def _add_up(x, wire, task):
    """Return the sum over the ranks of their x [B, Hk, N, width], at this rank's tokens: [B, Hk, n, width]."""
    parts = [torch.cat([x[:, :, run.start : run.stop] for run in runs], 2) for runs in task.placement]
    own = parts[wire.rank]  # [B, Hk, n, width]
    wire.log("send", "backward dKV", 0, wire.rank, x.nbytes - own.nbytes)
    came = wire.exchange(parts, [own.numel()] * wire.size)
    return torch.stack(came).sum(0).view_as(own)
