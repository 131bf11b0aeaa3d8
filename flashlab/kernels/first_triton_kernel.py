"""First kernels: adding two vectors, a softmax that reads each row once, and one for rows longer than a block.

A kernel runs as a grid of programs, and a program knows only its number. From the number it computes which block of
the data is its own; a mask keeps it from reading past the end.

Source: Milakov and Gimelshein 2018, algorithm 3, for ``softmax_online``.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels.checks import check_dense, check_device, check_memory, check_no_gradient

LONGEST_BLOCK = 16384  # elements of a row that the registers of one program hold with room to work in
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def add(x, y, *, block=1024):
    """Return z = x + y, with one program per block.

    x, y: contiguous tensors [N] of float16, bfloat16 or float32; block: elements per program, a power of two. Raises
    TypeError or ValueError, and NotImplementedError if x or y requires a gradient.
    """
    _check_tensors(x=x, y=y)
    _check_block(block)
    if x.dim() != 1 or x.shape != y.shape or x.dtype != y.dtype:
        found = f"{list(x.shape)} {x.dtype} and {list(y.shape)} {y.dtype}"
        raise ValueError(f"x and y must be vectors of one length and dtype, got {found}")
    if not (x.is_contiguous() and y.is_contiguous()):
        raise ValueError(f"x and y must be contiguous, got strides {x.stride()} and {y.stride()}")
    z = torch.empty_like(x)  # [N]
    N = x.numel()
    if N:
        add_kernel[(triton.cdiv(N, block),)](x, y, z, N, block)
    return z


@triton.jit
def add_kernel(x, y, z, N, Bc: tl.constexpr):
    j = tl.program_id(0)
    columns = j.to(tl.int64) * Bc + tl.arange(0, Bc)  # [Bc]
    inside = columns < N  # [Bc]
    x_j = tl.load(x + columns, mask=inside)  # [Bc]
    y_j = tl.load(y + columns, mask=inside)  # [Bc]
    tl.store(z + columns, x_j + y_j, mask=inside)


def softmax(x):
    """Return the softmax of each row, one program per row, the row in one block: 1 load and 1 store per element.

    x: [rows, N] of float16, bfloat16 or float32, unit stride in the last dimension, N at most ``LONGEST_BLOCK``.
    The arithmetic is float32's. A row that is all -inf gives zeros. Raises the errors of ``add``.
    """
    y = _prepare(x)  # [rows, N]
    Bc = triton.next_power_of_2(max(x.shape[1], 1))
    if Bc > LONGEST_BLOCK:
        raise ValueError(f"a row must fit into a block of {LONGEST_BLOCK}, got {x.shape[1]}: take softmax_online")
    if x.numel():
        softmax_kernel[(x.shape[0],)](x, y, x.stride(0), y.stride(0), x.shape[1], Bc, num_warps=_warps(Bc))
    return y


@triton.jit
def softmax_kernel(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, Bc)  # [Bc]
    inside = columns < N  # [Bc]
    S_i = tl.load(x + i * x_stride + columns, mask=inside, other=-float("inf")).to(tl.float32)  # [Bc]
    m_i = tl.max(S_i, 0)
    m_safe = tl.where(m_i == -float("inf"), 0, m_i)
    P_i = tl.exp(S_i - m_safe)  # [Bc]
    l_i = tl.sum(P_i, 0)
    tl.store(y + i * y_stride + columns, P_i / tl.where(l_i == 0, 1, l_i), mask=inside)


def softmax_online(x, *, rows=4, block=1024):
    """Return the softmax of rows of any length, a few per program, block by block: 2 loads and 1 store per element.

    x: [rows, N] as for ``softmax``, but any N; rows, block: height and width of the tile that a program works on,
    powers of two. Raises the errors of ``add``.
    """
    y = _prepare(x)  # [rows, N]
    _check_block(rows)
    _check_block(block)
    if rows * block > LONGEST_BLOCK:
        raise ValueError(f"rows * block must be at most {LONGEST_BLOCK}, got {rows} * {block} = {rows * block}")
    R, N = x.shape
    if x.numel():
        programs = triton.cdiv(R, rows)
        softmax_online_kernel[(programs,)](
            x, y, x.stride(0), y.stride(0), R, N, rows, block, num_warps=_warps(rows * block)
        )
    return y


@triton.jit
def softmax_online_kernel(x, y, x_stride, y_stride, R, N, Br: tl.constexpr, Bc: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * Br + tl.arange(0, Br)  # [Br]
    columns = tl.arange(0, Bc)  # [Bc]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    for start in range(0, N, Bc):
        inside = (rows < R)[:, None] & (start + columns < N)[None, :]  # [Br, Bc]
        at = x + rows[:, None] * x_stride + start + columns[None, :]  # [Br, Bc]
        S_ij = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)  # [Br, Bc]
        m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [Br]
        m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no finite score yet
        alpha = tl.exp(m_i - m_safe)  # [Br]
        P_ij = tl.exp(S_ij - m_safe[:, None])  # [Br, Bc]
        l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
        m_i = m_new
    m_safe = tl.where(m_i == -float("inf"), 0, m_i)  # [Br]
    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]
    for start in range(0, N, Bc):  # now that m and l are known, the scores are needed a second time
        inside = (rows < R)[:, None] & (start + columns < N)[None, :]  # [Br, Bc]
        at = x + rows[:, None] * x_stride + start + columns[None, :]  # [Br, Bc]
        S_ij = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)  # [Br, Bc]
        P_ij = tl.exp(S_ij - m_safe[:, None]) / l_safe[:, None]  # [Br, Bc]
        tl.store(y + rows[:, None] * y_stride + start + columns[None, :], P_ij, mask=inside)


def _prepare(x):
    _check_tensors(x=x)
    if x.dim() != 2:
        raise ValueError(f"x must have two dimensions [rows, N], got {list(x.shape)}")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"x must have unit stride in its last dimension, got strides {x.stride()}")
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _check_tensors(**tensors):
    check_dense(**tensors)
    check_device(**tensors)
    check_memory("this kernel", **tensors)
    check_no_gradient("this kernel", **tensors)
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} must be float16, bfloat16 or float32, got {tensor.dtype}")


def _check_block(block):
    if block < 1 or block & (block - 1):
        raise ValueError(f"a block must be a power of two, got {block}")


def _warps(elements):
    """Return the warps for a tile of that many elements: 16 elements per thread, between 1 and 16 warps."""
    return min(max(elements // 512, 1), 16)
