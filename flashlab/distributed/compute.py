"""Attention of blocks, the merge of their states by lse, and their gradients: by the kernels, or in torch.

``kernel`` is None (the kernels that ``flash_attention`` chooses on a GPU, torch on a CPU, where Triton's interpreter
would take minutes), "torch", or a kernel of ``flash_attention``.

Source: FlashAttention-2, section 3.1.1, for the merge; Ring Attention, arXiv 2310.01889, for its use.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashlab.machine.ranks import Block


def merge(O: Tensor, lse: Tensor, O_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output [..., n, dv] and lse [..., n] of two sets of keys together, in the dtype of lse."""
    m = torch.maximum(lse, lse_b)  # [..., n]
    m_safe = torch.where(m == -torch.inf, 0, m)  # [..., n]      a row that has seen no key yet
    l, l_b = torch.exp(lse - m_safe), torch.exp(lse_b - m_safe)  # [..., n]
    l_safe = torch.where(m == -torch.inf, 1, l + l_b)  # [..., n]
    O = (l / l_safe)[..., None] * O + (l_b / l_safe)[..., None] * O_b  # [..., n, dv]
    return O, m + torch.log(l_safe)


class State:
    """O [B, H, n, dv] and lse [B, H, n] of n queries after some of their keys.

    O is in float32 or better between two merges, whatever the dtype of the inputs: a state that is rounded at every
    merge loses digits with every rank. If the first block has all queries, the state takes its tensors without a copy.
    The newest block is merged when the next one comes, or in ``finish``, where on a GPU one kernel merges and rounds O.
    """

    def __init__(self, q: Tensor, dv: int):
        self.dtype, self.device, self.wide = q.dtype, q.device, torch.promote_types(q.dtype, torch.float32)
        self.shape = *q.shape[:3], dv
        self.O = self.lse = self.waiting = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], task) -> None:
        """Add the blocks of queries q [B, H, Nq, d] and keys k [B, Hk, Nk, d], v [B, Hk, Nk, dv]."""
        for block in blocks:
            rows, cols = slice(*block.rows), slice(*block.cols)
            self.add(block.rows, *forward(q[:, :, rows], k[:, :, cols], v[:, :, cols], block, task.scale, task.kernel))

    def add(self, rows: tuple[int, int], O_b: Tensor, lse_b: Tensor) -> None:
        """Add the keys of one block: O_b [B, H, rows, dv] and lse_b [B, H, rows] of the queries ``rows``."""
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
        """Merge the block that waits; on a GPU O then has this dtype. A first block with all queries stays as it is."""
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


class Gradients:
    """The gradients of blocks, in torch, and dQ of a rank's queries, added up while keys come.

    O and lse are those of all keys. ``kernel_gradients`` has a subclass that uses the kernels.
    """

    def __init__(self, dO: Tensor, q: Tensor, O: Tensor, lse: Tensor, scale: float):
        self.saved, self.scale, self.dQ = (dO, q, O, lse), scale, None

    def of(self, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> list:
        """Return each block's shares in dK and dV, and their place: (slice of the keys, dK, dV)."""
        places = [slice(*block.cols) for block in blocks]
        return [
            (cols, *self.of_block(k[:, :, cols], v[:, :, cols], block))
            for cols, block in zip(places, blocks, strict=True)
        ]

    def of_block(self, k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Return one block's shares in dK and dV, and add its share in dQ."""
        dq, dk, dv = backward(*(x[:, :, slice(*block.rows)] for x in self.saved), k, v, block, self.scale)
        self.add(block, dq)
        return dk, dv

    def add(self, block: Block, dq: Tensor) -> None:
        """Add the share of one block in dQ, in float32 or better."""
        if self.dQ is None:
            q = self.saved[1]
            self.dQ = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))  # [B, H, n, d]
        self.dQ[:, :, slice(*block.rows)] += dq

    def sums(self, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> list[Tensor]:
        """Return dK and dV of these keys and values, the sums over the blocks, in float32 or better."""
        totals = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v)]
        add_up(totals, self.of(k, v, blocks))
        return totals

    def finish(self) -> Tensor:
        """Return dQ [B, H, n, d] in the dtype of the queries."""
        q = self.saved[1]
        return torch.zeros_like(q) if self.dQ is None else self.dQ.to(q.dtype)


