"""Gradients of blocks by the kernels. The Hopper kernel adds its shares of dQ to the same sums in every call."""

import torch
from torch import Tensor

from flashlab.distributed.compute import Gradients
from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import choose, hopper_width
from flashlab.kernels.passes import gradients_of
from flashlab.kernels.plan import Plan
from flashlab.kernels.problem import Problem
from flashlab.machine.ranks import Block


class KernelGradients(Gradients):
    """``Gradients`` by the kernels.

    Args:
        dO, q, O, lse, scale: as for ``Gradients``. lse is in float32, the rows of the others are multiples of 16
            bytes, and scale is positive.
        kernel: as for ``flash_attention``.
    """

    def __init__(self, dO: Tensor, q: Tensor, O: Tensor, lse: Tensor, scale: float, kernel: str | None = None):
        super().__init__(*(tiles.ready(x) for x in (dO, q, O, lse)), scale)
        self.kernel, self.hopper_sums = kernel, None  # sums of dQ over blocks by the Hopper kernel

    def of_block(self, k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Return one block's shares in dK and dV, and add its share in dQ."""
        do, q, o, lse = (x[:, :, slice(*block.rows)] for x in self.saved)
        problem = Problem.of(q, k, v, masks.Window(block.left, block.right), self.scale)
        if not (q.numel() and k.numel()):
            return torch.zeros_like(k), torch.zeros_like(v)
        choice = choose("backward", problem, self.kernel)
        one_pass = choice.launches.get("backward")  # its sums of dQ take shares of several blocks
        if one_pass is not None and self._in_whole_tiles(block, one_pass.Br):
            return self._on_hopper(choice, problem, q, do, k, v, block.rows[0])
        dq, dk, dv, *_ = gradients_of(do, None, q, k, v, o, lse, None, Plan(problem, self.kernel))
        self.add(block, dq)
        return dk, dv

    def finish(self) -> Tensor:
        """Return dQ [B, H, n, d] in the dtype of the queries."""
        if self.hopper_sums is None:
            return super().finish()
        q = self.saved[1]
        dq = torch.empty(q.shape, dtype=q.dtype if self.dQ is None else torch.float32, device=q.device)
        self.hopper_sums.narrow(dq, self.scale)
        return dq if self.dQ is None else (self.dQ + dq).to(q.dtype)

    def _in_whole_tiles(self, block, Br):
        """Return whether the queries of a block are whole tiles of Br rows; the last row may end a tile early."""
        begin, end = block.rows
        return begin % Br == 0 and (end % Br == 0 or end == self.saved[1].shape[2])

    def _on_hopper(self, choice, problem, q, do, k, v, row):
        """Return dK and dV by the Hopper kernel, and add dQ to its sums. The queries begin at ``row``."""
        from flashlab.kernels.hopper.backward import Sums, columns_of  # late: Gluon is slow to import

        if self.hopper_sums is None:
            dO, _, O, lse = self.saved
            columns = columns_of(problem.d, hopper_width(problem.d, problem.dv))
            self.hopper_sums = Sums(dO, None, O, lse, columns, problem.unit, choice.launches["row_constants"])
        k, v = tiles.ready(k), tiles.ready(v)
        gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v)]
        self.hopper_sums.add((q, do), (k, v), gradients, problem, choice.launches["backward"], row)
        return gradients
