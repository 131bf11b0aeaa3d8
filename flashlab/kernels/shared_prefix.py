"""Prefixes that many texts share: read once for all of them, and merged with the results of each text's own keys.

The queries of all texts that share a prefix are the rows of one dense problem, limited by arithmetic and not by memory.
Its results merge with those of the texts' own keys like any two splits. Prefixes of prefixes, a tree, merge in turn.

Source: Hydragen, arXiv 2402.05099, section 3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashlab.kernels import masks
from flashlab.kernels.attention import flash_attention
from flashlab.kernels.checks import check_dense, check_device
from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.operator import Step, check_cache, check_values, checked, problem_of, run
from flashlab.kernels.device import stepped_around
from flashlab.kernels.launch import launch
from flashlab.kernels.merge import check_results, check_state, merged
from flashlab.kernels.tiles import count, width_of
from flashlab.machine.arguments import check_flag

ROWS = 16  # of results that a program merges


class Prefix(NamedTuple):
    """Keys and values that precede those of some texts."""

    cache: Cache | tuple[Tensor, Tensor]  # of one text: K [1, Hk, P, d] and V [1, Hk, P, dv], or pages
    texts: Tensor | None = None  # the texts that share it [R], int32, each once (checked on the CPU only); None: all


@stepped_around("decode_shared")
def decode_shared(
    q: Tensor,
    prefixes: Sequence[Prefix],
    cache: Cache | tuple[Tensor, Tensor],
    *,
    lengths: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    fixed_split: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of n new tokens per text to its prefixes and then to its own keys in ``cache``.

    The result is that of ``decode`` with the keys of the prefixes before each text's own; every token sees all of its
    prefixes. Prefixes have the same heads and columns as the texts' own cache. Arguments, results and errors are
    those of ``decode``, without masks, scores and sinks.
    """
    if isinstance(prefixes, Prefix) or not isinstance(prefixes, Sequence):
        raise TypeError(f"prefixes must be a list of Prefix, got {type(prefixes).__name__}")
    check_flag("return_lse", return_lse)
    cache = Cache.of(cache, lengths)
    problem = checked(q, cache, None, scale, fixed_split)
    prefixes = [_named(f"prefixes[{n}]", prefix, q, cache) for n, prefix in enumerate(prefixes)]
    out = _wide(q, cache) if prefixes else None
    O, lse = run(q, cache, Step.of(q, cache, problem, fixed_split), out)  # [B, H, n, dv], [B, H, n]
    for prefix in prefixes:
        rows = q if prefix.texts is None else q[prefix.texts]  # [R, H, n, d]
        O_p, lse_p = _dense(rows, prefix.cache, problem.scale, cache.K.shape[1])  # [1, Hk, R g n, dv], [1, Hk, R g n]
        merge(O, lse, O_p, lse_p, prefix.texts)
    O = O.to(q.dtype)
    return (O, lse) if return_lse else O


def _named(name, prefix, q, cache):
    """Return ``_checked``, or raise its error under the name of the prefix."""
    try:
        return _checked(prefix, q, cache)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _checked(prefix, q, cache):
    """Return a prefix of the texts with queries q, or raise TypeError or ValueError. cache: of the texts' own keys."""
    if not isinstance(prefix, Prefix):
        raise TypeError(f"expected a Prefix, got {type(prefix).__name__}")
    shared, texts, B = Cache.of(prefix.cache), prefix.texts, len(q)
    check_cache(q, shared, texts=1)
    if q.device.type == "cpu":
        check_values(shared, masks.full())
    found, expected = ((it.K.shape[1], it.V.shape[3]) for it in (shared, cache))
    if found != expected:
        raise ValueError(f"a prefix has Hk and dv of the texts' own cache, {expected}, got {found}")
    if texts is None:
        return prefix
    check_texts(texts, B)
    check_device(q=q, texts=texts)
    return prefix._replace(texts=texts.contiguous())


def check_texts(texts: Tensor, B: int) -> None:
    """Raise TypeError or ValueError unless these are numbers of B texts, each once. On a GPU they are not read."""
    check_dense(texts=texts)
    if texts.dtype != torch.int32 or texts.ndim != 1:
        raise ValueError(f"the texts of a prefix must be int32 [R], got {texts.dtype} {list(texts.shape)}")
    numbers = texts.tolist() if texts.device.type == "cpu" else []
    if len(set(numbers)) < len(numbers) or not all(0 <= number < B for number in numbers):
        raise ValueError(f"the texts of a prefix must be different numbers from 0 to {B - 1}, got {numbers}")


