"""Attention of blocks and their gradients: by the kernels, or in torch's own operations.

``kernel`` is None (the kernels that ``flash_attention`` chooses on a GPU, torch on a CPU, where Triton's interpreter
would take minutes), "torch", or a kernel that ``flash_attention`` knows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flashlab.distributed.state import State
from flashlab.machine.layouts import Block


def attend(state: State, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], scale: float, kernel: str | None):
    """Take the blocks of queries q [B, H, Nq, d] and keys k [B, Hk, Nk, d], v [B, Hk, Nk, dv] into a state."""
    for block in blocks:
        rows, cols = slice(*block.rows), slice(*block.cols)
        state.add(block.rows, *forward(q[:, :, rows], k[:, :, cols], v[:, :, cols], block, scale, kernel))


def differentiate(totals, saved, k: Tensor, v: Tensor, blocks: Sequence[Block], scale: float, kernel: str | None):
    """Add what the blocks give to totals (dQ, dK, dV), in float32 or better.

    saved: (dO, Q, O, lse) of the queries, with O and lse of all keys.
    """
    for block in blocks:
        rows, cols = slice(*block.rows), slice(*block.cols)
        do, q, o, lse = (x[:, :, rows] for x in saved)
        shares = backward(do, q, k[:, :, cols], v[:, :, cols], o, lse, block, scale, kernel)
        for total, part, share in zip(totals, (rows, cols, cols), shares, strict=True):
            total[:, :, part] += share


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


def backward(do, q, k, v, o, lse, block: Block, scale: float, kernel: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one block adds to dQ, dK and dV.

    o and lse are those of all keys, not of the block's alone: P must be what the whole softmax gives these keys.
    """
    if not in_torch(q, kernel):
        from flashlab.kernels.attention import gradients  # late: Triton

        return gradients(do, q, k, v, o, lse, mask=_kernel_mask(block), scale=scale, kernel=kernel)
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
