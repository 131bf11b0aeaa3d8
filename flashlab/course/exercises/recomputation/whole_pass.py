"""The learner's own backward pass: ``backward``, two loops around ``rebuild``, ``delta`` and ``gradients``."""

import tracemalloc

import numpy as np

from flashlab.course.exercises.recomputation.one_tile import draw_normal, draw_size
from flashlab.grading.draws import lengths
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.watch import Reads
from flashlab.reference.attention import attention
from flashlab.reference.recomputation import Gradients, delta, gradients, rebuild


def keys_outside(Q, K, V, O, lse, dO, Br, Bc):
    """Return the gradients dQ [Nq, d], dK [Nk, d] and dV [Nk, dv], from Br queries and Bc keys at a time.

    Q [Nq, d], K [Nk, d], V [Nk, dv]; O [Nq, dv] and lse [Nq]: of the forward pass; dO [Nq, dv]: the gradient of O.
    """
    scale = Q.shape[1] ** -0.5
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for key in range(0, len(K), Bc):
        cols = slice(key, key + Bc)
        for query in range(0, len(Q), Br):
            rows = slice(query, query + Br)
            P_ij = rebuild(scale * (Q[rows] @ K[cols].T), lse[rows])  # [Br, Bc]
            delta_i = delta(dO[rows], O[rows])  # [Br]
            dQ_i, dK_j, dV_j = gradients(Q[rows], K[cols], V[cols], dO[rows], P_ij, delta_i, scale)
            dQ[rows] += dQ_i
            dK[cols] += dK_j
            dV[cols] += dV_j
    return Gradients(dQ, dK, dV)


def _inputs(Q, K, V, dO, Br, Bc):
    """Return the arguments of a backward pass after exact attention."""
    O, lse = attention(Q, K, V, return_lse=True)
    return Q, K, V, O, lse, dO, Br, Bc


def _draw(rng, size):
    Nq, Nk, d, dv = lengths(rng, size, 4)
    Q, K, V = rng.choice([0.1, 1, 3]) * draw_normal(rng, Nq, d), draw_normal(rng, Nk, d), draw_normal(rng, Nk, dv)
    dO = draw_size(rng) * draw_normal(rng, Nq, dv)
    return _inputs(np.float32(Q), K, V, dO, *rng.integers(1, size + 1, 2).tolist())


KEPT = (
    "the numbers are right, but {:,} bytes were kept at a time: fast memory holds one tile of weights. Use each tile "
    "where it is rebuilt."
)
MORE = "the numbers are right, but it took more than {} rows of {} at once: fast memory holds one tile of it."
FEWER = "the numbers are right, but {1} was cut into more tiles than {0} rows at a time need."


def tile_by_tile(backward, Q, K, V, O, lse, dO, Br, Bc):
    """Return a sentence if tiles have more than Br queries or Bc keys, or are more than these need; else None."""
    reads = Reads()
    inputs = {"Q": (Q, Br), "K": (K, Bc), "V": (V, Bc), "O": (O, Br), "lse": (lse, Br), "dO": (dO, Br)}
    with reads.through_copies():
        backward(*(reads.watch(name, X) for name, (X, _) in inputs.items()), Br, Bc)
    for name, (X, B) in inputs.items():
        rows, least = reads.largest(name) * len(X) / X.size, len(X) / -(-len(X) // B)
        if rows > B or rows < least:
            return (MORE if rows > B else FEWER).format("Bc" if name in "KV" else "Br", name)
    return None


def _keeps_no_weights(backward):
    """Law with inputs of its own: at no time is half of the N x N weights kept."""
    N, B = 512, 32
    column = np.ones((N, 1), np.float32)
    inputs = _inputs(*[column] * 4, B, B)
    tracemalloc.start()
    try:
        backward(*inputs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Broken(f"{N} queries and {N} keys", KEPT.format(peak), if_right=True) if peak > N * N * 2 else None


def _edge(property, queries, keys, Br, Bc):
    """Return a case of d = 4, so that the scale is 1/2. V and dO are small whole numbers."""
    Q, K = (np.float32([[2 * x, 0, 0, 0] for x in numbers]) for numbers in (queries, keys))  # [N, 4]
    V = np.float32([(at, 1 - at) for at in range(len(keys))])  # [Nk, 2]
    dO = np.float32([(1, 2 * at) for at in range(len(queries))])  # [Nq, 2]
    return Case(property, _inputs(Q, K, V, dO, Br, Bc))


backward = Exercise(
    reference=keys_outside,
    edges=(
        _edge("one tile", [1], [0, 1], 1, 2),
        _edge("two tiles of keys: both add to dQ", [1], [1, -1], 1, 1),
        _edge("two tiles of queries: both add to dK and dV", [1, -1], [0, 1], 1, 2),
        _edge("last tiles that are not full", [1, 0, -1], [0, 1, 1], 2, 2),
        _edge("more queries than keys", [1, 0, -1, 1], [1, 0], 1, 2),
    ),
    draw=_draw,
    laws=(tile_by_tile,),
    once=(_keeps_no_weights,),
    sways=True,  # dP - delta is a difference of numbers that may be nearly equal
    mistakes=(
        Mistake("assigned dQ, so that the last tile of keys is all that is left.", "Every tile of keys adds to it.",
                "dQ[rows] +=", "dQ[rows] ="),
        Mistake("assigned dK and dV, so that the last tile of queries is all that is left.",
                "Every tile of queries adds to them.",
                "dK[cols] += dK_j\n            dV[cols] += dV_j", "dK[cols], dV[cols] = dK_j, dV_j"),
        Mistake("left the scale out of the scores.", "The forward pass had it: lse belongs to scale · Q Kᵀ.",
                "scale * (Q[rows] @ K[cols].T)", "Q[rows] @ K[cols].T"),
        Mistake("dropped the last, shorter tile of keys.", "Loop to len(K): a slice ends there by itself.",
                "range(0, len(K), Bc)", "range(0, len(K) - Bc + 1, Bc)"),
        Mistake("went through the queries in steps of Bc.", "Their tiles have Br rows.",
                "range(0, len(Q), Br)", "range(0, len(Q), Bc)"),
        Mistake("returned inside the outer loop, after the first tile of keys.", "Return after both loops.",
                "    return Gradients", "        return Gradients"),
    ),
    level=3,
    minutes=15,
    hints=(
        "Which of dQ, dK and dV does one tile of keys add to? Which does one tile of queries add to?",
        "Make dQ, dK and dV of zeros first. For each tile of keys, cols, and each tile of queries, rows: P_ij from "
        "rebuild(scale * (Q[rows] @ K[cols].T), lse[rows]), delta_i from delta(dO[rows], O[rows]).",
        "dQ_i, dK_j, dV_j = gradients(Q[rows], K[cols], V[cols], dO[rows], P_ij, delta_i, scale); then add dQ_i to "
        "dQ[rows], dK_j to dK[cols] and dV_j to dV[cols]. scale is Q.shape[1] ** -0.5.",
    ),
)  # fmt: skip
