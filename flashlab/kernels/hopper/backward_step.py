"""A step of the backward kernel: five products of a tile of keys and a tile of queries, and what is between them."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlab.kernels.hopper import derivatives, queries
from flashlab.kernels.hopper.backward_rings import BUFFERS, CONSUMERS, ROWS
from flashlab.kernels.hopper.products import accumulator, operand, product
from flashlab.kernels.hopper.stages import matrix, release, stage_of, wait_full
from flashlab.kernels.hopper.sums import add, barrier, transposed


class Kept(NamedTuple):
    """The operands that all steps of a warpgroup have in common: in registers if there is room, or in shared memory."""

    K_j: gl.tensor  # [Bc, d]
    V_j: gl.tensor  # [Bc, d]
    K_0: gl.tensor  # of dQ_i, the keys of both warpgroups: half of their columns, [Bc, d / 2], or transposed, [d, Bc]
    K_1: gl.tensor


@gluon.jit
def keep(shared, problem, w: gl.constexpr):
    """Return what warpgroup w keeps of K and V. Score functions need the registers themselves."""
    Br: gl.constexpr = shared.Q.shape[3]
    half: gl.constexpr = shared.Q.shape[4] // CONSUMERS
    K_j, V_j = matrix(shared.K.index(w)), matrix(shared.V.index(w))  # [Bc, d]
    K_0, K_1 = matrix(shared.K.index(0)), matrix(shared.K.index(1))  # [Bc, d]
    if not transposed(shared.Q.shape[4]):
        return Kept(K_j, V_j, K_0.slice(w * half, half, dim=1), K_1.slice(w * half, half, dim=1))
    elif problem.score is not None:
        return Kept(K_j, V_j, K_0.permute((1, 0)), K_1.permute((1, 0)))
    else:
        left: gl.constexpr = gl.DotOperandLayout(0, accumulator(Br), 2)
        of_dQ: gl.constexpr = gl.DotOperandLayout(0, accumulator(half), 2)
        K_0, K_1 = K_0.permute((1, 0)).load(of_dQ), K_1.permute((1, 0)).load(of_dQ)
        return Kept(K_j.load(left), V_j.load(left), K_0, K_1)


@gluon.jit
def step(
    shared, kept, sums, dK_j, dV_j, these, keys, work, problem, t, tile_before,
    w: gl.constexpr, ragged: gl.constexpr, first: gl.constexpr,
):  # fmt: skip
    """Take step t: these queries contribute to dK_j and dV_j, and the tile of the step before gets its share of dQ."""
    Br: gl.constexpr = shared.Q.shape[3]
    width: gl.constexpr = shared.Q.shape[4]
    dtype: gl.constexpr = shared.K.dtype
    Q_i, dO_i = matrix(stage_of(shared.Q, t)), matrix(stage_of(shared.dO, t))  # [Br, d]
    wait_full(shared.q_full, t)
    lse_i = along_queries(stage_of(shared.lse, t), accumulator(Br))  # [1, Br], before products keep the memory busy
    St_ij = product(kept.K_j, Q_i)  # [Bc, Br]
    wait_full(shared.do_full, t)
    dPt_ij = product(kept.V_j, dO_i)  # [Bc, Br]
    St_ij = warpgroup_mma_wait(1, deps=(St_ij,))
    scarce: gl.constexpr = width > 64  # registers
    windowed: gl.constexpr = problem.mask.left is not None or problem.mask.right is not None
    hides: gl.constexpr = ragged or windowed or problem.mask.table is not None or problem.mask.rules is not None
    Pt_ij, sloped = weights(St_ij, lse_i, these, keys, work, problem, ragged, hides, scarce)  # [Bc, Br] each
    Pt_left = operand(Pt_ij, dtype, width)  # [Bc, Br]
    if scarce:  # no registers to keep Pt_left until dS_ij is stored
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
        dPt_ij = warpgroup_mma_wait(1, deps=(dPt_ij,))
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
    else:
        if not hides:
            wait_full(shared.do_full, t)  # over already; it keeps the exponentials beside the product for dP
        delta_i = along_queries(stage_of(shared.delta, t), accumulator(Br))  # [1, Br]
        dPt_ij = warpgroup_mma_wait(0, deps=(dPt_ij,))
    dSt_ij = (sloped * (dPt_ij - delta_i)).to(dtype)  # [Bc, Br]
    if first:
        let_leave()
    else:  # the other warpgroup has left the step that read what is overwritten next
        wait_full(shared.ds_full, t - 1)
    shared.dSt.index(w * BUFFERS + t % BUFFERS).store(dSt_ij)
    dSt_left = operand(dSt_ij, dtype, width)
    if not scarce:
        dV_j = warpgroup_mma(Pt_left, dO_i, dV_j, use_acc=not first, is_async=True)
    fence_async_shared()
    release(shared.ds_full, t)
    if not first:
        dQ_i = share_of_dQ(shared, kept, t - 1, w)
    dK_j = warpgroup_mma(dSt_left, Q_i, dK_j, use_acc=not first, is_async=True)
    if not first:
        dQ_i = warpgroup_mma_wait(1, deps=(dQ_i,))
        add(sums, tile_before, w, dQ_i)
    return warpgroup_mma_wait(0, deps=(dK_j, dV_j))


@gluon.jit
def weights(
    dot, lse_log2, these, keys, work, problem, ragged: gl.constexpr, hides: gl.constexpr, scarce: gl.constexpr
):  # fmt: skip
    """Return Pt_ij = exp2(S_ij^T - lse), with lse [1, Br], and its product with the score's derivative.

    dot: K_j Q_i^T. hides: whether the mask or the end of the keys may hide a score. The second is what the
    gradient of dot needs; a score function costs no register beside it.
    """
    St_ij, slope = dot, 1.0  # [Bc, Br]
    if problem.score is not None:
        i, j = queries.rows_and_columns(these, keys, dot)
        St_ij, slope = derivatives.apply(problem, dot * problem.scale, work.b, these.h, i, j)  # [Bc, Br] each
    Pt_ij = gl.exp2(St_ij * problem.scale_log2 - lse_log2)  # [Bc, Br]
    if hides:
        # Where registers are scarce, whole tiles are masked, too: across a branch, too many slopes would be in use.
        if scarce and problem.score is not None and problem.mask.rules is None:
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, ragged)
        elif queries.are_cut(these, keys, problem, dot.shape[1]):
            Pt_ij = queries.hide(Pt_ij, these, keys, work, problem, ragged)
    return Pt_ij, Pt_ij * slope


@gluon.jit
def along_queries(x, layout: gl.constexpr):
    """Return x [Br], which is in shared memory, as [1, Br] for a tile of scores of this layout."""
    return x.load(gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def share_of_dQ(shared, kept, t, w: gl.constexpr):
    """Issue this warpgroup's half of dQ_i = dS_ij K_j of step t: of its columns, or transposed, of its queries."""
    width: gl.constexpr = shared.Q.shape[4]
    columns: gl.constexpr = width // CONSUMERS
    dQ_i = gl.zeros([ROWS, columns], gl.float32, accumulator(columns))  # [Br, d / 2], or [d, Br / 2]
    for part in gl.static_range(CONSUMERS):  # the keys of one warpgroup
        dSt_ij = shared.dSt.index(part * BUFFERS + t % BUFFERS)
        if transposed(width):
            left, right = kept[2 + part], dSt_ij.slice(w * columns, columns, dim=1)
        else:
            left, right = dSt_ij.permute((1, 0)), kept[2 + part]
        dQ_i = warpgroup_mma(left, right, dQ_i, use_acc=part > 0, is_async=True)
    return dQ_i


@gluon.jit
def let_leave():
    """Wait until what ``store`` wrote in the turn before has left the buffers."""
    tma.store_wait(0)
    barrier()
