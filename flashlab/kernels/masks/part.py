"""The protocol of a mask, as a base class with defaults. To add a mask, subclass ``Part`` in ``kinds``."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from flashlab.kernels import tiles

FARTHEST = 2**29  # keys: no sequence is longer, and sums of a few such numbers fit 32 bits


class Grid(NamedTuple):
    """The tiles of a problem, which a mask classifies."""

    Nq: int
    Nk: int
    Br: int
    Bc: int
    i: torch.Tensor  # [Tr, 1]  the first query of each tile
    j: torch.Tensor  # [1, Tc]  the first key

    @classmethod
    def of(cls, problem, Br, Bc):
        """Return the grid of tiles Br x Bc."""
        i, j = (
            torch.arange(0, tiles.count(N, size) * size, size, device=problem.device)
            for N, size in ((problem.Nq, Br), (problem.Nk, Bc))
        )
        return cls(problem.Nq, problem.Nk, Br, Bc, i[:, None], j[None])


class Part:
    """One condition on pairs of a query and a key. ``tiles`` and ``function`` are required."""

    tensors: tuple[torch.Tensor, ...] = ()  # tensors that the answers depend on
    shows_own_key: bool = False  # whether every query sees the key at its position, if there is one
    keeps_apart: bool = False  # whether queries side by side may belong to different texts
    mask = None  # the mask that this part applies inside packed texts

    def check(self, problem) -> None:
        """Raise ValueError if a tensor does not fit the problem."""

    def tiles(self, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which tiles some query sees, and which every query sees whole: bool, broadcastable to [B, H, Tr, Tc].

        The first may be True, and the second False, for any tile: that costs only time. The opposite errors give wrong
        results.
        """
        raise NotImplementedError

    def function(self, problem) -> tuple[Callable, ...]:
        """Return a ``@triton.jit`` function (b, h, i, j, Nq, Nk, *arguments), and its arguments.

        The function returns whether query i sees key j, as in ``masks.custom``.
        """
        raise NotImplementedError

    def interval(self, problem) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the first and the last query that see each key, [B or 1, Nk] each; if none does, first > last.

        None: some query between the two does not see the key, or the answer is unknown.
        """
        return None

    def keys(self, problem) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the first and the last key that each query sees, [B or 1, Nq] each; otherwise as ``interval``."""
        return None
