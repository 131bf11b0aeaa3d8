"""Cut a tensor into the tokens of each rank, and put it together again."""

import functools
import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from flashlab.distributed.wire import Wire
from flashlab.machine.arguments import check_arguments, check_whole
from flashlab.machine.ranks import Runs, length, placement_of


@check_arguments(N=0)
def positions(N: int, *, group: ProcessGroup | None = None, placement: str = "zigzag") -> Tensor:
    """Return the positions [n] in the sequence of the tokens that this rank has, in its order.

    Computations that depend on the position of a token, such as rotary embeddings, need them.
    """
    wire = Wire(group)
    return order_of((placement_of(placement, N, wire.size)[wire.rank],)).clone()


def shard(x: Tensor, *, group: ProcessGroup | None = None, placement: str = "zigzag", dim: int = 2) -> Tensor:
    """Return this rank's part of x, cut along ``dim``: [..., n, ...] of [..., N, ...]. Nothing is sent."""
    _check(x, dim)
    wire = Wire(group)
    return x.index_select(dim, order_of((placement_of(placement, x.shape[dim], wire.size)[wire.rank],), x.device))


def unshard(
    x: Tensor, *, group: ProcessGroup | None = None, placement: str = "zigzag", dim: int = 2, timeout: float = 60.0
) -> Tensor:
    """Return the whole tensor on every rank, given its part x on each rank: the inverse of ``shard``.

    It is not differentiable. Raises GroupError if the parts are not those of one tensor.
    """
    _check(x, dim)
    wire = Wire(group, timeout=timeout)
    wire.check(x)
    rest = [size for at, size in enumerate(x.shape) if at != dim % x.ndim]
    facts = {"placement": placement, "shape": rest, "dim": dim % x.ndim, "dtype": str(x.dtype)}
    counts = wire.agree(facts, x.shape[dim], x.device)
    runs = runs_of(placement, counts)
    return together(x.detach(), wire, runs, dim)


def _check(x, dim):
    """Raise TypeError or ValueError unless x is a tensor that has a dimension ``dim``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
    check_whole("dim", dim, -x.ndim, x.ndim - 1)


def runs_of(placement: str, counts: list[int]) -> tuple[Runs, ...]:
    """Return the tokens of each rank. Raises ValueError if their numbers are not ``counts``."""
    runs = placement_of(placement, sum(counts), len(counts))
    expected = [length(own) for own in runs]
    if counts != expected:
        raise ValueError(f"a {placement} placement of {sum(counts)} tokens gives the ranks {expected}, got {counts}")
    return runs


def together(x: Tensor, wire: Wire, placement, dim: int) -> Tensor:
    """Return [..., N, ...] in the order of positions, given the part x [..., n, ...] on each rank."""
    own = x.movedim(dim, 0).contiguous()  # [n, ...]
    per_token = math.prod(own.shape[1:])
    parts = wire.exchange([own] * wire.size, [length(runs) * per_token for runs in placement])
    return arranged(torch.cat(parts).view(-1, *own.shape[1:]), placement, 0).movedim(0, dim)


def arranged(stacked: Tensor, placement: tuple[Runs, ...], dim: int) -> Tensor:
    """Return [..., N, ...] in the order of positions, given the parts of all ranks one after the other."""
    runs = [run for own in placement for run in own if len(run)]
    if all(run.step == 1 for run in runs) and all(a.stop == b.start for a, b in pairwise(runs)):
        return stacked
    return torch.empty_like(stacked).index_copy_(dim, order_of(placement, stacked.device), stacked)


@functools.lru_cache(maxsize=64)
def order_of(placement: tuple[Runs, ...], device: torch.device | str = "cpu") -> Tensor:
    """Return the positions of several ranks' tokens, one rank after the other. The tensor must not be changed."""
    order = torch.cat([run.start + run.step * torch.arange(len(run)) for runs in placement for run in runs])
    return order.to(device)
