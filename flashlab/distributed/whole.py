"""One call with a whole text: each process cuts out its part, they attend together, and put the results together."""

from typing import NamedTuple

import torch
from torch import Tensor

from flashlab.distributed.gather import gather_attention
from flashlab.distributed.ring import ring_attention
from flashlab.distributed.shards import shard, unshard
from flashlab.distributed.ulysses import ulysses_attention
from flashlab.distributed.wire import Event

METHODS = {"ring": ring_attention, "gather": gather_attention, "all-to-all": ulysses_attention}


class Whole(NamedTuple):
    """The results of a whole text, on every process, and what this one did."""

    O: Tensor  # [B, H, N, dv]
    gradients: list[Tensor]  # dQ [B, H, N, d], dK [B, Hk, N, d], dV [B, Hk, N, dv]; empty without dO
    events: list[Event]


def whole(
    method: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dO: Tensor | None = None,
    *,
    group=None,
    placement: str = "zigzag",
    **options,
) -> Whole:
    """Attend over a group, to a text that every process has whole: q [B, H, N, d], k [B, Hk, N, d], v [B, Hk, N, dv].

    It shows and tests that the parts are those of the whole; to compute, each process has its own part from the start.
    method: "ring", "gather" or "all-to-all". dO: the gradient of O, for the gradients of q, k and v. Options are those
    of ``ring_attention``.
    """
    events = []
    own = [shard(x, group=group, placement=placement).requires_grad_(dO is not None) for x in (q, k, v)]
    O = METHODS[method](*own, group=group, placement=placement, record=events, **options)
    gradients = []
    if dO is not None:
        gradients = torch.autograd.grad(O, own, shard(dO, group=group, placement=placement))
    together = [unshard(x.detach(), group=group, placement=placement) for x in (O, *gradients)]
    return Whole(together[0], together[1:], events)
