"""The gradients of keys and values: one tile of the loop that owns them, ``add_rows``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.course.exercises.triton_backward import one_tile
from flashlab.course.exercises.triton_backward.heads import (
    BLOCK,
    FAR,
    FAR_ABOVE,
    FAR_FROM_0,
    HIDDEN_ABOVE,
    SEES_NOTHING,
    THREE,
    draw_head,
    of_rounded_scores,
    two_queries,
)
from flashlab.grading.draws import cut_lengths
from flashlab.grading.exercise import Case, Exercise, Mistake, edited
from flashlab.grading.kernel_laws import attempted
from flashlab.grading.laws import nothing_clipped
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference import attention, masks, recomputation


class KeyValueGradients(NamedTuple):
    dK: np.ndarray  # [Nk, d]
    dV: np.ndarray  # [Nk, d]


@triton.jit
def add_tile(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    S_ij = scale * tl.dot(Q_i, K_j.T)  # [Br, Bc]
    P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)  # [Br, Bc]
    dV_j += tl.dot(P_ij.T, dO_i)  # [Bc, d]
    dP_ij = tl.dot(dO_i, V_j.T)  # [Br, Bc]
    dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
    dK_j += scale * tl.dot(dS_ij.T, Q_i)  # [Bc, d]
    return dK_j, dV_j


@triton.jit
def loop_over_queries(
    add: tl.constexpr, Q, K, V, dO, lse, delta, dK, dV, Nq, Nk, scale,
    Br: tl.constexpr, Bc: tl.constexpr, d: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV of one head: program j. ``add`` adds one tile of queries."""
    columns = tl.arange(0, d)[None, :]  # [1, d]
    keys = tl.program_id(0) * Bc + tl.arange(0, Bc)  # [Bc]
    at_keys, are_keys = keys[:, None] * d + columns, (keys < Nk)[:, None]  # [Bc, d], [Bc, 1]
    K_j, V_j = tl.load(K + at_keys, are_keys, 0), tl.load(V + at_keys, are_keys, 0)  # [Bc, d] each
    dK_j, dV_j = tl.zeros([Bc, d], tl.float32), tl.zeros([Bc, d], tl.float32)  # [Bc, d] each
    for start in range(0, Nq, Br):
        rows = start + tl.arange(0, Br)  # [Br]
        at_rows, are_rows = rows[:, None] * d + columns, (rows < Nq)[:, None]  # [Br, d], [Br, 1]
        Q_i, dO_i = tl.load(Q + at_rows, are_rows, 0), tl.load(dO + at_rows, are_rows, 0)  # [Br, d] each
        lse_i, delta_i = tl.load(lse + rows, rows < Nq, 0), tl.load(delta + rows, rows < Nq, 0)  # [Br] each
        seen = are_rows & (keys < Nk)[None, :]  # [Br, Bc]
        if causal:
            seen = seen & (keys[None, :] <= rows[:, None] + Nk - Nq)
        dK_j, dV_j = add(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale)
    tl.store(dK + at_keys, dK_j, are_keys)
    tl.store(dV + at_keys, dV_j, are_keys)


WINDOW = 4  # keys that a query sees under the mask "window"
_loop_over_near_queries = edited(
    loop_over_queries, "+ Nk - Nq)", f"+ Nk - Nq) & (keys[None, :] > rows[:, None] + Nk - Nq - {WINDOW})"
)
_MASKS = {False: None, True: masks.causal(), "window": masks.window(WINDOW - 1)}


