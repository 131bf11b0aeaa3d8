"""The backward pass of queries whose keys come a block at a time: of each block dK and dV, and a share of dQ."""

import torch
from torch import Tensor

from flashlab.kernels import masks, tiles
from flashlab.kernels.attention import gradients_of
from flashlab.kernels.configurations import choose, hopper_width
from flashlab.kernels.problem import Problem


class Shares:
    """Gradients of queries and some keys at a time, where o and lse are those of a softmax over all their keys.

    The Hopper kernel adds its shares of dQ to the same sums in every call; those of portable kernels are added here.

    Args:
        do, q, o, lse: dO and Q, O [B, H, n, dv] and lse [B, H, n] in float32, with rows that are multiples of 16 bytes.
        scale, kernel: as for ``flash_attention``; scale is positive.
    """

    def __init__(self, do: Tensor, q: Tensor, o: Tensor, lse: Tensor, *, scale: float, kernel: str | None = None):
        self.do, self.q, self.o, self.lse = (tiles.ready(x) for x in (do, q, o, lse))
        self.scale, self.kernel = scale, kernel
        self.sums = self.dQ = None  # of the blocks that the Hopper kernel takes; of the others, float32

    def of_keys(self, k: Tensor, v: Tensor, mask: masks.Window, rows=slice(None)) -> tuple[Tensor, Tensor]:
        """Return dK and dV of keys that the queries ``rows`` meet, and keep the share of dQ."""
        do, q, o, lse = (x[:, :, rows] for x in (self.do, self.q, self.o, self.lse))
        problem = Problem.of(q, k, v, mask, self.scale)
        if not (q.numel() and k.numel()):
            return torch.zeros_like(k), torch.zeros_like(v)
        choice = choose("backward", problem, self.kernel)
        if choice.implementation == "hopper" and self._in_whole_tiles(rows, choice.launches["backward"].Br):
            return self._added_up(choice, problem, q, do, k, v, rows.start or 0)
        dq, dk, dv, *_ = gradients_of(do, None, q, k, v, o, lse, problem, self.kernel)
        if self.dQ is None:
            self.dQ = torch.zeros_like(self.q, dtype=torch.float32)  # [B, H, n, d]
        self.dQ[:, :, rows] += dq
        return dk, dv

    def finish(self) -> Tensor:
        """Return dQ [B, H, n, d] in the dtype of the queries."""
        if self.sums is None:
            return torch.zeros_like(self.q) if self.dQ is None else self.dQ.to(self.q.dtype)
        dtype = self.q.dtype if self.dQ is None else torch.float32
        dq = torch.empty(self.q.shape, dtype=dtype, device=self.q.device)
        self.sums.narrow(dq, self.scale)
        return dq if self.dQ is None else (self.dQ + dq).to(self.q.dtype)

    def _in_whole_tiles(self, rows, Br):
        """Return whether rows of the queries begin and end with a tile of Br, or with the last row."""
        begin, end, _ = rows.indices(self.q.shape[2])
        return begin % Br == 0 and (end % Br == 0 or end == self.q.shape[2])

    def _added_up(self, choice, problem, q, do, k, v, row):
        """Return dK and dV by the Hopper kernel; queries begin at ``row``."""
        from flashlab.kernels.hopper.backward import Sums  # late: Gluon is slow to import

        if self.sums is None:
            width = hopper_width(problem.d, problem.dv)
            self.sums = Sums(self.do, None, self.o, self.lse, width, choice.launches["row_constants"])
        k, v = tiles.ready(k), tiles.ready(v)
        gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v)]
        self.sums.add((q, do), (k, v), gradients, problem, choice.launches["backward"], row)
        return gradients
