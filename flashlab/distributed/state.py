"""What a rank keeps of the keys that have passed: O and lse of its queries. Two such states merge by lse.

Source: FlashAttention-2, section 3.1.1, for the merge; Ring Attention, arXiv 2310.01889, for its use.
"""

import torch
from torch import Tensor


def merge(O: Tensor, lse: Tensor, O_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output [..., n, dv] and lse [..., n] of the keys of both sides together, in the dtype of lse."""
    m = torch.maximum(lse, lse_b)  # [..., n]
    m_safe = torch.where(m == -torch.inf, 0, m)  # [..., n]      a row that has met no key yet
    l, l_b = torch.exp(lse - m_safe), torch.exp(lse_b - m_safe)  # [..., n]
    l_safe = torch.where(m == -torch.inf, 1, l + l_b)  # [..., n]
    O = (l / l_safe)[..., None] * O + (l_b / l_safe)[..., None] * O_b  # [..., n, dv]
    return O, m + torch.log(l_safe)


class State:
    """O [B, H, n, dv] and lse [B, H, n] of n queries after some of their keys.

    O is in float32 or better between two merges, whatever the dtype of the inputs: a state that is rounded at every
    merge loses digits with every rank. The first block is taken over as it came; after that, its tensors are the
    state's. The block that came last waits for the next one, or for the end: then one kernel merges it and rounds O.
    """

    def __init__(self, q: Tensor, dv: int):
        self.dtype, self.device, self.wide = q.dtype, q.device, torch.promote_types(q.dtype, torch.float32)
        self.shape = *q.shape[:3], dv
        self.O = self.lse = self.waiting = None

    def add(self, rows: tuple[int, int], O_b: Tensor, lse_b: Tensor) -> None:
        """Take in the keys of one block: O_b [B, H, rows, dv] and lse_b [B, H, rows] of the queries ``rows``."""
        if self.waiting:
            self._merge(self.wide)
        self.waiting = rows, O_b, lse_b

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return O in the dtype of the queries, and lse. Queries that saw no key have O = 0 and lse = -inf."""
        if self.waiting:
            self._merge(self.dtype)
        if self.lse is None:
            self._begin()
        return self.O.to(self.dtype), self.lse

    def _merge(self, dtype):
        """Take in the block that waits. O then has this dtype, unless the block is the first."""
        (rows, O_b, lse_b), self.waiting = self.waiting, None
        if self.lse is None and rows == (0, self.shape[2]):
            self.O, self.lse = O_b, lse_b
            return
        if self.lse is None:
            self._begin()
        if self.O.is_cuda:
            from flashlab.kernels.merge import merge_into  # late: Triton

            self.O = merge_into(self.O, self.lse, O_b, lse_b, rows[0], dtype)
        else:
            part, self.O = slice(*rows), self.O.to(self.wide)
            merged = merge(self.O[:, :, part], self.lse[:, :, part], O_b, lse_b)
            self.O[:, :, part], self.lse[:, :, part] = merged

    def _begin(self):
        self.O = torch.zeros(self.shape, dtype=self.wide, device=self.device)  # [B, H, n, dv]
        self.lse = self.O.new_full(self.shape[:3], -torch.inf)  # [B, H, n]
