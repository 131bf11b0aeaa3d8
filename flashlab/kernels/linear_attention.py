"""Linear attention with decay in Triton, forward only: chunk by chunk, with the past in one matrix.

The loop is that of ``reference.linear_attention.chunked``. A program computes some columns of V for one head: the
columns of the state do not depend on each other, so programs divide them. They cannot divide the tokens: each chunk
needs the state after the previous chunk.

The state takes the place of m, l and O in the online softmax. The kernel compiles for GPUs; it was never timed on one.

Source: Sun et al. 2023, arXiv 2307.08621.
"""

import torch
import triton
import triton.language as tl

from flashlab.kernels.checks import check_dense, check_device, check_memory, check_no_gradient
from flashlab.kernels.device import stepped_around
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import DTYPES, WIDEST
from flashlab.kernels.tiles import precision_of, width_of
from flashlab.machine.arguments import check_flag, shown
from flashlab.machine.numbers import whole_number

LONGEST_CHUNK = 1024  # its scores are one block
COLUMNS, WARPS = 32, 8  # of V per program, and its warps: not tuned


@stepped_around("linear_attention")
def linear_attention(q, k, v, *, decay=None, start=None, return_state=False, chunk=None):
    """Compute O_i = Σ_{j <= i} decay^(i - j) (q_i · k_j) v_j. Nothing is scaled or normalised.

    Args:
        q, k: [B, H, N, d]; v: [B, H, N, dv]; of one dtype out of float16, bfloat16 and float32, d and dv from 1 to 256.
        decay: [H] float32, above 0 and at most 1: the factor by which each token shrinks the state; 1 if None.
        start: the state [B, H, d, dv] before the first token, float32; zeros if None.
        return_state: also return the state after the last token, the ``start`` of the next call.
        chunk: tokens per chunk, a power of two from 16 to 1,024; if None, 64 for d up to 64 in 16 bits, else 32.

    Returns:
        O [B, H, N, dv] in the dtype of q, or (O, state) with the state [B, H, d, dv] in float32. No gradients.

    The state is kept in float32, and narrowed to the dtype of q for its product with a chunk's queries.

    Raises:
        TypeError, ValueError: an argument is not as described.
        NotImplementedError: an argument requires a gradient.
    """
    check_flag("return_state", return_state)
    _check(q, k, v, decay, start, chunk)
    B, H, N, d = q.shape
    dv = v.shape[3]
    chunk = whole_number(chunk) or (64 if d <= 64 and q.element_size() == 2 else 32)  # None: by the registers
    q, k, v = (x.contiguous() for x in (q, k, v))
    decay = torch.ones(H, dtype=torch.float32, device=q.device) if decay is None else decay
    if start is None:
        state = torch.zeros(B, H, d, dv, dtype=torch.float32, device=q.device)
    else:
        state = start.clone(memory_format=torch.contiguous_format)
    o = torch.empty_like(v)  # [B, H, N, dv]
    if B * H * N:
        Bv = min(COLUMNS, width_of(dv))
        numbers = N, d, dv, chunk, width_of(d), Bv, precision_of(q)
        grid = triton.cdiv(dv, Bv), H, B
        launch(linear_attention_chunks, grid, (q, k, v, o, state, decay.log2()), numbers, warps=WARPS)
    return (o, state) if return_state else o


