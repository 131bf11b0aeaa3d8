"""Attention over a sequence that is divided over a process group, in one of three ways."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from flashlab.distributed import all_to_all, gather, ring
from flashlab.distributed.shards import shard, unshard
from flashlab.distributed.task import Options, prepare
from flashlab.distributed.wire import Event, Wire
from flashlab.machine.arguments import shown

WAYS = {"ring": ring, "gather": gather, "all-to-all": all_to_all}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    way: str = "ring",
    group: ProcessGroup | None = None,
    placement: str = "zigzag",
    timeout: float = 60.0,
    record: list | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention over a sequence of which every rank of a group has n tokens, forward and backward.

    Args:
        q, k, v: this rank's tokens [B, H, n, d], [B, Hk, n, d], [B, Hk, n, dv], as ``shard`` cuts them; H is a multiple
            of Hk. float16, bfloat16, float32; in torch float64 too.
        way: "ring", "gather" or "all-to-all"; see the modules of these names. "gather" needs a placement in which the
            tokens of a rank are runs of neighbours: "contiguous" or "zigzag". "all-to-all" needs at least as many
            key/value heads as ranks.
        group: a process group of torch.distributed; None for all processes.
        placement: "contiguous", "zigzag" or "striped", of ``machine.ranks``.
        timeout: seconds after which a rank on a CPU gives up waiting. On a GPU the group's own timeout counts, and the
            ranks compare their arguments only in the first call with these arguments.
        record: a list to which a ``wire.Event`` is appended for each computation and each transfer of a step.
        options: fields of ``task.Options``: causal, mask, documents, scale, return_lse, kernel.

    Returns:
        O [B, H, n, dv] in the dtype of q, or (O, lse) with lse [B, H, n]. Outputs of blocks merge in float32 or better.

    Raises:
        TypeError, ValueError: an argument is not as described.
        GroupError: the ranks disagree about the arguments, one of them is gone, or there is no group.
    """
    if not (isinstance(way, str) and way in WAYS):
        raise ValueError(f"way must be one of {', '.join(WAYS)}, got {shown(way)}")
    if unknown := options.keys() - Options._fields:
        raise TypeError(f"options must be some of {', '.join(Options._fields)}, got {', '.join(sorted(unknown))}")
    wire = Wire(group, timeout=timeout, record=record)
    dv = v.shape[-1] if isinstance(v, Tensor) and v.ndim else None
    q, k, v, task = prepare(way, q, k, v, wire, placement, Options(**options))
    O, lse = _Attention.apply(q, k, v, wire, task, WAYS[way])
    O = O[..., :dv]
    return (O, lse) if task.return_lse else O


class _Attention(torch.autograd.Function):
    """Attention as one operation of autograd, by the functions ``forward`` and ``backward`` of a way."""

    @staticmethod
    def forward(ctx, q, k, v, wire, task, way):
        O, lse, saved = way.forward(q, k, v, wire, task)
        ctx.save_for_backward(*saved)
        ctx.wire, ctx.task, ctx.way = wire, task, way
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        return O, lse

    @staticmethod
    def backward(ctx, dO, _):
        # torch's once_differentiable does not suffice: second derivatives with respect to q, k and v would be 0.
        if torch.is_grad_enabled():
            raise NotImplementedError("attention over a group has first derivatives only: create_graph must be False")
        return *ctx.way.backward(dO, *ctx.saved_tensors, ctx.wire, ctx.task), None, None, None


class Whole(NamedTuple):
    """The results of a whole text, on every process, and the events of this process."""

    O: Tensor  # [B, H, N, dv]
    gradients: list[Tensor]  # dQ [B, H, N, d], dK [B, Hk, N, d], dV [B, Hk, N, dv]; empty without dO
    events: list[Event]


def whole(
    way: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dO: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    placement: str = "zigzag",
    **options: Any,
) -> Whole:
    """Compute ``attention`` of a text that every process has whole: q [B, H, N, d], k [B, Hk, N, d], v [B, Hk, N, dv].

    It is for lessons and tests: each process cuts out its own tokens, and the results are put together again.
    dO: the gradient of O; None computes no gradients.
    """
    if options.get("return_lse"):
        raise ValueError("whole returns no lse: leave return_lse out, or call attention")
    events = []
    for name, x in {"q": q, "k": k, "v": v, **({} if dO is None else {"dO": dO})}.items():
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor [B, heads, N, width], got {shown(x)}")
    if dO is not None:
        expected = [*q.shape[:3], v.shape[3]]
        if list(dO.shape) != expected:
            raise ValueError(f"expected dO [B, H, N, dv] = {expected}, got {list(dO.shape)}")
    own = [shard(x, group=group, placement=placement).requires_grad_(dO is not None) for x in (q, k, v)]
    O = attention(*own, way=way, group=group, placement=placement, record=events, **options)
    gradients = []
    if dO is not None:
        gradients = torch.autograd.grad(O, own, shard(dO, group=group, placement=placement))
    together = [unshard(x.detach(), group=group, placement=placement) for x in (O, *gradients)]
    return Whole(together[0], together[1:], events)
