"""The gradient of the queries: the kernel that owns it, ``dQ``."""

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
from flashlab.course.exercises.triton_forward import remainders
from flashlab.grading.exercise import Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import GENTLE, sweep
from flashlab.grading.kernel_laws import inside_margins, launched, loads_at_most
from flashlab.grading.laws import nothing_clipped, proportional
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference import attention, masks, recomputation, tiling


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
    """Return dQ [Nq, d] of one head, from a kernel of the capstone's parameters.

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


def _enough(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    """Return the bytes that the kernel must load: what belongs to the queries once, K and V once for each program."""
    (Nq, d), mask = Q.shape, masks.causal() if causal else None
    bill = tiling.fa2_traffic(Nq, len(K), d, Br, Bc, mask=mask)
    of_rows = dO.nbytes + 2 * Nq * dO.itemsize  # dO; lse and delta
    return of_rows + sum(size for (kind, _), size in bill.items() if kind == "load")


def _query_cases():
    rng = np.random.default_rng(14)

    def head(Nq, Nk, causal=False, *tile, d=BLOCK):
        lengths = Nq, Nk, Nk, Nq
        return *(rng.normal(size=(N, d)).astype(np.float32) for N in lengths), causal, *tile

    return [
        Case("one query, two keys", head(1, 2)),
        Case("a full tile, 16 × 16", head(16, 16)),
        Case("20 keys: a second tile must be added to the first", head(3, 20)),
        Case("20 queries: two programs", head(20, 3)),
        Case("causal: keys that some queries do not see", head(6, 6, True)),
        Case("causal, more keys than queries: the last query sees the last key", head(5, 20, True)),
        Case("causal, with queries that see no key: lse = −∞", head(20, 12, True)),
        Case("causal, with a tile of queries that see no key", head(40, 12, True)),
        Case("tiles taller than wide, d = 64", head(40, 50, True, 32, 16, d=64)),
        Case("tiles wider than tall, d = 64", head(50, 40, False, 16, 32, d=64)),
        Case("causal, tiles wider than tall", head(33, 65, True, 16, 64, d=32)),
        Case("a scale that is not 1/√d", (*head(5, 7), BLOCK, BLOCK, 0.7)),
        Case("a scale above 1", (*head(5, 7), BLOCK, BLOCK, 1.7)),
        Case("a wide head", head(3, 17, d=256)),
        Case("many tiles of keys", head(3, 200)),
        Case("causal: two queries, of which one sees the one key", in_whole_numbers(*head(2, 1, True))),
        Case("many tiles of queries", head(200, 3)),
        Case("three hundred queries and keys, tiles of 128 × 128, causal", head(300, 310, True, 128, 128)),
        Case("one key: dQ = 0", in_whole_numbers(*head(2, 1))),
        Case("causal: one query, one key", in_whole_numbers(*head(1, 1, True))),
        Case("no keys at all: dQ = 0", head(3, 0)),
        Case(
            "a second tile of keys without any weight",
            (*(x[::step] for x, step in zip(no_weight(), (1, -1, -1, 1), strict=True)), False, BLOCK, BLOCK, 1.0),
        ),
        Case("two keys whose values cancel: delta = 0", (*cancelled(), False)),
        Case("causal: a key with a much larger score that is not seen", (*future(), True, BLOCK, BLOCK, 1.0)),
        *(Case(f"Nq = {Nq}, Nk = {Nk}, causal", head(Nq, Nk, True)) for Nq, Nk in remainders(BLOCK)),
        *sweep(head_args, regimes=GENTLE, sizes={}, usual={"Nq": 3, "Nk": 19, "d": 16}),
    ]


def _weights_of_queries(kernel, *tensors):
    """Return the weights that each of two queries gives to two keys: dQ, where dP − delta and K are 1."""
    dQ = torch.zeros(2, BLOCK, dtype=torch.float32, device=DEVICE)
    launched(kernel, (1,), *tensors, dQ, 2, 2, SCALE, BLOCK, BLOCK, BLOCK, True)
    return dQ[:, 0].cpu().numpy() / SCALE


def _weights_in_dQ(kernel, x):
    dQ = query_gradients(kernel, *two_queries(x), scale=1.0)[1]
    return np.append(np.exp(x[:1]), dQ[2 : len(x) + 1])  # the first key has no value, and no gradient


def _dQ_of(kernel, size):
    return query_gradients(kernel, *head_of(size))


_with_end_clamped = edited(query_gradients_one_head, "(i + 1) * Br + Nk - Nq", "(i + 1) * Br + tl.maximum(Nk - Nq, 0)")

dQ = Exercise(
    reference=query_gradients_one_head,
    launch=query_gradients,
    exact=_exact_dQ,
    cases=_query_cases,
    moves=(loads_at_most(_enough, "What belongs to the queries is", lambda Q, *others: Q.nbytes),),
    once=(
        nothing_clipped(_weights_in_dQ),
        unmoved(_weights_of_queries, (1, 2)),
        proportional(_dQ_of, "dO and delta"),
    ),
    sways=True,
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
        Mistake("dQ is not scaled: S = scale · Q Kᵀ, so dQ = scale · dS K.", "scale * dQ_i", "dQ_i"),
        Mistake("dQ is dS times K, not V.", "tl.dot(dS_ij, K_j)", "tl.dot(dS_ij, V_j)"),
        Mistake("rows that see no key were not stored: their dQ is 0, and only tl.store writes it.",
                "scale * dQ_i, mask=exist)", 'scale * dQ_i, mask=exist & (lse_i > -float("inf"))[:, None])'),
        Mistake("only the last tile of keys was kept: add to dQ_i.", "dQ_i += ", "dQ_i = "),
        Mistake("every turn of the loop took the first tile of keys.",
                "start + tl.arange(0, Bc)", "tl.arange(0, Bc)"),
        Mistake("every program took the first tile of queries.", "i * Br + tl.arange", "tl.arange"),
        Mistake("the last tile of keys, which is not full, was dropped.",
                "range(0, end, Bc)", "range(0, end // Bc * Bc, Bc)"),
        Mistake("the loop's step is Br: the tiles of keys have Bc rows.", "range(0, end, Bc)", "range(0, end, Br)"),
        Mistake("aligned at the upper left: query i sees the keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None]"),
        Mistake("the mask is off by one: a query sees its own key too.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + Nk - Nq - 1"),
        Mistake("the loop ended too early: tile i sees up to (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        Mistake("the store is not masked: the last program writes past the end.",
                "scale * dQ_i, mask=exist)", "scale * dQ_i)"),
        Mistake("a load is not masked: the last program reads past the end.",
                "lse_i = tl.load(lse + rows, mask=rows < Nq, other=0)", "lse_i = tl.load(lse + rows)"),
        Mistake("keys past the end were not masked: where lse is far below 0, e^(0 − lse) overflows, and ∞ · 0 is NaN.",
                "seen = (keys < Nk)[None, :]", "seen = (keys >= 0)[None, :]"),
        Mistake("Bc stands where Br belongs: tile i of the queries has Br rows.",
                "(i + 1) * Br + Nk", "(i + 1) * Bc + Nk"),
        Mistake("Bc stands where Br belongs: tile i of the queries begins at row i * Br.",
                "rows = i * Br", "rows = i * Bc"),
        Mistake("1/√d was used for the scale: take the argument scale.",
                "    i, columns = ", "    scale = 1 / tl.sqrt(1.0 * d)\n    i, columns = "),
        Mistake("the sum so far was scaled again in each tile: scale it once, after the loop.",
                "dQ_i += tl.dot(dS_ij, K_j)  # [Br, d]\n    tl.store(dQ + at, scale * dQ_i",
                "dQ_i = scale * (dQ_i + tl.dot(dS_ij, K_j))\n    tl.store(dQ + at, dQ_i"),
        Mistake("the scale was applied twice: dQ takes it once.", "dS_ij = P_ij * ", "dS_ij = scale * P_ij * "),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)", of=_with_end_clamped),
        *(
            Mistake("Nq and Nk are exchanged: there are Nk keys.",
                    f"tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nk)",
                    f"tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nq)")
            for X in "KV"
        ),
        *(
            Mistake("a masked load without other= reads anything at all, on a GPU: say what stands there.",
                    f"{X}_j = tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)",
                    f"{X}_j = tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nk)[:, None])")
            for X in "KV"
        ),
        Mistake("dS was rounded to half precision: all is float32 here.",
                "tl.dot(dS_ij, K_j)", "tl.dot(dS_ij.to(tl.float16), K_j.to(tl.float16)).to(tl.float32)"),
        Mistake("the mask is off by one: a query saw one key of the future.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + Nk - Nq + 1"),
        Mistake("the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + Nq - Nk"),
        Mistake("the mask was always causal: only where causal is set.",
                "if causal:\n            seen", "if True:\n            seen"),
    ),
)  # fmt: skip
