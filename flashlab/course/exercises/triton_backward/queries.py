"""The gradient of the queries: the kernel that owns it, ``dQ``."""

import numpy as np
import torch

from flashlab.course.exercises.triton_backward import one_tile
from flashlab.course.exercises.triton_backward.heads import (
    ALL_BUT_ONE,
    BLOCK,
    FAR,
    FAR_ABOVE,
    FAR_FROM_0,
    HIDDEN_ABOVE,
    ONE_MORE,
    SEES_NOTHING,
    THREE,
    draw_head,
    of_rounded_scores,
    two_queries,
)
from flashlab.grading.draws import cut_lengths
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.kernel_laws import inside_margins, launched, loads_at_most
from flashlab.grading.laws import nothing_clipped
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference import attention, masks, recomputation, tiling

LOST = "the weights of a row were lost, since its lse is far from 0. Only an lse of −∞ means that it sees no key."


@triton.jit
def query_gradients_one_head(
    Q, K, V, dO, lse, delta, dQ, Nq, Nk, scale,
    d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    i, columns = tl.program_id(0), tl.arange(0, d)
    rows = i * Br + tl.arange(0, Br)  # [Br]
    at, exist = rows[:, None] * d + columns, (rows < Nq)[:, None]  # [Br, d], [Br, 1]
    Q_i = tl.load(Q + at, mask=exist, other=0)  # [Br, d]
    dO_i = tl.load(dO + at, mask=exist, other=0)  # [Br, d]
    lse_i = tl.load(lse + rows, mask=rows < Nq, other=0)  # [Br]
    delta_i = tl.load(delta + rows, mask=rows < Nq, other=0)  # [Br]
    dQ_i = tl.zeros([Br, d], tl.float32)  # [Br, d]
    end = tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk
    for start in range(0, end, Bc):
        keys = start + tl.arange(0, Bc)  # [Bc]
        K_j = tl.load(K + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)  # [Bc, d]
        V_j = tl.load(V + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)  # [Bc, d]
        seen = (keys < Nk)[None, :]  # [1, Bc]
        if causal:
            seen = seen & (keys[None, :] <= rows[:, None] + Nk - Nq)  # [Br, Bc]
        S_ij = scale * tl.dot(Q_i, K_j.T)  # [Br, Bc]
        P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)  # [Br, Bc]
        dP_ij = tl.dot(dO_i, V_j.T)  # [Br, Bc]
        dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
        dQ_i += tl.dot(dS_ij, K_j)  # [Br, d]
    tl.store(dQ + at, scale * dQ_i, mask=exist)


def query_gradients(kernel, Q, K, V, dO, causal=False, Br=BLOCK, Bc=BLOCK, scale=None):
    """Return dQ [Nq, d] of one head, from a kernel with the capstone's parameters.

    Q, dO [Nq, d]; K, V [Nk, d]: float32 arrays, d a power of two; scale: 1/√d if None.
    """
    mask, scale = masks.causal() if causal else None, Q.shape[1] ** -0.5 if scale is None else scale
    O, lse = attention.attention(Q, K, V, mask=mask, scale=scale, return_lse=True)  # [Nq, d], [Nq]
    on_device = [torch.tensor(x, device=DEVICE) for x in (Q, K, V, dO, lse, recomputation.delta(dO, O))]
    Nq, d = Q.shape
    dQ, result = inside_margins(1, Nq * d)  # rows side by side
    launched(kernel, (triton.cdiv(Nq, Br),), *on_device, dQ, Nq, len(K), scale, d, Br, Bc, causal)
    return result().reshape(Nq, d)


def _exact_dQ(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    return attention.attention_backward(Q, K, V, dO, mask=masks.causal() if causal else None, scale=scale)[0]


def _of_rounded_scores(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    return of_rounded_scores(Q, K, V, dO, masks.causal() if causal else None, scale).dQ


def _enough(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    """Return the bytes that the kernel must load: what belongs to the queries once, K and V once for each program."""
    (Nq, d), mask = Q.shape, masks.causal() if causal else None
    bill = tiling.fa2_traffic(Nq, len(K), d, Br, Bc, mask=mask)
    of_rows = dO.nbytes + 2 * Nq * dO.itemsize  # dO; lse and delta
    return of_rows + sum(size for (kind, _), size in bill.items() if kind == "load")


def _weights_in_dQ(kernel, x):
    dQ = query_gradients(kernel, *two_queries(x), scale=1.0)[1]
    return np.append(np.exp(x[:1]), dQ[2 : len(x) + 1])  # the first key has no value, and no gradient


def _lse_may_be_any_number(kernel):
    """Law with inputs of its own: the gradients of a row stay if all its scores move by one number."""
    near, *far = (
        query_gradients(kernel, *two_queries(np.float32([0, -1, -1]) + shift), scale=1.0)[1, 1:4]
        for shift in (0, -1e4, 1e4)
    )  # [3] each
    if not np.allclose(far, near, 0.01):  # float32 rounds an lse of 10,000 to 1/1,024
        return Broken("scores near −10,000, or near 10,000", LOST, if_right=True)


def _draw(rng, size):
    """Draw a head, a mask, and tiles."""
    Nq, Nk, Br, Bc = cut_lengths(rng, size)
    *head, scale = draw_head(rng, Nq, Nk and max(4, Nk))
    return *head, bool(rng.integers(3)), Br, Bc, scale


dQ = Exercise(
    reference=query_gradients_one_head,
    launch=query_gradients,
    exact=_exact_dQ,
    edges=(
        Case(SEES_NOTHING, (*THREE, True)),
        Case(HIDDEN_ABOVE, (*FAR_ABOVE, True)),
        Case(FAR_FROM_0, (*FAR, False, BLOCK, BLOCK, 1.0)),
        Case("causal: the first program sees one key of the second tile", (*ONE_MORE, True)),
        Case("causal: the first query sees all keys of a tile but one", (*ALL_BUT_ONE, True)),
    ),
    draw=_draw,
    draws=30,
    moves=(loads_at_most(_enough, "What belongs to the queries is", lambda Q, *others: Q.nbytes),),
    once=(nothing_clipped(_weights_in_dQ), _lse_may_be_any_number),
    sways=True,
    rounded=(_of_rounded_scores,),
    level=3,
    minutes=45,
    hints=(
        "It is the forward capstone's loop: one program per tile of queries, a loop over the tiles of keys. What is "
        "loaded before the loop, what in it, and which sum stays in registers?",
        "Before the loop: Q_i, dO_i [Br, d], lse_i, delta_i [Br]. In it: K_j, V_j, then S_ij, P_ij from lse_i, dP_ij "
        "from dO_i and V_j, and dS_ij from both. Causal: the loop ends at min(Nk, (i + 1) * Br + Nk - Nq).",
        "P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0); dP_ij = tl.dot(dO_i, V_j.T); "
        "dS_ij = P_ij * (dP_ij - delta_i[:, None]); dQ_i += tl.dot(dS_ij, K_j). Store scale * dQ_i after the loop.",
    ),
    mistakes=(
        *one_tile.MISTAKES,
        Mistake("did not scale dQ.", "S = scale · Q Kᵀ, so dQ = scale · dS K.", "scale * dQ_i", "dQ_i"),
        Mistake("kept only the last tile of keys.", "Add each tile to dQ_i.", "dQ_i += ", "dQ_i = "),
    ),
)  # fmt: skip
