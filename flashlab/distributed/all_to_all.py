"""Attention by all-to-all: ranks exchange tokens for heads, compute whole heads, and exchange back.

Each rank gets all N tokens of H / P heads, so any attention for one processor can be used in between. A rank needs at
least one key/value head, so the group has at most as many ranks as there are key/value heads.

Source: DeepSpeed Ulysses, arXiv 2309.14509.
"""

from itertools import pairwise

import torch

from flashlab.distributed import compute
from flashlab.distributed.shards import arranged, order_of
from flashlab.distributed.task import Task
from flashlab.distributed.wire import Wire
from flashlab.machine.ranks import length


def forward(q, k, v, wire: Wire, task: Task):
    """Return O [B, H, n, dv] of this rank's queries, lse [B, H, n] or None, and the tensors to save.

    The saved tensors are whole heads of the whole sequence: H / P heads of N tokens. lse is sent only if the call
    returns it.
    """
    H = q.shape[1]
    if wire.size > task.Hk:
        raise ValueError(f"each of {wire.size} ranks needs a key/value head of its own, there are {task.Hk}")
    q, k, v = (_to_heads(x, wire, task, "forward QKV") for x in (q, k, v))  # [B, H / P, N, d], ...
    state = compute.State(q, v.shape[3])
    state.attend(q, k, v, _blocks("forward", wire, task), task)
    O, lse = state.finish()
    own_lse = None
    if task.return_lse:
        own_lse = _to_tokens(lse[..., None], H, wire, task, "forward lse")[..., 0]  # [B, H, n]
    return _to_tokens(O, H, wire, task, "forward O"), own_lse, (q, k, v, O, lse)


def backward(dO, q, k, v, O, lse, wire: Wire, task: Task):
    """Return dQ, dK and dV of this rank's tokens, given dO [B, H, n, dv] and the saved heads."""
    heads = dO.shape[1], task.Hk, task.Hk
    dO = _to_heads(dO, wire, task, "backward dO")  # [B, H / P, N, dv]
    gradients = task.gradients(dO, q, O, lse)
    sums = gradients.sums(k, v, _blocks("backward", wire, task))  # dK, dV
    own = zip((gradients.finish(), *sums), heads, strict=True)
    return [_to_tokens(x.to(q.dtype), count, wire, task, "backward dQKV") for x, count in own]


def _blocks(what, wire, task):
    """Return the blocks of all queries and all keys."""
    blocks = task.blocks(task.whole, task.whole)
    wire.log("compute", what, 0, wire.rank, sum(block.pairs for block in blocks))
    return blocks


def _cuts(heads: int, Hk: int, P: int) -> list[int]:
    """Return the first head of each rank, and the number of heads at the end. Groups of query heads stay together."""
    return [Hk * rank // P * (heads // Hk) for rank in range(P + 1)]


def _to_heads(x, wire, task, name):
    """Exchange all heads of this rank's tokens for its heads of all tokens, in the order of positions."""
    B, heads, _, width = x.shape
    cuts = _cuts(heads, task.Hk, wire.size)
    parts = [x[:, a:b] for a, b in pairwise(cuts)]
    wire.log("send", name, 0, wire.rank, x.nbytes - parts[wire.rank].nbytes)
    own = parts[wire.rank].shape[1]
    counts = [length(runs) for runs in task.placement]
    received = wire.exchange(parts, [B * own * count * width for count in counts])
    stacked = torch.cat([part.view(B, own, -1, width) for part in received], 2)  # [B, H / P, N, width]
    return arranged(stacked, task.placement, 2)


def _to_tokens(x, heads, wire, task, name):
    """Exchange this rank's heads of all tokens for all ``heads`` heads of its tokens: the inverse of ``_to_heads``."""
    B, _, _, width = x.shape
    parts = [x.index_select(2, order_of((runs,), x.device)) for runs in task.placement]  # [B, H / P, n, width] each
    n = parts[wire.rank].shape[2]
    wire.log("send", name, 0, wire.rank, x.nbytes - parts[wire.rank].nbytes)
    counts = [b - a for a, b in pairwise(_cuts(heads, task.Hk, wire.size))]
    received = wire.exchange(parts, [B * count * n * width for count in counts])
    return torch.cat([part.view(B, count, n, width) for part, count in zip(received, counts, strict=True)], 1)
