"""Ring attention: blocks of keys and values go round, and meet the queries of every rank.

In step s, rank r has the keys and values that belong to rank r - s. It sends them on, computes with them while the next
ones are under way, and merges what it gets. In the backward pass their gradients go round with them, one step behind,
and home at the end.

Source: Ring Attention, arXiv 2310.01889.
"""

import torch
from torch import Tensor

from flashlab.distributed import compute
from flashlab.distributed.state import State
from flashlab.distributed.task import Task, prepare
from flashlab.distributed.wire import Wire
from flashlab.machine.ranks import length


def ring_attention(
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
    """Compute attention over a sequence of which every rank of a group has n tokens, forward and backward.

    Args:
        q, k, v: this rank's tokens [B, H, n, d], [B, Hk, n, d], [B, Hk, n, dv], as ``shard`` cuts them; H is a multiple
            of Hk. float16, bfloat16, float32; in torch float64 too.
        group: a process group of torch.distributed; None for all processes.
        placement: "contiguous", "zigzag" or "striped", of ``machine.ranks``.
        causal: a query sees the keys at its own position and before.
        mask: ``causal()`` or ``window(left, right)`` of ``flashlab.kernels.masks`` or ``flashlab.reference.masks``.
        documents: places where packed texts begin, from 0 on, and N at the end: queries see their own text only. Each
            text that two ranks share is a call of the kernel.
        scale: factor on the scores, 1/sqrt(d) if None.
        return_lse: also return the log-sum-exp of each row of scores, in natural logarithms; not differentiable.
        kernel: as for ``flash_attention``; "torch" for torch's own operations, which None means on a CPU.
        timeout: seconds after which a rank on a CPU gives the others up. On a GPU the group's own timeout counts, and
            what the ranks are about to compute is compared in the first call of a kind only.
        record: a list that takes a ``wire.Event`` for each block computed and each tensor sent.

    Returns:
        O [B, H, n, dv] in the dtype of q, or (O, lse) with lse [B, H, n]. Outputs of blocks merge in float32 or better.

    Raises:
        TypeError, ValueError: an argument is not as described.
        GroupError: the ranks disagree about what to compute, one of them is gone, or there is no group.
    """
    wire = Wire(group, timeout=timeout, record=record)
    dv = v.shape[-1] if isinstance(v, Tensor) and v.ndim else None
    q, k, v, task = prepare("ring", q, k, v, wire, placement, causal, mask, documents, scale, kernel)
    O, lse = _Ring.apply(q, k, v, wire, task)
    O = O[..., :dv]
    return (O, lse) if return_lse else O


class _Ring(torch.autograd.Function):
    """One step for autograd. It keeps Q, K, V, O and lse of the rank's own tokens: nothing grows with the group."""

    @staticmethod
    def forward(ctx, q, k, v, wire, task):
        O, lse = forward(q, k, v, wire, task)
        ctx.save_for_backward(q, k, v, O, lse)
        ctx.wire, ctx.task = wire, task
        ctx.mark_non_differentiable(lse)
        return O, lse

    @staticmethod
    @compute.first_derivative
    def backward(ctx, dO, _):
        return *backward(dO, *ctx.saved_tensors, ctx.wire, ctx.task), None, None


def hops(wire: Wire, task: Task) -> list[int]:
    """Return whose keys this rank has in each step. Steps in which no rank sees any of them are left out."""
    P = wire.size
    needed = [s for s in range(P) if any(task.blocks(task.placement[r], task.placement[(r - s) % P]) for r in range(P))]
    return [(wire.rank - s) % P for s in range(max(needed, default=0) + 1)]


def forward(q, k, v, wire: Wire, task: Task):
    """Return O [B, H, n, dv] and lse [B, H, n] of this rank's queries and the keys of all ranks."""
    state, here, held = State(q, v.shape[3]), task.placement[wire.rank], (k.contiguous(), v.contiguous())
    owners = hops(wire, task)
    for step, owner in enumerate(owners):
        more = step + 1 < len(owners)
        if more:  # they leave before this rank computes, and the next ones travel while it does
            following = _pass_on(wire, "forward", "KV", step, owner, held, task.placement[owners[step + 1]])
        blocks = task.blocks(here, task.placement[owner])
        wire.log("compute", "forward", step, owner, sum(block.pairs for block in blocks))
        compute.attend(state, q, *held, blocks, task.scale, task.kernel)
        if more:
            held = following()
    return state.finish()


def backward(dO, q, k, v, O, lse, wire: Wire, task: Task):
    """Return dQ, dK and dV of this rank's tokens, given O and lse of all keys.

    What a rank adds to the gradients of its own keys stays there; those of others' keys travel on with them.
    """
    here, gradients = task.placement[wire.rank], compute.Gradients(dO, q, O, lse, task.scale, task.kernel)
    wide = torch.promote_types(q.dtype, torch.float32)
    owners, arriving = hops(wire, task), None
    held = own = k.contiguous(), v.contiguous()
    for step, owner in enumerate(owners):
        more = step + 1 < len(owners)
        if more:
            following = _pass_on(wire, "backward", "KV", step, owner, held, task.placement[owners[step + 1]])
        blocks = task.blocks(here, task.placement[owner])
        wire.log("compute", "backward", step, owner, sum(block.pairs for block in blocks))
        shares = gradients.of(*held, blocks)
        if step == 0:
            own_shares = shares
        else:  # with what the ranks before have found; at last it goes home, however far
            d_held = arriving() if arriving else [torch.zeros_like(x, dtype=wide) for x in held]
            compute.add_up(d_held, shares)
            to, distance = (task.placement[owners[step + 1]], 1) if more else (here, -step)
            arriving = _pass_on(wire, "backward", "dKV", step, owner, d_held, to, hops=distance)
        if more:
            held = following()
    dq = gradients.finish()
    dk, dv = arriving() if arriving else [torch.zeros_like(x, dtype=wide) for x in own]
    compute.add_up((dk, dv), own_shares)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _pass_on(wire, what, name, step, owner, tensors, following, hops=1):
    wire.log("send", f"{what} {name}", step, owner, sum(x.nbytes for x in tensors))
    return wire.pass_on(tensors, length(following), hops=hops)
