"""The gradients of keys and values: one tile of the loop that owns them, ``add_rows``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.course.exercises.triton_backward import one_tile
from flashlab.course.exercises.triton_backward.heads import (
    BLOCK,
    SCALE,
    cancelled,
    future,
    head_args,
    head_of,
    in_whole_numbers,
    no_weight,
    two_queries,
    unmoved,
)
from flashlab.grading.exercise import Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import GENTLE, Regime, sweep
from flashlab.grading.kernel_laws import attempted
from flashlab.grading.laws import nothing_clipped, proportional
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
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV of one head: program j. ``add`` does it for one tile."""
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


WINDOW = 4  # keys that a query sees where it looks back so far only
_loop_over_near_queries = edited(
    loop_over_queries, "+ Nk - Nq)", f"+ Nk - Nq) & (keys[None, :] > rows[:, None] + Nk - Nq - {WINDOW})"
)
_MASKS = {False: None, True: masks.causal(), "window": masks.window(WINDOW - 1)}


def key_value_gradients(add, Q, K, V, dO, causal=False, block=BLOCK, scale=None, Bc=None):
    """Return dK and dV [Nk, d] of one head, from a function ``add`` for one tile of ``block`` x ``Bc or block``.

    Q, dO [Nq, d]; K, V [Nk, d]: float32 arrays, d a power of two; causal: "window" where a query sees the last WINDOW
    keys only; scale: 1/√d if None.
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


BELOW = Regime("scores around −2,000", lambda n: np.full(n, -2e3))
ABOVE = Regime("scores around 20,000", lambda n: np.full(n, 2e4))


def _weights_of_keys(add, *tensors):
    """Return the weights that two queries give to each of two keys: dV."""
    dK, dV = torch.zeros(2, 2, BLOCK, dtype=torch.float32, device=DEVICE)
    loop_over_queries[(1,)](attempted(add), *tensors, dK, dV, 2, 2, SCALE, BLOCK, BLOCK, BLOCK, True)
    return dV[:, 0].cpu().numpy()


def _weights_in_dV(add, x):
    return key_value_gradients(add, *two_queries(x), scale=1.0).dV[:, 0]


def _dK_and_dV_of(add, size):
    return np.concatenate(key_value_gradients(add, *head_of(size)))


def _add_cases():
    rng = np.random.default_rng(13)

    def head(Nq, Nk, causal=False, d=BLOCK):
        lengths = Nq, Nk, Nk, Nq
        return *(rng.normal(size=(N, d)).astype(np.float32) for N in lengths), causal

    Q, K, V, dO, _ = head(1, 1)
    return [
        Case("a query of zeros, one key: dV = dO and dK = 0", in_whole_numbers(0 * Q, K, V, dO, False)),
        Case("one query, two keys", head(1, 2)),
        Case("a full tile, 16 × 16", head(16, 16)),
        Case("20 queries: a second tile must be added to the first", head(20, 3)),
        Case("20 keys: a tile that does not hold the whole row", head(3, 20)),
        Case("causal: keys that some queries do not see", head(6, 6, causal=True)),
        Case("causal, with queries that see no key: lse = −∞", head(20, 4, causal=True)),
        Case("a scale that is not 1/√d", (*head(5, 7), BLOCK, 0.7)),
        Case("a scale above 1", (*head(5, 7), BLOCK, 1.7)),
        Case("a wide head", head(3, 5, d=256)),
        Case("tiles of 32 × 32", (*head(40, 33, causal=True), 32)),
        Case("tiles of 16 × 64", (*head(40, 70, causal=True), 16, 0.5, 64)),
        Case("tiles of 64 × 16", (*head(70, 40, causal=True, d=32), 64, None, 16)),
        Case("causal: one query, one key", in_whole_numbers(*head(1, 1, causal=True))),
        Case("three hundred queries, tiles of 128 × 128", (*head(300, 200, causal=True), 128)),
        Case("a second tile of queries that gives the first tile of keys no weight", (*no_weight(), False, BLOCK, 1.0)),
        Case("two keys whose values cancel: delta = 0", (*cancelled(), False)),
        Case("causal: a key with a much larger score that is not seen", (*future(), True, BLOCK, 1.0)),
        *(
            Case(f"a window of {WINDOW} keys, Nq = {Nq}, Nk = {Nk}: first keys are not seen", head(Nq, Nk, "window"))
            for Nq, Nk in ((16, 16), (20, 37), (37, 20))
        ),
        Case("causal: two queries, of which one sees the one key", in_whole_numbers(*head(2, 1, causal=True))),
        *sweep(
            head_args, regimes=(*GENTLE[:4], *GENTLE[-2:], BELOW, ABOVE), sizes={}, usual={"Nq": 18, "Nk": 19, "d": 32}
        ),
    ]


add_rows = Exercise(
    reference=add_tile,
    launch=key_value_gradients,
    exact=_exact_gradients,
    cases=_add_cases,
    once=(
        nothing_clipped(_weights_in_dV),
        unmoved(_weights_of_keys, (2, 1)),
        proportional(_dK_and_dV_of, "dO and delta"),
    ),
    sways=True,
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
        Mistake("dK is not scaled: S = scale · Q Kᵀ, so every gradient through S takes the scale again.",
                "scale * tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, Q_i)"),
        Mistake("dV was scaled: the scale belongs to the scores, V never met it.",
                "tl.dot(P_ij.T, dO_i)", "scale * tl.dot(P_ij.T, dO_i)"),
        Mistake("dK and dV were swapped.", "return dK_j, dV_j", "return dV_j, dK_j"),
        Mistake("dK is dSᵀ times Q, not dO.", "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, dO_i)"),
        Mistake("dK is dSᵀ times Q, not K.", "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, K_j)"),
        Mistake("dV is Pᵀ times dO, not Q.", "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij.T, Q_i)"),
        Mistake("dV took P instead of Pᵀ: it has a row for each key.",
                "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij, dO_i)"),
        Mistake("dK took dS instead of dSᵀ: it has a row for each key.",
                "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij, Q_i)"),
        Mistake("P_ij was masked for dS alone: mask it once, and take it for dV as well.",
                "tl.dot(P_ij.T, dO_i)", "tl.dot(tl.exp(S_ij - lse_i[:, None]).T, dO_i)"),
        Mistake("P_ij was masked for dV alone: mask it once, and take it for dS as well.",
                "P_ij * (dP_ij", "tl.exp(S_ij - lse_i[:, None]) * (dP_ij"),
        Mistake("dV keeps only the last tile of queries: add to what came in.", "dV_j += ", "dV_j = "),
        Mistake("dK keeps only the last tile of queries: add to what came in.", "dK_j += ", "dK_j = "),
        Mistake("dK and dV keep only the last tile of queries: add to what came in.",
                "dK_j += ", "dK_j = ", of=edited(add_tile, "dV_j += ", "dV_j = ")),
        Mistake(
            "the scale was applied twice: dK takes it once.",
            "P_ij * (dP_ij - delta_i[:, None])",
            "scale * P_ij * (dP_ij - delta_i[:, None])",
        ),
        Mistake("the sum so far was scaled again: scale what is added.",
                "dK_j += scale * tl.dot(dS_ij.T, Q_i)", "dK_j = scale * (dK_j + tl.dot(dS_ij.T, Q_i))"),
        Mistake("1/√d was used for the scale: take the argument scale.",
                "    S_ij = scale * ", "    scale = 1 / tl.sqrt(1.0 * Q_i.shape[1])\n    S_ij = scale * "),
        Mistake(
            "dV was taken from dS: V was multiplied with P.",
            "    dP_ij = tl.dot(dO_i, V_j.T)",
            "    dV_j += tl.dot((P_ij * (tl.dot(dO_i, V_j.T) - delta_i[:, None])).T, dO_i) - tl.dot(P_ij.T, "
            "dO_i)\n    dP_ij = tl.dot(dO_i, V_j.T)",
        ),
    ),
)  # fmt: skip