def add_up(totals: Sequence[Tensor], shares) -> None:
    """Add the shares of ``Gradients.of`` to dK and dV, in float32 or better."""
    for cols, *share in shares:
        for total, x in zip(totals, share, strict=True):
            total[:, :, cols] += x


def in_torch(q: Tensor, kernel: str | None) -> bool:
    """Return whether torch's own operations compute the blocks of these queries."""
    return kernel == "torch" or (kernel is None and not q.is_cuda)


def forward(q: Tensor, k: Tensor, v: Tensor, block: Block, scale: float, kernel: str | None) -> tuple[Tensor, Tensor]:
    """Return O [B, H, Nq, dv] and lse [B, H, Nq] of one block: q [B, H, Nq, d], k [B, Hk, Nk, d], v [B, Hk, Nk, dv].

    In torch, O is in float32 or better; the kernels round it once to the dtype of q.
    """
    if not in_torch(q, kernel):
        from flashlab.kernels import flash_attention  # late: Triton
        from flashlab.kernels.masks.algebra import Shifted

        mask = Shifted(block.left, block.right)
        return flash_attention(q, k, v, mask=mask, scale=scale, return_lse=True, kernel=kernel)
    S = _scores(q, k, block, scale)  # [B, Hk, group, Nq, Nk]
    lse = torch.logsumexp(S, -1)  # [B, Hk, group, Nq]
    P = torch.exp(S - _safe(lse)[..., None])  # [B, Hk, group, Nq, Nk]
    O = P @ v[:, :, None].to(P.dtype)  # [B, Hk, group, Nq, dv]
    return O.flatten(1, 2), lse.flatten(1, 2)


def backward(do, q, o, lse, k, v, block: Block, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shares of one block in dQ, dK and dV, in torch, in float32 or better.

    o and lse are those of all keys, not only of the block: P is the softmax over all keys.
    """
    Hk = k.shape[1]
    S = _scores(q, k, block, scale)  # [B, Hk, group, Nq, Nk]
    q, do, o, lse = (x.to(S.dtype).unflatten(1, (Hk, -1)) for x in (q, do, o, lse))  # [B, Hk, group, Nq, ...]
    k, v = k.to(S.dtype), v.to(S.dtype)
    P = torch.exp(S - _safe(lse)[..., None])  # [B, Hk, group, Nq, Nk]
    delta = (do * o).sum(-1)  # [B, Hk, group, Nq]
    dP = do @ v[:, :, None].mT  # [B, Hk, group, Nq, Nk]
    dS = P * (dP - delta[..., None]) * scale  # [B, Hk, group, Nq, Nk]
    dq = (dS @ k[:, :, None]).flatten(1, 2)  # [B, H, Nq, d]
    return dq, (dS.mT @ q).sum(2), (P.mT @ do).sum(2)


def _scores(q, k, block, scale):
    """Return scale * Q K^T [B, Hk, group, Nq, Nk] of one block, in float32 or better, -inf where a key is not seen."""
    wide = torch.promote_types(q.dtype, torch.float32)
    S = scale * q.to(wide).unflatten(1, (k.shape[1], -1)) @ k[:, :, None].to(wide).mT  # [B, Hk, group, Nq, Nk]
    Nq, Nk = S.shape[-2:]
    distance = torch.arange(Nk, device=q.device) - torch.arange(Nk - Nq, Nk, device=q.device)[:, None]  # [Nq, Nk]
    if block.right is not None:
        S = S.masked_fill(distance > block.right, -torch.inf)
    return S if block.left is None else S.masked_fill(distance < -block.left, -torch.inf)


def _safe(lse):
    """Return lse with 0 for the rows that see no key."""
    return torch.where(lse == -torch.inf, 0, lse)
