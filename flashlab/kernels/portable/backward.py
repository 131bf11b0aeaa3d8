"""The backward pass: ``recomputation.gradients`` as Triton kernels. P_ij is rebuilt from lse, and never stored.

Each of the two large kernels keeps the sums it owns in registers and writes them once, so no two programs add to the
same number, and the same inputs give the same bits. But both kernels rebuild P_ij: 7 products of tiles instead of 5.
If a head is too wide for registers to hold dK_j and dV_j together, their kernel runs once for each: 8 products.

Query heads that share keys are a group. One program adds up the contributions of a group to a tile of keys. If that
makes too few programs, each program takes a part of the group. The gradients of the parts, rounded to the dtype of the
keys, are added up at the end, always in the same order (``configurations.parts_of_groups``).

Source: FlashAttention-2, Algorithm 2, its loop over keys split in two.
"""

import triton
import triton.language as tl

from flashlab.kernels import dropout, log_sum_exp, scores, tiles
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.masks import questions
from flashlab.kernels.portable import pieces
from flashlab.kernels.portable.rows import constants_for, padded, shares_of, start_rows, start_sums

OF_KEYS_AND_VALUES = {  # launch of ``key_value_gradients``: whether it computes dK, and dV
    "key_value_gradients": (True, True),
    "key_gradients": (True, False),
    "value_gradients": (False, True),
}


def run(gradients, incoming, saved, problem, launches, sums=(), rest=None, launched=None):
    """Fill gradients (dq, dk, dv) from incoming (do, dlse) and saved (q, k, v, o, lse), for a ``Problem``.

    The gradients are contiguous and new. launches: the ``Configuration`` of each launch, by name: "row_constants",
    one or two of ``OF_KEYS_AND_VALUES``, and "query_gradients". dlse may be None. sums: per step of the score
    function, the tensor to which the gradient of its slopes or biases is added, or None. rest: the part of lse beyond
    float32, or None. launched: as for ``launch.repeat``. Returns delta [B, H, Nq_padded], for the gradient of the
    sinks; None without sinks.
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
    learning = any(total is not None for total in sums)  # sums over many tiles cannot be repaired
    apart = problem.mask.keeps_apart and learning
    start_queries(q, k, v, do, dq, constants, problem, launches["query_gradients"], sums, launched, apart=apart)
    start_sums(of_keys, shares, parts, launched)
    if problem.mask.keeps_apart:
        repair(gradients, q, k, v, do, constants, problem, launches, launched)
    return None if problem.sinks is None else constants.delta


def repair(gradients, q, k, v, do, constants, problem, launches, launched):
    """Compute again those tiles of gradients (dq, dk, dv) that have NaN or infinities, perhaps from other texts."""
    dq, *of_keys = gradients
    for name, outputs in OF_KEYS_AND_VALUES.items():
        if name in launches:
            c = launches[name]._replace(parts=1, stages=1)
            start_keys(q, k, v, do, *of_keys, constants, problem, c, outputs, launched, repair=True)
    c = launches["query_gradients"]._replace(stages=1)
    start_queries(q, k, v, do, dq, constants, problem, c, (), launched, apart=True, repair=True)


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
        for part in tl.static_range(2, -1, -1):  # causal: the whole tiles first, which takes fewer registers
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
        dot = tl.where(seen, dot, 0)  # so that the derivative of a hidden score is finite
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
