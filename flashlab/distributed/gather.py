"""All-gather attention: every rank gets all keys and values first, then computes with its own queries.

It moves the same bytes as a ring, but before it computes, and it holds all N keys. In return there is one kernel call
for each run of queries, and nothing to merge.

Source: Llama 3, arXiv 2407.21783, section 3.3.2.
"""

import torch

from flashlab.distributed import compute
from flashlab.distributed.shards import together
from flashlab.distributed.task import Task
from flashlab.distributed.wire import Wire


def forward(q, k, v, wire: Wire, task: Task):
    """Return O [B, H, n, dv] and lse [B, H, n] of this rank's queries, and the tensors to save.

    The saved tensors are of the rank's own tokens: the backward pass gathers those of the others again.
    """
    if any(run.step != 1 for run in task.placement[wire.rank]):
        raise ValueError('way "gather" needs contiguous runs of queries: use placement "contiguous" or "zigzag"')
    k_all, v_all = _gather("forward", k, v, wire, task)
    state = compute.State(q, v.shape[3])
    state.attend(q, k_all, v_all, _blocks("forward", wire, task), task)
    O, lse = state.finish()
    return O, lse, (q, k, v, O, lse)


def backward(dO, q, k, v, O, lse, wire: Wire, task: Task):
    """Return dQ, dK and dV of this rank's tokens, given its O and lse, which are of all keys."""
    k_all, v_all = _gather("backward", k, v, wire, task)
    gradients = task.gradients(dO, q, O, lse)
    dk, dv = (_add_up(x, wire, task) for x in gradients.sums(k_all, v_all, _blocks("backward", wire, task)))
    return gradients.finish(), dk.to(k.dtype), dv.to(v.dtype)


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
    received = wire.exchange(parts, [own.numel()] * wire.size)
    return torch.stack(received).sum(0).view_as(own)
