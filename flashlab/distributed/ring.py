"""Ring attention: blocks of keys and values pass through all ranks.

In step s, rank r has the keys and values that belong to rank r - s. It sends them on, computes with them while the next
ones are under way, and merges the results. In the backward pass the gradients follow their keys and values one step
later, and return to their owner at the end. Memory for Q, K, V, O and lse does not grow with the group.

Source: Ring Attention, arXiv 2310.01889.
"""

import torch

from flashlab.distributed import compute
from flashlab.distributed.task import Task
from flashlab.distributed.wire import Wire
from flashlab.machine.ranks import length


def owners_by_step(wire: Wire, task: Task) -> list[int]:
    """Return the owner of the keys that this rank has in each step, up to the last step in which some rank sees any."""
    P = wire.size
    needed = [s for s in range(P) if any(task.blocks(task.placement[r], task.placement[(r - s) % P]) for r in range(P))]
    return [(wire.rank - s) % P for s in range(max(needed, default=0) + 1)]


def forward(q, k, v, wire: Wire, task: Task):
    """Return O [B, H, n, dv] and lse [B, H, n] of this rank's queries, and the tensors to save."""
    state, here, held = compute.State(q, v.shape[3]), task.placement[wire.rank], (k.contiguous(), v.contiguous())
    owners = owners_by_step(wire, task)
    for step, owner in enumerate(owners):
        more = step + 1 < len(owners)
        if more:  # send these keys first: the next ones arrive during the computation
            receive = _pass_on(wire, "forward", "KV", step, owner, held, task.placement[owners[step + 1]])
        blocks = task.blocks(here, task.placement[owner])
        wire.log("compute", "forward", step, owner, sum(block.pairs for block in blocks))
        state.attend(q, *held, blocks, task)
        if more:
            held = receive()
    O, lse = state.finish()
    return O, lse, (q, k, v, O, lse)


def backward(dO, q, k, v, O, lse, wire: Wire, task: Task):
    """Return dQ, dK and dV of this rank's tokens. O and lse are those of all keys.

    A rank keeps its shares in the gradients of its own keys. Its shares in those of other keys follow the keys.
    """
    here, gradients = task.placement[wire.rank], task.gradients(dO, q, O, lse)
    wide = torch.promote_types(q.dtype, torch.float32)
    owners, arriving = owners_by_step(wire, task), None
    held = own = k.contiguous(), v.contiguous()
    for step, owner in enumerate(owners):
        more = step + 1 < len(owners)
        if more:
            receive = _pass_on(wire, "backward", "KV", step, owner, held, task.placement[owners[step + 1]])
        blocks = task.blocks(here, task.placement[owner])
        wire.log("compute", "backward", step, owner, sum(block.pairs for block in blocks))
        shares = gradients.of(*held, blocks)
        if step == 0:
            own_shares = shares
        else:  # add the shares to the sum of earlier ranks; in the last step it goes to the keys' owner
            d_held = arriving() if arriving else [torch.zeros_like(x, dtype=wide) for x in held]
            compute.add_up(d_held, shares)
            to, distance = (task.placement[owners[step + 1]], 1) if more else (here, -step)
            arriving = _pass_on(wire, "backward", "dKV", step, owner, d_held, to, hops=distance)
        if more:
            held = receive()
    dq = gradients.finish()
    dk, dv = arriving() if arriving else [torch.zeros_like(x, dtype=wide) for x in own]
    compute.add_up((dk, dv), own_shares)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _pass_on(wire, what, name, step, owner, tensors, next_runs, hops=1):
    wire.log("send", f"{what} {name}", step, owner, sum(x.nbytes for x in tensors))
    return wire.pass_on(tensors, length(next_runs), hops=hops)