@triton.jit
def linear_attention_chunks(
    Q, K, V, O, state, log2_decay,  # [B, H, N, d] twice, [B, H, N, dv] twice, [B, H, d, dv], [H]
    N, d, dv,
    C: tl.constexpr, width: tl.constexpr, Bv: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute Bv columns of O for one head, and the same columns of its state."""
    h, head = tl.program_id(1), (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    Q, K, V, O = Q + head * N * d, K + head * N * d, V + head * N * dv, O + head * N * dv
    cols, cols_v = tl.arange(0, width)[None, :], (tl.program_id(0) * Bv + tl.arange(0, Bv))[None, :]  # [1, d], [1, Bv]
    r = tl.arange(0, C)  # [C]
    log2_decay = tl.load(log2_decay + h)
    away = r[:, None] - r[None, :]  # [C, C]
    near = tl.where(away >= 0, tl.exp2(log2_decay * tl.maximum(away, 0)), 0.0)  # [C, C]   decay^(i - j)
    at = state + head * d * dv + cols.T * dv + cols_v  # [d, Bv]
    inside = (cols.T < d) & (cols_v < dv)  # [d, Bv]
    KV = tl.load(at, mask=inside, other=0.0)  # [d, Bv]
    for first in range(0, N, C):
        rows = (first + r)[:, None].to(tl.int64)  # [C, 1]
        c = tl.minimum(C, N - first)  # tokens of this chunk
        Q_i = tl.load(Q + rows * d + cols, mask=(rows < N) & (cols < d), other=0.0)  # [C, d]
        K_i = tl.load(K + rows * d + cols, mask=(rows < N) & (cols < d), other=0.0)  # [C, d]
        V_i = tl.load(V + rows * dv + cols_v, mask=(rows < N) & (cols_v < dv), other=0.0)  # [C, Bv]
        S_i = near * tl.dot(Q_i, K_i.T, input_precision=precision)  # [C, C]
        past = tl.dot(Q_i, KV.to(Q_i.dtype), input_precision=precision)  # [C, Bv]
        past = tl.exp2(log2_decay * (r + 1))[:, None] * past  # [C, Bv]
        O_i = tl.dot(S_i.to(V_i.dtype), V_i, past, input_precision=precision)  # [C, Bv]
        tl.store(O + rows * dv + cols_v, O_i.to(O.dtype.element_ty), mask=(rows < N) & (cols_v < dv))
        left = tl.exp2(log2_decay * tl.maximum(c - 1 - r, 0))[:, None] * K_i  # [C, d]
        KV = tl.dot(left.to(K_i.dtype).T, V_i, tl.exp2(log2_decay * c) * KV, input_precision=precision)  # [d, Bv]
    tl.store(at, KV, mask=inside)


def _check(q, k, v, decay, start, chunk):
    options = {name: x for name, x in (("decay", decay), ("start", start)) if x is not None}
    tensors = {"q": q, "k": k, "v": v} | options
    check_dense(**tensors)
    check_device(**tensors)
    check_memory("linear_attention", **tensors)
    check_no_gradient("linear_attention", **tensors)
    if any(x.dim() != 4 for x in (q, k, v)) or q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        found = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise ValueError(f"expected q [B, H, N, d], k [B, H, N, d], v [B, H, N, dv], got {found}")
    if not (1 <= q.shape[3] <= WIDEST and 1 <= v.shape[3] <= WIDEST):
        raise ValueError(f"d and dv are 1 to {WIDEST}, got {q.shape[3]} and {v.shape[3]}")
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in DTYPES:
        raise TypeError(f"expected one dtype of float16, bfloat16, float32, got {q.dtype}, {k.dtype}, {v.dtype}")
    (B, H, _, d), dv = q.shape, v.shape[3]
    shapes = {"decay": [H], "start": [B, H, d, dv]}
    for name, x in options.items():
        if list(x.shape) != shapes[name] or x.dtype != torch.float32:
            raise ValueError(f"{name} must be float32 {shapes[name]}, got {x.dtype} {list(x.shape)}")
    if decay is not None and not bool(((decay > 0) & (decay <= 1)).all()):
        raise ValueError(f"decay must be above 0 and at most 1, got {decay.tolist()!s:.60}")
    tokens = whole_number(chunk)
    if chunk is not None and (tokens is None or not 16 <= tokens <= LONGEST_CHUNK or tokens & (tokens - 1)):
        raise ValueError(f"chunk must be a power of two from 16 to {LONGEST_CHUNK}, or None, got {shown(chunk)}")
