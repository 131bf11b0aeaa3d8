"""The backward pass: ``recomputation.gradients`` as Triton kernels. P_ij is rebuilt from lse, and never stored.

Each of the two large kernels keeps the sums it owns in registers and writes them once, so no two programs add to the
same number, and the same inputs give the same bits. The price: both rebuild P_ij, 7 products of tiles instead of 5.

Source: FlashAttention-2, Algorithm 2, its loop over keys split in two.
"""

import triton
import triton.language as tl

from flashlab.kernels import masks, tiles
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import LOG2_E

PADDING = 128  # rows; every Br of the kernels below divides it


def run(gradients, incoming, saved, problem, launches):
    """Fill gradients (dq, dk, dv) from incoming (do, dlse) and saved (q, k, v, o, lse), for a ``Problem``.

    launches: the ``Configuration`` of each of the three kernels, by name. dlse may be None.
    """
    dq, dk, dv = gradients
    do, dlse = incoming
    q, k, v, o, lse = saved
    B, H, Hk, Nq, Nk, d, columns = problem[:7]
    lse_log2, delta = constants_of_rows(do, dlse, o, lse, launches["row_constants"])
    Nq_padded = delta.shape[2]
    sizes = (problem.group, Nq, Nq_padded, Nk, d, columns, problem.scale, problem.scale_log2, problem.mask)

    c = launches["key_value_gradients"]
    tensors, strides = tiles.arguments((q, k, v, do, dk, dv), (c.Br, c.Bc, c.Bc, c.Br, c.Bc, c.Bc))
    launch(
        key_value_gradients,
        (tiles.count(Nk, c.Bc), Hk, B),
        (*tensors, lse_log2, delta),
        (*strides, *sizes, c.Br, c.Bc, *problem.widths, problem.precision),
        warps=c.warps,
        stages=c.stages,
    )
    c = launches["query_gradients"]
    tensors, strides = tiles.arguments((q, k, v, do, dq), (c.Br, c.Bc, c.Bc, c.Br, c.Br))
    launch(
        query_gradients,
        (tiles.count(Nq, c.Br), H, B),
        (*tensors, lse_log2, delta),
        (*strides, *sizes, c.Br, c.Bc, *problem.widths, Nk % c.Bc != 0, problem.precision),
        warps=c.warps,
        stages=c.stages,
    )


