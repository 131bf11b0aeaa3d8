"""What the backward passes have in common: numbers of each row of queries, and sums over the parts of groups.

``backward`` and ``hopper.backward`` launch the kernels of this file before and after their own.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab.kernels import dependent_launch, tiles
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.problem import LOG2_E

PADDING = tl.constexpr(128)  # rows; every Br of the backward kernels divides it
SUMS = 1024  # numbers that a program of ``add_parts`` computes
ZEROED = tl.constexpr(4096)  # numbers that a program of ``row_constants`` zeroes at a time


class Constants(NamedTuple):
    """Numbers of each row for the kernels, [B, H, Nq_padded] each, float32."""

    lse: torch.Tensor  # in the units of the kernels' scores
    delta: torch.Tensor  # rowsum(dO * O) - dlse
    rest: torch.Tensor | None  # of lse, in units of log2


def constants_for(lse, rest=None):
    """Return new memory for the ``Constants`` of lse [B, H, Nq]; rest: its part beyond float32, or None."""
    B, H, Nq = lse.shape
    shape = B, H, padded_rows(Nq)
    return Constants(lse.new_empty(shape), lse.new_empty(shape), None if rest is None else lse.new_empty(shape))


def padded_rows(Nq):
    """Return Nq_padded, as ``padded`` does in kernels."""
    return tiles.count(Nq, PADDING.value) * PADDING.value


@triton.jit
def padded(Nq):
    """Return the rows of a head in ``Constants``: a multiple of PADDING."""
    return tl.cdiv(Nq, PADDING) * PADDING


def start_rows(o, do, lse, rest, dlse, constants, sums, unit, c, launched):
    """Launch the kernel of the ``Constants``, which also fills ``sums``, contiguous or None, with zeros.

    lse, rest [B, H, Nq]: the whole lse is their sum; rest may be None. unit: as in ``Problem``.
    """

    def first():
        B, H, Nq, columns = o.shape
        Nq_padded = constants.delta.shape[2]
        zeroed = 0 if sums is None else sums.numel()
        early = dependent_launch.possible(o.device)
        described, strides = tiles.arguments((o, do), (c.Br, c.Br))
        return launch(
            row_constants,
            (Nq_padded // c.Br, H, B),
            (*described, *tensors[2:]),
            (*strides, Nq, Nq_padded, columns, zeroed, unit, c.Br, tiles.width_of(columns), early),
            warps=c.warps,
        )

    tensors = o, do, lse, rest, dlse, *constants, sums
    repeat(launched, "rows", tensors, first)


@triton.jit
def row_constants(
    O, dO, lse, rest, dlse,  # O dO [B, H, Nq, dv]: descriptors or pointers; pointers to the others [B, H, Nq]
    lse_padded, delta, rest_padded, sums,  # pointers to ``Constants``, and to the sums that start at 0 [zeroed]
    O_strides, dO_strides,
    Nq, Nq_padded, dv, zeroed,
    unit: tl.constexpr, Br: tl.constexpr, width_v: tl.constexpr,
    early: tl.constexpr,  # the next kernel may be launched before this one has ended
):  # fmt: skip
    """Compute ``Constants`` of each row: delta = rowsum(dO * O) - dlse, and lse in the units of scores.

    The derivative of lse with respect to S_ij is P_ij, so dlse enters dS = P * (dP - delta) as a part of delta. rest,
    dlse and sums may be None.
    The first programs have the last heads. So the heads that the next kernel reads first come last, and are in L2.
    Rows that see no key and rows past the end get lse = +inf, so all their weights are e^(S - inf) = 0.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    H, B = tl.num_programs(1), tl.num_programs(2)
    i, h, b = tl.program_id(0), H - 1 - tl.program_id(1), B - 1 - tl.program_id(2)
    O = tiles.view(O, [B, H, Nq, dv], O_strides, Br, width_v)
    dO = tiles.view(dO, [B, H, Nq, dv], dO_strides, Br, width_v)

    O_i = tiles.load(O, b, h, i * Br, Br, width_v).to(tl.float32)  # [Br, dv]
    dO_i = tiles.load(dO, b, h, i * Br, Br, width_v).to(tl.float32)  # [Br, dv]
    rows = i * Br + tl.arange(0, Br)  # [Br]
    head = (b * H + h).to(tl.int64)
    lse_i = tl.load(lse + head * Nq + rows, mask=rows < Nq, other=-float("inf"))  # [Br]
    lse_i = tl.where(lse_i == -float("inf"), float("inf"), lse_i * (LOG2_E / unit))  # [Br]
    tl.store(lse_padded + head * Nq_padded + rows, lse_i)
    if rest is not None:
        rest_i = tl.load(rest + head * Nq + rows, mask=rows < Nq, other=0)  # [Br]
        tl.store(rest_padded + head * Nq_padded + rows, rest_i * LOG2_E)
    delta_i = tl.sum(dO_i * O_i, 1)  # [Br]
    if dlse is not None:
        delta_i -= tl.load(dlse + head * Nq + rows, mask=rows < Nq, other=0)
    tl.store(delta + head * Nq_padded + rows, delta_i)
    if sums is not None:
        programs = H * B * tl.num_programs(0)
        for part in range(head * tl.num_programs(0) + i, tl.cdiv(zeroed, ZEROED), programs):
            at = part * ZEROED + tl.arange(0, ZEROED)
            tl.store(sums + at, tl.zeros([ZEROED], tl.float32), mask=at < zeroed)