def _dense(q, cache, scale, Hk):
    """Compute attention of all rows that share keys, R texts times g heads times n tokens, to one text's keys."""
    R, H, n, d = q.shape
    rows = q.reshape(R, Hk, H // Hk * n, d).transpose(0, 1).reshape(1, Hk, R * H // Hk * n, d)
    if isinstance(cache, Cache):
        step = Step.of(rows, cache, problem_of(rows, cache, masks.full(), scale))
        return run(rows, cache, step, _wide(rows, cache))
    return flash_attention(rows, *cache, scale=scale, return_lse=True)


def _wide(q, cache):
    """Return new tensors for O and lse, both in float32, and None: no rest."""
    shape = q.shape[:3]
    O, lse = (q.new_empty(sizes, dtype=torch.float32) for sizes in ((*shape, cache.V.shape[3]), shape))
    return O, lse, None


def merge(O: Tensor, lse: Tensor, O_p: Tensor, lse_p: Tensor, texts: Tensor | None = None) -> None:
    """Merge the results of other keys into O [B, H, n, dv] and lse [B, H, n], in place, both in float32.

    O_p [1, Hk, R g n, dv], lse_p [1, Hk, R g n]: of R texts, whose rows are (text, head of the group, token).
    texts: which they are [R], int32; None: all, in order. Logarithms are natural on both sides: another base gives no
    error, and a wrong result. Raises TypeError or ValueError for tensors that are not as described.
    """
    check_state(O, lse)
    check_results(O_p=O_p, lse_p=lse_p)
    if texts is not None:
        check_texts(texts, len(O))
    (_, H, n, dv), R = O.shape, len(O) if texts is None else len(texts)
    Hk = O_p.shape[1] if O_p.ndim == 4 else 0
    if O.dtype != torch.float32 or Hk == 0 or H % Hk:
        raise ValueError(f"expected O in float32 and O_p of Hk heads, got {O.dtype} {list(O.shape)}, {list(O_p.shape)}")
    rows = R * (H // Hk) * n
    if O_p.shape != (1, Hk, rows, dv) or lse_p.shape != (1, Hk, rows):
        expected = f"O_p [1, {Hk}, {rows}, {dv}] and lse_p [1, {Hk}, {rows}]"
        raise ValueError(f"expected {expected}, got {list(O_p.shape)} and {list(lse_p.shape)}")
    if O_p.numel() and O.numel():
        launch(
            attention_merge,
            (count(R * H * n, ROWS), 1, 1),
            (O, lse, O_p, lse_p.contiguous(), texts),
            (R, H, Hk, n, dv, O_p.stride(1), O_p.stride(2), ROWS, width_of(dv)),
            warps=4,
        )


@triton.jit
def attention_merge(
    O, lse, O_p, lse_p, texts,  # as for ``merge``
    R, H, Hk, n, dv, head_stride, row_stride,  # of O_p
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Merge some rows of two results: program p has rows p * rows .. (p + 1) * rows of O_p."""
    group = H // Hk
    i = tl.program_id(0) * rows + tl.arange(0, rows)  # [rows]
    there = i < R * H * n  # [rows]
    per_head = R * group * n
    hk, row = i // per_head, i % per_head  # [rows], [rows]
    b = row // (group * n)  # [rows]
    if texts is not None:
        b = tl.load(texts + b, mask=there, other=0)
    to = (b * Hk + hk).to(tl.int64) * (group * n) + row % (group * n)  # [rows]   row of O [B, Hk, g, n]
    cols = tl.arange(0, width)  # [dv]
    seen = there[:, None] & (cols < dv)[None, :]  # [rows, dv]
    lse_i, lse_j = tl.load(lse + to, mask=there, other=0.0), tl.load(lse_p + i, mask=there, other=0.0)  # [rows]
    O_i = tl.load(O + to[:, None] * dv + cols[None, :], mask=seen, other=0.0)  # [rows, dv]
    at = hk.to(tl.int64) * head_stride + row.to(tl.int64) * row_stride  # [rows]
    O_j = tl.load(O_p + at[:, None] + cols[None, :], mask=seen, other=0.0).to(tl.float32)  # [rows, dv]
    O_i, lse_i = merged(O_i, lse_i, O_j, lse_j)
    tl.store(O + to[:, None] * dv + cols[None, :], O_i, mask=seen)
    tl.store(lse + to, lse_i, mask=there)
