"""Attention of blocks and their gradients: by the kernels, or in torch's own operations.

``kernel`` is None (the kernels that ``flash_attention`` chooses on a GPU, torch on a CPU, where Triton's interpreter
would take minutes), "torch", or a kernel that ``flash_attention`` knows.
"""

from collections.abc import Callable, Sequence
from functools import wraps

import torch
from torch import Tensor

from flashlab.distributed.state import State
from flashlab.machine.ranks import Block


def attend(state: State, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], scale: float, kernel: str | None):
    """Take the blocks of queries q [B, H, Nq, d] and keys k [B, Hk, Nk, d], v [B, Hk, Nk, dv] into a state."""
    for block in blocks:
        rows, cols = slice(*block.rows), slice(*block.cols)
        state.add(block.rows, *forward(q[:, :, rows], k[:, :, cols], v[:, :, cols], block, scale, kernel))


def first_derivative(backward: Callable) -> Callable:
    """Return a backward pass over a group that refuses ``create_graph=True``: it has no derivative of its own.

    torch's ``once_differentiable`` does not suffice: it takes the derivative with respect to q, k and v for 0.
    """

    @wraps(backward)
    def run(ctx, *gradients):
        if torch.is_grad_enabled():
            raise NotImplementedError("attention over a group has first derivatives only: create_graph must be False")
        return backward(ctx, *gradients)

    return run


class Gradients:
    """dQ of a rank's queries, added up while keys come, given dO, Q, O and lse, with O and lse of all keys."""

    def __init__(self, dO: Tensor, q: Tensor, O: Tensor, lse: Tensor, scale: float, kernel: str | None):
        self.saved, self.scale, self.shares = (dO, q, O, lse), scale, None
        if in_torch(q, kernel):
            self.dQ = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))  # [B, H, n, d]
        else:
            from flashlab.distributed.shares import Shares  # late: Triton

            self.shares = Shares(dO, q, O, lse, scale=scale, kernel=kernel)

    def of(self, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> list:
        """Return what each block gives to dK and dV, and where: (slice of the keys, dK, dV)."""
        shares = []
        for block in blocks:
            rows, cols = slice(*block.rows), slice(*block.cols)
            shares.append((cols, *self._of_block(k[:, :, cols], v[:, :, cols], block, rows)))
        return shares

    def finish(self) -> Tensor:
        """Return dQ [B, H, n, d] in the dtype of the queries."""
        return self.shares.finish() if self.shares else self.dQ.to(self.saved[1].dtype)

    def _of_block(self, k, v, block, rows):
        if self.shares:
            return self.shares.of_keys(k, v, _kernel_mask(block), rows)
        dq, dk, dv = backward(*(x[:, :, rows] for x in self.saved), k, v, block, self.scale)
        self.dQ[:, :, rows] += dq
        return dk, dv


def add_up(totals: Sequence[Tensor], shares) -> None:
    """Add what ``Gradients.of`` returned to dK and dV, in float32 or better."""
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

        mask = _kernel_mask(block)
        return flash_attention(q, k, v, mask=mask, scale=scale, return_lse=True, kernel=kernel)
    S = _scores(q, k, block, scale)  # [B, Hk, group, Nq, Nk]
    lse = torch.logsumexp(S, -1)  # [B, Hk, group, Nq]
    P = torch.exp(S - _safe(lse)[..., None])  # [B, Hk, group, Nq, Nk]
    O = P @ v[:, :, None].to(P.dtype)  # [B, Hk, group, Nq, dv]
    return O.flatten(1, 2), lse.flatten(1, 2)


def backward(do, q, o, lse, k, v, block: Block, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one block adds to dQ, dK and dV, in torch, in float32 or better.

    o and lse are those of all keys, not of the block's alone: P must be what the whole softmax gives these keys.
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
    S = scale * q.to(wide).unflatten(1, (k.shape[1], -1)) @ k[:, :, None].to(wide).mT
    Nq, Nk = S.shape[-2:]
    distance = torch.arange(Nk, device=q.device) - torch.arange(Nk - Nq, Nk, device=q.device)[:, None]  # [Nq, Nk]
    if block.right is not None:
        S = S.masked_fill(distance > block.right, -torch.inf)
    return S if block.left is None else S.masked_fill(distance < -block.left, -torch.inf)


def _safe(lse):
    """Return lse with 0 for the rows that see no key."""
    return torch.where(lse == -torch.inf, 0, lse)


def _kernel_mask(block):
    from flashlab.kernels import masks  # late: Triton

    return masks.Window(block.left, block.right)