def shares_of(gradients, parts):
    """Return new memory for the share of each part of a group in dK and dV, [B, Hk * parts, Nk, d] each.

    If a group is one part, the shares are the gradients themselves.
    """
    if parts == 1:
        return gradients
    return [x.new_empty(x.shape[0], x.shape[1] * parts, *x.shape[2:]) for x in gradients]


def start_sums(gradients, shares, parts, launched):
    """Launch the kernel that adds up the parts of groups, if there are several.

    dK and dV may be the last rows of longer tensors, as ``hopper.backward.without_unseen`` returns them.
    """
    if parts == 1:
        return

    def first():
        dk, dv = gradients
        B, Hk, Nk, _ = dk.shape
        sizes = tuple(Nk * x.shape[3] for x in (dk, dv))
        early = dependent_launch.possible(dk.device)
        return launch(
            add_parts,
            (tiles.count(max(sizes), SUMS), B * Hk, 2),
            (*gradients, *shares),
            (dk.stride(1), dv.stride(1), *sizes, parts, SUMS, early),
            warps=4,
            early=early,
        )

    repeat(launched, "sums", (*gradients, *shares), first)


@triton.jit
def add_parts(
    dK, dV, shares_of_dK, shares_of_dV,  # pointers: dK, dV [B, Hk, Nk, ..]; shares [B, Hk * parts, Nk, ..], contiguous
    dK_stride, dV_stride, dK_size, dV_size,  # from head to head of dK and dV; numbers in a head
    parts: tl.constexpr, block: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Add up the parts of groups for ``block`` numbers of a head: program (n, head, 0 for dK or 1 for dV)."""
    dependent_launch.begin(early)
    if tl.program_id(2) == 0:
        add_parts_of(dK, shares_of_dK, dK_stride, dK_size, parts, block)
    else:
        add_parts_of(dV, shares_of_dV, dV_stride, dV_size, parts, block)


@triton.jit
def add_parts_of(dX, shares, stride, size, parts: tl.constexpr, block: tl.constexpr):
    """Add up the parts for one block of dX, in float32 and always in the same order."""
    at, head = tl.program_id(0) * block + tl.arange(0, block), tl.program_id(1).to(tl.int64)  # [block]
    total = tl.zeros([block], tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(shares + (head * parts + part) * size + at, mask=at < size, other=0).to(tl.float32)
    tl.store(dX + head * stride + at, total.to(dX.dtype.element_ty), mask=at < size)