def constants_of_rows(do, dlse, o, lse, c):
    """Return lse in units of log2 and delta, [B, H, Nq_padded] each, computed by ``row_constants`` with tiles c."""
    B, H, Nq, columns = o.shape
    Nq_padded = tiles.count(Nq, PADDING) * PADDING
    lse_log2, delta = lse.new_empty(2, B, H, Nq_padded)
    tensors, strides = tiles.arguments((o, do), (c.Br, c.Br))
    launch(
        row_constants,
        (Nq_padded // c.Br, H, B),
        (*tensors, lse, lse_log2, delta),
        (*strides, Nq, Nq_padded, columns, c.Br, tiles.width_of(columns)),
        warps=c.warps,
    )
    if dlse is not None:  # lse moves by P_ij with S_ij, so its gradient enters dS = P * (dP - delta) beside delta
        delta[..., :Nq] -= dlse
    return lse_log2, delta


@triton.jit
def row_constants(
    O, dO, lse, lse_log2, delta,  # O dO [B, H, Nq, dv]: descriptors or pointers; pointers to lse [B, H, Nq] and the
    O_strides, dO_strides,  # results [B, H, Nq_padded], 0 past the end, where Q and dO are read as 0 too
    Nq, Nq_padded, dv,
    Br: tl.constexpr, width_v: tl.constexpr,
):  # fmt: skip
    """Compute what the other two kernels need of each row: delta = rowsum(dO * O), and lse in units of log2."""
    i, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H, B = tl.num_programs(1), tl.num_programs(2)
    O = tiles.view(O, [B, H, Nq, dv], O_strides, Br, width_v)
    dO = tiles.view(dO, [B, H, Nq, dv], dO_strides, Br, width_v)

    O_i = tiles.load(O, b, h, i * Br, Br, width_v).to(tl.float32)  # [Br, dv]
    dO_i = tiles.load(dO, b, h, i * Br, Br, width_v).to(tl.float32)  # [Br, dv]
    rows = i * Br + tl.arange(0, Br)  # [Br]
    head = (b * H + h).to(tl.int64)
    lse_i = tl.load(lse + head * Nq + rows, mask=rows < Nq, other=0)  # [Br]
    tl.store(lse_log2 + head * Nq_padded + rows, lse_i * LOG2_E)
    tl.store(delta + head * Nq_padded + rows, tl.sum(dO_i * O_i, 1))


@triton.jit
def key_value_gradients(
    Q, K, V, dO, dK, dV, lse_log2, delta,  # descriptors or pointers; pointers to lse_log2, delta [B, H, Nq_padded]
    Q_strides, K_strides, V_strides, dO_strides, dK_strides, dV_strides,
    group, Nq, Nq_padded, Nk, d, dv, scale, scale_log2, mask,  # as for ``attention_forward``
    Br: tl.constexpr, Bc: tl.constexpr, width: tl.constexpr, width_v: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV in key/value head hk of batch b: program (j, hk, b).

    All tiles are transposed, [Bc, Br]: then P^T and dS^T multiply from the left as they come out of the registers.
    Causal: the first programs have the keys that most queries see.
    """
    j, hk, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    Hk, B = tl.num_programs(1), tl.num_programs(2)
    H = Hk * group
    Q = tiles.view(Q, [B, H, Nq, d], Q_strides, Br, width)
    K = tiles.view(K, [B, Hk, Nk, d], K_strides, Bc, width)
    V = tiles.view(V, [B, Hk, Nk, dv], V_strides, Bc, width_v)
    dO = tiles.view(dO, [B, H, Nq, dv], dO_strides, Br, width_v)
    dK = tiles.view(dK, [B, Hk, Nk, d], dK_strides, Bc, width)
    dV = tiles.view(dV, [B, Hk, Nk, dv], dV_strides, Bc, width_v)

    keys = j * Bc + tl.arange(0, Bc)  # [Bc]
    mask = masks.Window(mask.right, mask.left)  # with queries and keys exchanged
    ends = masks.ranges(mask, j * Bc, Bc, Br, Nk, Nq, False)  # queries past Nq are zeros, and add nothing

    K_j = tiles.load(K, b, hk, j * Bc, Bc, width)  # [Bc, d]
    V_j = tiles.load(V, b, hk, j * Bc, Bc, width_v)  # [Bc, dv]
    dK_j = tl.zeros([Bc, width], tl.float32)  # [Bc, d]
    dV_j = tl.zeros([Bc, width_v], tl.float32)  # [Bc, dv]
    for member in range(group):  # the query heads that share this key/value head
        h = hk * group + member
        row = (b * H + h).to(tl.int64) * Nq_padded
        for part in tl.static_range(2, -1, -1):  # causal: the whole tiles first, which keeps fewer registers
            # Few tiles are cut by the mask: no pipeline for them.
            for start in tl.range(ends[part], ends[part + 1], Br, num_stages=None if part == 1 else 1):
                dK_j, dV_j = add_rows(
                    dK_j, dV_j, K_j, V_j, Q, dO, lse_log2 + row, delta + row, b, h, start, keys, Nq, Nk, scale_log2,
                    mask, Br, part != 1, precision,
                )  # fmt: skip
    tiles.store(dK, b, hk, j * Bc, dK_j * scale, Bc, width)
    tiles.store(dV, b, hk, j * Bc, dV_j, Bc, width_v)


@triton.jit
def add_rows(
    dK_j, dV_j, K_j, V_j, Q, dO, lse_log2, delta, b, h, start, keys, Nq, Nk, scale_log2, mask,
    Br: tl.constexpr, masked: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries gives to dK_j and dV_j. Rows past the end are zero in Q and dO and add nothing."""
    rows = start + tl.arange(0, Br)  # [Br]
    Q_i = tiles.load(Q, b, h, start, Br, K_j.shape[1])  # [Br, d]
    lse_i = tl.load(lse_log2 + rows)  # [Br]
    St_ij = tl.dot(K_j, Q_i.T, input_precision=precision)  # [Bc, Br]
    Pt_ij = tl.exp2(St_ij * scale_log2 - lse_i[None, :])  # [Bc, Br]
    if masked:
        Pt_ij = tl.where(masks.visible(mask, keys, rows, Nk, Nq, False), Pt_ij, 0)
    dO_i = tiles.load(dO, b, h, start, Br, V_j.shape[1])  # [Br, dv]
    dPt_ij = tl.dot(V_j, dO_i.T, input_precision=precision)  # [Bc, Br]
    dV_j = tl.dot(Pt_ij.to(dO_i.dtype), dO_i, dV_j, input_precision=precision)  # [Bc, dv]
    delta_i = tl.load(delta + rows)  # [Br]
    dSt_ij = Pt_ij * (dPt_ij - delta_i[None, :])  # [Bc, Br]
    dK_j = tl.dot(dSt_ij.to(Q_i.dtype), Q_i, dK_j, input_precision=precision)  # [Bc, d]
    return dK_j, dV_j


@triton.jit
def query_gradients(
    Q, K, V, dO, dQ, lse_log2, delta,  # descriptors or pointers; pointers to lse_log2, delta [B, H, Nq_padded]
    Q_strides, K_strides, V_strides, dO_strides, dQ_strides,
    group, Nq, Nq_padded, Nk, d, dv, scale, scale_log2, mask,  # as for ``attention_forward``
    Br: tl.constexpr, Bc: tl.constexpr, width: tl.constexpr, width_v: tl.constexpr,
    ragged: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute rows i * Br .. (i + 1) * Br of dQ. The loops are those of the forward pass."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    Q = tiles.view(Q, [B, H, Nq, d], Q_strides, Br, width)
    K = tiles.view(K, [B, H // group, Nk, d], K_strides, Bc, width)
    V = tiles.view(V, [B, H // group, Nk, dv], V_strides, Bc, width_v)
    dO = tiles.view(dO, [B, H, Nq, dv], dO_strides, Br, width_v)
    dQ = tiles.view(dQ, [B, H, Nq, d], dQ_strides, Br, width)

    rows = i * Br + tl.arange(0, Br)  # [Br]
    ends = masks.ranges(mask, i * Br, Br, Bc, Nq, Nk, ragged)

    hk = h // group
    row = (b * H + h).to(tl.int64) * Nq_padded + rows  # [Br]
    lse_i = tl.load(lse_log2 + row)  # [Br]
    delta_i = tl.load(delta + row)  # [Br]
    Q_i = tiles.load(Q, b, h, i * Br, Br, width)  # [Br, d]
    dO_i = tiles.load(dO, b, h, i * Br, Br, width_v)  # [Br, dv]
    dQ_i = tl.zeros([Br, width], tl.float32)  # [Br, d]
    for part in tl.static_range(3):
        for start in range(ends[part], ends[part + 1], Bc):
            dQ_i = add_columns(
                dQ_i, Q_i, dO_i, lse_i, delta_i, K, V, b, hk, start, rows, Nq, Nk, scale_log2, mask,
                Bc, part != 1, ragged, precision,
            )  # fmt: skip
    tiles.store(dQ, b, h, i * Br, dQ_i * scale, Br, width)


@triton.jit
def add_columns(
    dQ_i, Q_i, dO_i, lse_i, delta_i, K, V, b, hk, start, rows, Nq, Nk, scale_log2, mask,
    Bc: tl.constexpr, masked: tl.constexpr, ragged: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Add what one tile of keys and values gives to dQ_i."""
    K_j = tiles.load(K, b, hk, start, Bc, Q_i.shape[1])  # [Bc, d]
    S_ij = tl.dot(Q_i, K_j.T, input_precision=precision)  # [Br, Bc]
    P_ij = tl.exp2(S_ij * scale_log2 - lse_i[:, None])  # [Br, Bc]
    if masked:
        P_ij = tl.where(masks.visible(mask, rows, start + tl.arange(0, Bc), Nq, Nk, ragged), P_ij, 0)
    V_j = tiles.load(V, b, hk, start, Bc, dO_i.shape[1])  # [Bc, dv]
    dP_ij = tl.dot(dO_i, V_j.T, input_precision=precision)  # [Br, Bc]
    dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
    return tl.dot(dS_ij.to(K_j.dtype), K_j, dQ_i, input_precision=precision)  # [Br, d]
