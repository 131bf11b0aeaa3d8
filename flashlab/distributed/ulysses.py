"""Attention by all-to-all: ranks exchange tokens for heads, compute whole heads, and exchange back.

Each rank gets all N tokens of H / P heads, so any attention of one processor will do in between. A rank needs at least
one key/value head, so there cannot be more ranks than these.

Source: DeepSpeed Ulysses, arXiv 2309.14509.
"""

from itertools import pairwise

import torch
from torch import Tensor

from flashlab.distributed import compute
from flashlab.distributed.shards import arranged, order_of
from flashlab.distributed.state import State
from flashlab.distributed.task import prepare
from flashlab.distributed.wire import Wire
from flashlab.machine.ranks import length


def ulysses_attention(
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
    """Compute what ``ring_attention`` computes, from the same arguments, with heads divided in place of tokens.

    Raises ValueError if the group has more ranks than there are key/value heads, and what ``ring_attention`` raises.
    """
    wire = Wire(group, timeout=timeout, record=record)
    dv = v.shape[-1] if isinstance(v, Tensor) and v.ndim else None
    q, k, v, task = prepare("all-to-all", q, k, v, wire, placement, causal, mask, documents, scale, kernel)
    if wire.size > k.shape[1]:
        raise ValueError(f"each of {wire.size} ranks needs a key/value head of its own, there are {k.shape[1]}")
    O, lse = _Ulysses.apply(q, k, v, wire, task, return_lse)
    O = O[..., :dv]
    return (O, lse) if return_lse else O


class _Ulysses(torch.autograd.Function):
    """One step for autograd, which keeps whole heads of the whole sequence: H / P of N tokens."""

    @staticmethod
    def forward(ctx, q, k, v, wire, task, return_lse):
        H = q.shape[1]
        q, k, v = (_to_heads(x, wire, task, "forward QKV") for x in (q, k, v))  # [B, H / P, N, d], ...
        state = State(q, v.shape[3])
        compute.attend(state, q, k, v, _blocks("forward", wire, task), task.scale, task.kernel)
        O, lse = state.finish()
        ctx.save_for_backward(q, k, v, O, lse)
        ctx.wire, ctx.task, ctx.H = wire, task, H
        own_lse = _to_tokens(lse[..., None], H, wire, task, "forward lse")[..., 0] if return_lse else None  # [B, H, n]
        if return_lse:
            ctx.mark_non_differentiable(own_lse)
        return _to_tokens(O, H, wire, task, "forward O"), own_lse

    @staticmethod
    @compute.first_derivative
    def backward(ctx, dO, _):
        (q, k, v, O, lse), wire, task = ctx.saved_tensors, ctx.wire, ctx.task
        dO = _to_heads(dO, wire, task, "backward dO")  # [B, H / P, N, dv]
        wide = torch.promote_types(q.dtype, torch.float32)
        gradients = compute.Gradients(dO, q, O, lse, task.scale, task.kernel)
        totals = [torch.zeros_like(x, dtype=wide) for x in (k, v)]  # dK, dV
        compute.add_up(totals, gradients.of(k, v, _blocks("backward", wire, task)))
        own = zip((gradients.finish(), *totals), (ctx.H, task.Hk, task.Hk), strict=True)
        return *(_to_tokens(x.to(q.dtype), heads, wire, task, "backward dQKV") for x, heads in own), None, None, None


def _blocks(what, wire, task):
    """Return the blocks of all queries and all keys."""
    blocks = task.blocks(task.whole, task.whole)
    wire.log("compute", what, 0, wire.rank, sum(block.pairs for block in blocks))
    return blocks


def _cuts(heads: int, Hk: int, P: int) -> list[int]:
    """Return where the heads of each rank begin, and where those of the last end: whole groups of query heads."""
    return [Hk * rank // P * (heads // Hk) for rank in range(P + 1)]


def _to_heads(x, wire, task, name):
    """Return this rank's heads of all tokens, in the order of positions, for all heads of its own tokens."""
    B, heads, _, width = x.shape
    cuts = _cuts(heads, task.Hk, wire.size)
    parts = [x[:, a:b] for a, b in pairwise(cuts)]
    wire.log("send", name, 0, wire.rank, x.nbytes - parts[wire.rank].nbytes)
    own = parts[wire.rank].shape[1]
    counts = [length(runs) for runs in task.placement]
    came = wire.exchange(parts, [B * own * count * width for count in counts])
    stacked = torch.cat([part.view(B, own, -1, width) for part in came], 2)  # [B, H / P, N, width]
    return arranged(stacked, task.placement, 2)


def _to_tokens(x, heads, wire, task, name):
    """Return all ``heads`` heads of this rank's tokens, for its heads of all tokens: the inverse of ``_to_heads``."""
    B, _, _, width = x.shape
    parts = [x.index_select(2, order_of((runs,), x.device)) for runs in task.placement]  # [B, H / P, n, width] each
    n = parts[wire.rank].shape[2]
    wire.log("send", name, 0, wire.rank, x.nbytes - parts[wire.rank].nbytes)
    counts = [b - a for a, b in pairwise(_cuts(heads, task.Hk, wire.size))]
    came = wire.exchange(parts, [B * count * n * width for count in counts])
    return torch.cat([part.view(B, count, n, width) for part, count in zip(came, counts, strict=True)], 1)