def key_value_gradients(add, Q, K, V, dO, causal=False, block=BLOCK, scale=None, Bc=None):
    """Return dK and dV [Nk, d] of one head, from a function ``add`` for one tile of ``block`` queries and ``Bc`` keys.

    Q, dO [Nq, d]; K, V [Nk, d]: float32 arrays, d a power of two; causal: "window" where a query sees the last WINDOW
    keys only; scale: 1/√d if None; Bc: ``block`` if None.
    """
    Bc = block if Bc is None else Bc
    mask, scale = _MASKS[causal], Q.shape[1] ** -0.5 if scale is None else scale
    O, lse = attention.attention(Q, K, V, mask=mask, scale=scale, return_lse=True)  # [Nq, d], [Nq]
    on_device = [torch.tensor(x, device=DEVICE) for x in (Q, K, V, dO, lse, recomputation.delta(dO, O))]
    dK, dV = (torch.full(x.shape, torch.nan, dtype=torch.float32, device=DEVICE) for x in (K, V))  # [Nk, d] each
    Nk, d = K.shape
    grid = (triton.cdiv(Nk, Bc),)
    loop = _loop_over_near_queries if causal == "window" else loop_over_queries
    loop[grid](attempted(add), *on_device, dK, dV, len(Q), Nk, scale, block, Bc, d, bool(causal))
    return KeyValueGradients(dK.cpu().numpy(), dV.cpu().numpy())


def steps_that_run():
    """Return functions ``add`` for ``key_value_gradients``, by name: the right one, and four wrong ones that run."""
    return {
        "as it should be": add_tile,
        "delta forgotten": edited(add_tile, "(dP_ij - delta_i[:, None])", "dP_ij"),
        "delta per tile": edited(add_tile, "delta_i[:, None]", "tl.sum(P_ij * dP_ij, 1)[:, None]"),
        "dK not scaled": edited(add_tile, "scale * tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, Q_i)"),
        "P, not its transpose": edited(add_tile, "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij, dO_i)"),
    }


def _exact_gradients(Q, K, V, dO, causal, block=BLOCK, scale=None, Bc=None):
    return KeyValueGradients(*attention.attention_backward(Q, K, V, dO, mask=_MASKS[causal], scale=scale)[1:])


def _of_rounded_scores(Q, K, V, dO, causal, block=BLOCK, scale=None, Bc=None):
    return KeyValueGradients(*of_rounded_scores(Q, K, V, dO, _MASKS[causal], scale)[1:])


def _weights_in_dV(add, x):
    return key_value_gradients(add, *two_queries(x), scale=1.0).dV[:, 0]


def _draw(rng, size):
    """Draw a head, a mask, and tiles."""
    Nq, Nk, Br, Bc = cut_lengths(rng, size)
    *head, scale = draw_head(rng, Nq, max(4, Nk))
    return *head, [False, True, "window"][rng.integers(3)], Br, scale, Bc


add_rows = Exercise(
    reference=add_tile,
    launch=key_value_gradients,
    exact=_exact_gradients,
    edges=(
        Case(SEES_NOTHING, (*THREE, True)),
        Case(HIDDEN_ABOVE, (*FAR_ABOVE, True)),
        Case(FAR_FROM_0, (*FAR, False, BLOCK, 1.0)),
    ),
    draw=_draw,
    draws=30,
    once=(nothing_clipped(_weights_in_dV),),
    sways=True,
    rounded=(_of_rounded_scores,),
    level=3,
    minutes=25,
    hints=(
        "The lines of recomputation.gradients for one tile, without dQ: rebuild P_ij, then dV_j, dP_ij, dS_ij, dK_j. "
        "The products are tl.dot, and X.T is the transpose.",
        "S_ij = scale * tl.dot(Q_i, K_j.T); P_ij is exp(S_ij - lse_i[:, None]), and 0 where not seen: "
        "tl.where(seen, ..., 0).",
        "Add tl.dot(P_ij.T, dO_i) to dV_j and scale * tl.dot(dS_ij.T, Q_i) to dK_j, with "
        "dS_ij = P_ij * (tl.dot(dO_i, V_j.T) - delta_i[:, None]). Return dK_j, dV_j.",
    ),
    mistakes=(
        *one_tile.MISTAKES,
        Mistake("did not scale dK.", "S = scale · Q Kᵀ: every gradient through S takes the scale again.",
                "scale * tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, Q_i)"),
        Mistake("took P for dV, not its transpose.", "dV has a row for each key: dV = Pᵀ dO.",
                "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij, dO_i)"),
    ),
)  # fmt: skip
