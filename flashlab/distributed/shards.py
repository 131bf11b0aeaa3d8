"""Cut a tensor into the tokens of each rank, and put it together again."""

import math

import torch
from torch import Tensor

from flashlab.distributed.wire import Wire
from flashlab.machine.layouts import layout_of, length


def positions(N: int, *, group=None, layout: str = "zigzag") -> Tensor:
    """Return the positions [n] in the sequence of the tokens that this rank has, in its order.

    Whatever depends on a token's place, such as rotary embeddings, needs these: the rank's own count does not do.
    """
    wire = Wire(group)
    return order_of([layout_of(layout, N, wire.size)[wire.rank]])


def shard(x: Tensor, *, group=None, layout: str = "zigzag", dim: int = 2) -> Tensor:
    """Return this rank's part of x, cut along ``dim``: [..., n, ...] of [..., N, ...]. Nothing is sent."""
    own = positions(x.shape[dim], group=group, layout=layout).to(x.device)
    return x.index_select(dim, own)


def unshard(x: Tensor, *, group=None, layout: str = "zigzag", dim: int = 2, timeout: float = 60.0) -> Tensor:
    """Return, on every rank, the tensor of which each rank has the part x: the inverse of ``shard``.

    It is not differentiable. Raises GroupError if the parts are not those of one tensor.
    """
    wire = Wire(group, timeout=timeout)
    wire.check(x)
    rest = [size for at, size in enumerate(x.shape) if at != dim % x.ndim]
    facts = {"layout": layout, "shape": rest, "dim": dim % x.ndim, "dtype": str(x.dtype)}
    counts = wire.agree(facts, x.shape[dim], x.device)
    runs = layout_of(layout, sum(counts), wire.size)
    if counts != [length(own) for own in runs]:
        raise ValueError(f"a {layout} layout of {sum(counts)} tokens has other parts than those found, {counts}")
    return together(x.detach(), wire, runs, dim)


def together(x: Tensor, wire: Wire, layout, dim: int) -> Tensor:
    """Return [..., N, ...] in the order of positions, of which each rank has its part x of a layout."""
    own = x.movedim(dim, 0).contiguous()  # [n, ...]
    per_token = math.prod(own.shape[1:])
    parts = wire.exchange([own] * wire.size, [length(runs) * per_token for runs in layout])
    stacked = torch.cat(parts).view(-1, *own.shape[1:])  # [N, ...]
    order = order_of(layout).to(x.device)  # [N]
    return torch.empty_like(stacked).index_copy_(0, order, stacked).movedim(0, dim)


def order_of(layout):
    """Return the positions of the tokens of several ranks, one rank after the other."""
    return torch.cat([run.start + run.step * torch.arange(len(run)) for runs in layout for run in runs])
