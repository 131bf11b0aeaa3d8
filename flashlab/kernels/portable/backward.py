"""The backward pass: ``recomputation.gradients`` as Triton kernels. P_ij is rebuilt from lse, and never stored.

Each of the two large kernels keeps the sums it owns in registers and writes them once, so no two programs add to the
same number, and the same inputs give the same bits. But both kernels rebuild P_ij: 7 products of tiles instead of 5.
If a head is too wide for registers to hold dK_j and dV_j together, the kernel runs once for each: 8 products.

Query heads that share keys are a group. One program adds up the contributions of a group to a tile of keys. If that
makes too few programs, each program takes a part of the group. The gradients of the parts, rounded to the dtype of the
keys, are added up at the end, always in the same order (``configurations.parts_of_groups``).

Source: FlashAttention-2, Algorithm 2, its loop over keys split in two.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab.kernels import dropout, log_sum_exp, scores, tiles
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.masks import questions
from flashlab.kernels.portable import pieces
from flashlab.kernels.problem import LOG2_E

PADDING = tl.constexpr(128)  # rows; every Br of the kernels below divides it
SUMS = 1024  # numbers that a program of ``add_parts`` computes
ZEROED = tl.constexpr(4096)  # numbers that a program of ``row_constants`` zeroes at a time
OF_KEYS_AND_VALUES = {  # launch of ``key_value_gradients``: whether it computes dK, and dV
    "key_value_gradients": (True, True),
    "key_gradients": (True, False),
    "value_gradients": (False, True),
}


def run(gradients, incoming, saved, problem, launches, sums=(), rest=None, launched=None):
    """Fill gradients (dq, dk, dv) from incoming (do, dlse) and saved (q, k, v, o, lse), for a ``Problem``.

    The gradients are contiguous and new. launches: the ``Configuration`` of each launch, by name: "row_constants",
    one or two of ``OF_KEYS_AND_VALUES``, and "query_gradients". dlse may be None. sums: per step of the score
    function, the sum of its tensor's gradient, or None. rest: the part of lse beyond float32, or None. launched: as
    for ``launch.repeat``. Returns delta [B, H, Nq_padded], for the gradient of the sinks; None without sinks.
    """
    launched = {} if launched is None else launched
    dq, *of_keys = gradients
    q, k, v, o, lse = saved
    do, dlse = incoming
    parts = max(c.parts for c in launches.values())
    constants, shares = constants_for(lse, rest), shares_of(of_keys, parts)
    start_rows(o, do, lse, rest, dlse, constants, None, problem.unit, launches["row_constants"], launched)
    for name, outputs in OF_KEYS_AND_VALUES.items():
        if name in launches:
            start_keys(q, k, v, do, *shares, constants, problem, launches[name], outputs, launched)
    learning = any(total is not None for total in sums)  # into sums over many tiles, which cannot be repaired
    apart = problem.mask.keeps_apart and learning
    start_queries(q, k, v, do, dq, constants, problem, launches["query_gradients"], sums, launched, apart=apart)
    start_sums(of_keys, shares, parts, launched)
    if problem.mask.keeps_apart:
        repair(gradients, q, k, v, do, constants, problem, launches, launched)
    return None if problem.sinks is None else constants.delta


def repair(gradients, q, k, v, do, constants, problem, launches, launched):
    """Compute again those tiles of gradients (dq, dk, dv) that have NaN or infinities, which may be of other texts."""
    dq, *of_keys = gradients
    for name, outputs in OF_KEYS_AND_VALUES.items():
        if name in launches:
            c = launches[name]._replace(parts=1, stages=1)
            start_keys(q, k, v, do, *of_keys, constants, problem, c, outputs, launched, repair=True)
    c = launches["query_gradients"]._replace(stages=1)
    start_queries(q, k, v, do, dq, constants, problem, c, (), launched, apart=True, repair=True)


def shares_of(gradients, parts):
    """Return new memory for the share of each part of a group in dK and dV, [B, Hk * parts, Nk, d] each.

    If a group is one part, the shares are the gradients themselves.
    """
    if parts == 1:
        return gradients
    return [x.new_empty(x.shape[0], x.shape[1] * parts, *x.shape[2:]) for x in gradients]


class Constants(NamedTuple):
    """Numbers of each row for the kernels, [B, H, Nq_padded] each, float32."""

    lse: torch.Tensor  # in the units of the kernels' scores
    delta: torch.Tensor
    rest: torch.Tensor | None  # of lse, in units of log2


def constants_for(lse, rest=None):
    """Return new memory for the ``Constants`` of lse [B, H, Nq]; rest: its part beyond float32, or None."""
    B, H, Nq = lse.shape
    shape = B, H, padded_rows(Nq)
    return Constants(lse.new_empty(shape), lse.new_empty(shape), None if rest is None else lse.new_empty(shape))


def padded_rows(Nq):
    """Return Nq_padded, as ``padded`` does in kernels."""
    return tiles.count(Nq, PADDING.value) * PADDING.value


def start_rows(o, do, lse, rest, dlse, constants, sums, unit, c, launched):
    """Launch the kernel of the ``Constants``, which also zeroes sums, contiguous, if there are any.

    lse, rest [B, H, Nq]: the whole lse is their sum; rest may be None. unit: as in ``Problem``.
    """

    def first():
        B, H, Nq, columns = o.shape
        Nq_padded = constants.delta.shape[2]
        zeroed = 0 if sums is None else sums.numel()
        described, strides = tiles.arguments((o, do), (c.Br, c.Br))
        return launch(
            row_constants,
            (Nq_padded // c.Br, H, B),
            (*described, *tensors[2:]),
            (*strides, Nq, Nq_padded, columns, zeroed, unit, c.Br, tiles.width_of(columns)),
            warps=c.warps,
        )

    tensors = o, do, lse, rest, dlse, *constants, sums
    repeat(launched, "rows", tensors, first)


def start_keys(q, k, v, do, dk, dv, constants, problem, c, outputs, launched, **flags):
    """Launch the kernel of dK and dV; outputs: as in ``OF_KEYS_AND_VALUES``; flags: of ``Tile``."""

    def first():
        args, tile = problem.kernel_args(c, transposed=True, in_pieces=True)
        rows = c.Br, c.Bc, c.Bc, c.Br, c.Bc, c.Bc
        described, strides = tiles.arguments(tensors, rows, in_pieces=True)
        return launch(
            key_value_gradients,
            (tiles.count(problem.Nk, c.Bc), problem.Hk * c.parts, problem.B),
            (*described, constants),
            (strides, args, tile._replace(**flags), *outputs),
            warps=c.warps,
            stages=c.stages,
        )

    tensors = q, k, v, do, dk, dv
    repeat(launched, ("keys", *outputs, *flags.items()), (*tensors, constants), first)


def start_queries(q, k, v, do, dq, constants, problem, c, sums, launched, **flags):
    """Launch the kernel of dQ; flags: of ``Tile``."""

    def first():
        args, tile = problem.kernel_args(c, sums=sums, in_pieces=True)
        described, strides = tiles.arguments(tensors, (c.Br, c.Bc, c.Bc, c.Br, c.Br), in_pieces=True)
        return launch(
            query_gradients,
            (tiles.count(problem.Nq, c.Br), problem.H, problem.B),
            (*described, constants),
            (strides, args, tile._replace(**flags)),
            warps=c.warps,
            stages=c.stages,
        )

    tensors = q, k, v, do, dq
    repeat(launched, ("queries", *flags.items()), (*tensors, constants), first)


def start_sums(gradients, shares, parts, launched):
    """Launch the kernel that adds up the parts of groups, if there are several.

    The rows of the gradients may be the last ones of longer tensors.
    """
    if parts == 1:
        return

    def first():
        dk, dv = gradients
        B, Hk, Nk, _ = dk.shape
        sizes = tuple(Nk * x.shape[3] for x in (dk, dv))
        return launch(
            add_parts,
            (tiles.count(max(sizes), SUMS), B * Hk, 2),
            (*gradients, *shares),
            (dk.stride(1), dv.stride(1), *sizes, parts, SUMS),
            warps=4,
        )

    repeat(launched, "sums", (*gradients, *shares), first)


@triton.jit
def row_constants(
    O, dO, lse, rest, dlse,  # O dO [B, H, Nq, dv]: descriptors or pointers; pointers to the others [B, H, Nq]
    lse_padded, delta, rest_padded, sums,  # pointers to ``Constants``, and to the sums that start at 0 [zeroed]
    O_strides, dO_strides,
    Nq, Nq_padded, dv, zeroed,
    unit: tl.constexpr, Br: tl.constexpr, width_v: tl.constexpr,
):  # fmt: skip
    """Compute ``Constants`` of each row: delta = rowsum(dO * O) - dlse, and lse in the units of scores.

    lse moves by P_ij with S_ij, so its gradient enters dS = P * (dP - delta) beside delta. rest, dlse and sums may be
    None.
    The first programs have the last heads, so that those which the next kernel reads first are in L2.
    Rows that see no key and rows past the end get lse = +inf, so all their weights are e^(S - inf) = 0.
    """
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


@triton.jit
def key_value_gradients(
    Q, K, V, dO, dK, dV,  # descriptors or pointers
    constants,  # ``Constants``
    strides, problem, tile: tl.constexpr,  # as for ``attention_forward``
    of_keys: tl.constexpr, of_values: tl.constexpr,  # whether to compute dK, and dV
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV in key/value head hk of batch b: program (j, hk, b).

    All tiles are transposed, [Bc, Br]: then P^T and dS^T multiply from the left as they come out of the registers.
    Causal: the first programs have the keys that most queries see. A group with several parts is treated as several
    key/value heads in a row, each with its own part of the query heads and its own dK and dV.
    """
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    width: tl.constexpr = tile.width
    width_v: tl.constexpr = tile.width_v
    j, hk, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    Hk, B = tl.num_programs(1), tl.num_programs(2)
    H, Nq, Nk = Hk * problem.group, problem.Nq, problem.Nk
    Q = pieces.view(Q, [B, H, Nq, problem.d], strides[0], Br, width)
    K = pieces.view(K, [B, Hk // problem.parts, Nk, problem.d], strides[1], Bc, width)
    V = pieces.view(V, [B, Hk // problem.parts, Nk, problem.dv], strides[2], Bc, width_v)
    dO = pieces.view(dO, [B, H, Nq, problem.dv], strides[3], Br, width_v)
    dK = pieces.view(dK, [B, Hk, Nk, problem.d], strides[4], Bc, width)
    dV = pieces.view(dV, [B, Hk, Nk, problem.dv], strides[5], Bc, width_v)
    if tile.repair:
        finite = not of_keys or pieces.is_finite(pieces.load(dK, b, hk, j * Bc, Bc, width))
        if finite and (not of_values or pieces.is_finite(pieces.load(dV, b, hk, j * Bc, Bc, width_v))):
            return

    keys = j * Bc + tl.arange(0, Bc)  # [Bc]
    K_j = pieces.load(K, b, hk // problem.parts, j * Bc, Bc, width)  # [Bc, d]
    V_j = pieces.load(V, b, hk // problem.parts, j * Bc, Bc, width_v) if of_keys else 0  # [Bc, dv]
    dK_j = pieces.zeros(Bc, width) if of_keys else 0  # [Bc, d]
    dV_j = pieces.zeros(Bc, width_v) if of_values else 0  # [Bc, dv]
    for member in range(problem.group):  # the query heads that share this key/value head, or a part of them
        h = hk * problem.group + member
        row = (b * H + h).to(tl.int64) * padded(Nq)
        # Queries past Nq are zeros, and add nothing.
        ends = questions.ranges(problem.mask, b, h, j * Bc, Bc, Br, Nk, Nq, False)
        for part in tl.static_range(2, -1, -1):  # causal: the whole tiles first, which keeps fewer registers
            # Few tiles are cut by the mask: no pipeline for them.
            for at in tl.range(
                ends[part], ends[part + 1], questions.step(problem.mask, Br), num_stages=None if part == 1 else 1
            ):
                start = questions.first_of(problem.mask, b, h, j, at, Br)
                dK_j, dV_j = add_rows(
                    dK_j, dV_j, K_j, V_j, Q, dO, constants, row, b, h, start, keys,
                    problem, tile, part != 1, of_keys, of_values,
                )  # fmt: skip
    if of_keys:
        pieces.store(dK, b, hk, j * Bc, dK_j, problem.scale, Bc, width)
    if of_values:
        pieces.store(dV, b, hk, j * Bc, dV_j, 1, Bc, width_v)


@triton.jit
def add_rows(
    dK_j, dV_j, K_j, V_j, Q, dO, constants, head, b, h, start, keys,
    problem, tile: tl.constexpr, masked: tl.constexpr, of_keys: tl.constexpr, of_values: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries gives to dK_j and dV_j. Rows past the end have P = 0 and add nothing.

    head: the place of the head's first row in the constants.
    """
    Nq, Nk = problem.Nq, problem.Nk
    rows = start + tl.arange(0, tile.Br)  # [Br]
    i, j = rows[None, :], keys[:, None]  # [1, Br], [Bc, 1]
    Q_i = pieces.load(Q, b, h, start, tile.Br, tile.width)  # [Br, d]
    lse_i = tl.load(constants.lse + head + rows)[None, :]  # [1, Br]
    rest_i = None if constants.rest is None else tl.load(constants.rest + head + rows)[None, :]  # [1, Br]
    dot = pieces.product(K_j, Q_i, tile)  # [Bc, Br]
    St_ij = dot
    if problem.score is not None:
        St_ij = scores.apply(problem, dot * problem.scale, b, h, i, j)  # [Bc, Br]
    Pt_ij = log_sum_exp.weights(St_ij, lse_i, rest_i, problem.factor, tile.unit)  # [Bc, Br]
    if masked:
        seen = questions.visible(problem.mask, b, h, i, j, Nq, Nk, False, True)  # [Bc, Br]
        Pt_ij = tl.where(seen, Pt_ij, 0)
    dO_i = pieces.load(dO, b, h, start, tile.Br, tile.width_v)  # [Br, dv]
    if of_keys:
        dPt_ij = pieces.product(V_j, dO_i, tile)  # [Bc, Br]
    if of_values:
        Zt_ij = Pt_ij  # [Bc, Br]
        if problem.dropout is not None:
            Zt_ij = dropout.drop(problem.dropout, Pt_ij, b, h, i, j)
        dO_finite = dO_i
        if masked and tile.repair:
            dV_j, dO_finite = pieces.finite(dV_j, dO_i, seen)
        dV_j = pieces.add_product(dV_j, Zt_ij, dO_finite, tile)  # [Bc, dv]
    if of_keys:
        if problem.dropout is not None:
            dPt_ij = dropout.drop(problem.dropout, dPt_ij, b, h, i, j)
        delta_i = tl.load(constants.delta + head + rows)  # [Br]
        dSt_ij = Pt_ij * (dPt_ij - delta_i[None, :])  # [Bc, Br]
        if problem.score is not None:
            dSt_ij = scores.differentiate(problem, dot * problem.scale, dSt_ij, b, h, i, j, False)
        if masked and (tile.unseen or tile.repair):  # last, since the derivative at a score of NaN is NaN
            dSt_ij = tl.where(seen, dSt_ij, 0)
        if masked and tile.repair:
            dK_j, Q_i = pieces.finite(dK_j, Q_i, seen)
        dK_j = pieces.add_product(dK_j, dSt_ij, Q_i, tile)  # [Bc, d]
    return dK_j, dV_j


@triton.jit
def query_gradients(
    Q, K, V, dO, dQ,  # descriptors or pointers
    constants,  # ``Constants``
    strides, problem, tile: tl.constexpr,  # as for ``attention_forward``
):  # fmt: skip
    """Compute rows i * Br .. (i + 1) * Br of dQ. The loops are those of the forward pass."""
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    width: tl.constexpr = tile.width
    width_v: tl.constexpr = tile.width_v
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    Hk, Nq, Nk = H // problem.group, problem.Nq, problem.Nk
    Q = pieces.view(Q, [B, H, Nq, problem.d], strides[0], Br, width)
    K = pieces.view(K, [B, Hk, Nk, problem.d], strides[1], Bc, width)
    V = pieces.view(V, [B, Hk, Nk, problem.dv], strides[2], Bc, width_v)
    dO = pieces.view(dO, [B, H, Nq, problem.dv], strides[3], Br, width_v)
    dQ = pieces.view(dQ, [B, H, Nq, problem.d], strides[4], Br, width)
    if tile.repair:
        if pieces.is_finite(pieces.load(dQ, b, h, i * Br, Br, width)):
            return

    rows = i * Br + tl.arange(0, Br)  # [Br]
    ends = questions.ranges(problem.mask, b, h, i * Br, Br, Bc, Nq, Nk, tile.ragged)
    row = (b * H + h).to(tl.int64) * padded(Nq) + rows  # [Br]
    lse_i = tl.load(constants.lse + row)[:, None]  # [Br, 1]
    rest_i = None if constants.rest is None else tl.load(constants.rest + row)[:, None]  # [Br, 1]
    delta_i = tl.load(constants.delta + row)  # [Br]
    Q_i = pieces.load(Q, b, h, i * Br, Br, width)  # [Br, d]
    dO_i = pieces.load(dO, b, h, i * Br, Br, width_v)  # [Br, dv]
    dQ_i = pieces.zeros(Br, width)  # [Br, d]
    for part in tl.static_range(3):
        for at in range(ends[part], ends[part + 1], questions.step(problem.mask, Bc)):
            start = questions.first_of(problem.mask, b, h, i, at, Bc)
            dQ_i = add_columns(
                dQ_i, Q_i, dO_i, lse_i, rest_i, delta_i, K, V, b, h, start, rows, problem, tile, part != 1
            )  # fmt: skip
    pieces.store(dQ, b, h, i * Br, dQ_i, problem.scale, Br, width)


@triton.jit
def add_columns(
    dQ_i, Q_i, dO_i, lse_i, rest_i, delta_i, K, V, b, h, start, rows,
    problem, tile: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add the contribution of one tile of keys and values to dQ_i."""
    hk, Nq, Nk = h // problem.group, problem.Nq, problem.Nk
    i, j = rows[:, None], (start + tl.arange(0, tile.Bc))[None, :]  # [Br, 1], [1, Bc]
    K_j = pieces.load(K, b, hk, start, tile.Bc, tile.width)  # [Bc, d]
    V_j = pieces.load(V, b, hk, start, tile.Bc, tile.width_v)  # [Bc, dv]
    if masked:
        seen = questions.visible(problem.mask, b, h, i, j, Nq, Nk, tile.ragged)  # [Br, Bc]
        if tile.unseen and not tile.repair:
            K_j, V_j = pieces.forget(K_j, seen), pieces.forget(V_j, seen)
    dot = pieces.product(Q_i, K_j, tile)  # [Br, Bc]
    if masked and tile.apart:
        dot = tl.where(seen, dot, 0)  # for its derivative
    S_ij = dot
    if problem.score is not None:
        S_ij = scores.apply(problem, dot * problem.scale, b, h, i, j)  # [Br, Bc]
    P_ij = log_sum_exp.weights(S_ij, lse_i, rest_i, problem.factor, tile.unit)  # [Br, Bc]
    if masked:
        P_ij = tl.where(seen, P_ij, 0)
    dP_ij = pieces.product(dO_i, V_j, tile)  # [Br, Bc]
    if problem.dropout is not None:
        dP_ij = dropout.drop(problem.dropout, dP_ij, b, h, i, j)
    dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
    if masked and tile.apart:
        dS_ij = tl.where(seen, dS_ij, 0)
    if masked and tile.repair:
        dQ_i, K_j = pieces.finite(dQ_i, K_j, seen)
    if problem.score is not None:
        dS_ij = scores.differentiate(problem, dot * problem.scale, dS_ij, b, h, i, j, True)
    return pieces.add_product(dQ_i, dS_ij, K_j, tile)  # [Br, d]


@triton.jit
def add_parts(
    dK, dV, shares_of_dK, shares_of_dV,  # pointers: dK, dV [B, Hk, Nk, ..]; shares [B, Hk * parts, Nk, ..], contiguous
    dK_stride, dV_stride, dK_size, dV_size,  # from head to head of dK and dV; numbers in a head
    parts: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add up the parts of groups for ``block`` numbers of a head: program (n, head, 0 for dK or 1 for dV)."""
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


@triton.jit
def padded(Nq):
    """Return the rows of a head in ``Constants``: a multiple of PADDING."""
    return tl.cdiv(Nq, PADDING) * PADDING
