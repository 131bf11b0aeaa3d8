"""The capstone, the whole kernel of one head: ``forward``."""

import numpy as np

from flashlab.course.exercises.triton_forward.one_head import (
    TILE,
    Output,
    attend,
    attention_one_head,
    narrow_factors,
)
from flashlab.grading.draws import cut_lengths, queries_and_keys, whole
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import loads_at_most, no_small_number_added
from flashlab.kernels import triton
from flashlab.reference import masks, tiling
from flashlab.reference.attention import attention


def _enough(Q, K, V, causal, Br=TILE, Bc=TILE):
    """Return the bytes that the kernel must load: Q once, and K and V once for each program that sees them."""
    width, mask = max(16, triton.next_power_of_2(Q.shape[1])), masks.causal() if causal else None
    bill = tiling.fa2_traffic(len(Q), len(K), width, Br, Bc, mask=mask, dtype=np.float16)
    return sum(size for (kind, _), size in bill.items() if kind == "load")


def _outputs(Q, *others):
    """Return the bytes of O, of a tile's width, and of lse."""
    return 4 * len(Q) * (max(16, triton.next_power_of_2(Q.shape[1])) + 1)


def _dense(Q, K, V, causal, Br=TILE, Bc=TILE):
    return Output(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def _head(property, Q, K, V, causal=False, *tile):
    return Case(property, (*(np.array(x, np.float16) for x in (Q, K, V)), causal, *tile))


def _draw(rng, size):
    """Draw a head of any lengths and width, and tiles of any shape."""
    Nq, Nk, Br, Bc = cut_lengths(rng, size)
    d = whole(rng, size, 200)
    Q, K = queries_and_keys(rng, Nq, Nk, d)
    V = np.clip(rng.choice([1, 1, 3e4]) * rng.normal(size=(Nk, d)), -65504, 65504)
    return *(x.astype(np.float16) for x in (Q, K, V)), bool(rng.integers(2)), Br, Bc


def _equal(Nq, Nk):
    """Return Q, K and V whose scores are all 0, also that of a key past the end: only its place tells it apart."""
    return np.zeros((Nq, 1)), np.ones((Nk, 1)), np.arange(Nk)[:, None] + 1


LARGEST = 6e4 * np.ones((2, 130))  # and more than 128 columns
# Weights other than 1 are nearly numbers of float16, or their keys have the value 0: narrowing changes no result.
RISING = [[4, 0, 0, 0]] * 16 + [[4, 2**-12, 0, 0]] * 15  # [31, 4]
LOW = [-36.5, 0, 0, 0]
MANY = [LOW] * 2048 + [[1, 0, 0, 0]] + [LOW] * 2047 + [[1, 2**-10, 0, 0]]  # [4097, 4]
_ZEROS = (np.zeros((1, 16), np.float16), *np.zeros((2, 3, 16), np.float16))  # Q, K, V

forward = Exercise(
    reference=attention_one_head,
    launch=attend,
    exact=_dense,
    edges=(
        _head("one key fewer than two tiles hold, and a second tile that raises the maximum by little",
              [[2, 2, 0, 0]], RISING, np.maximum(0, np.arange(31) - 15)[:, None] * np.ones(4)),
        _head("scores below −1e9, which is often used for −∞, and large ones",
              LARGEST * [[-1], [1]], LARGEST * [[1], [0.9]], LARGEST / 6e4 * [[1], [2]]),
        _head("causal, fewer keys than queries: only the last two queries see any", *_equal(17, 2), True),
        _head("causal: the first query sees all keys of a tile but one", *_equal(16, 30), True),
        _head("one of two large weights, between 4,095 small ones that count together",
              [[1, 1, 0, 0]], MANY, (np.arange(4097) == 2048)[:, None] * np.ones(4), False, TILE, 1024),
    ),
    draw=_draw,
    draws=30,
    moves=(loads_at_most(_enough, "Q_i is", _outputs),),
    once=(no_small_number_added(attend, *_ZEROS), narrow_factors(attend, *_ZEROS)),
    sways=True,
    level=3,
    minutes=60,
    hints=(
        "One program, one tile of O: load Q_i once; loop over the tiles of keys with m_i, l_i, O_i in registers; "
        "divide and store after the loop. Get one query and one key right first.",
        "rows = tl.program_id(0) * Br + tl.arange(0, Br), keys = start + tl.arange(0, Bc), addresses "
        "K + keys[:, None] * d + tl.arange(0, d). A score whose key is past the end or in the future becomes −∞ "
        "before the maximum is taken.",
        "S_ij = tl.dot(Q_i, K_j.T) * scale; mask; then the six lines; O_i = tl.dot(P_ij.to(V_j.dtype), V_j, "
        "alpha[:, None] * O_i). At the end O_i / l_safe[:, None] and m_i + tl.log(l_safe), or 0 and −∞ where l_i is 0.",
    ),
    mistakes=(
        Mistake("let keys past the end count with a score of 0.", "Their scores are −∞: ask keys < Nk.",
                "tl.where(inside[None, :], S_ij, -float(\"inf\"))", "S_ij"),
        Mistake("did not rescale the old output.", "Multiply it by alpha, as l_i.", "alpha[:, None] * O_i", "O_i"),
        Mistake("let query i see the keys j ≤ i.", "It sees the keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None]"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m_new is −∞, subtract 0.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("stored lse in units of log2.", "It is natural: m + log l.",
                "m_i + tl.log(l_safe)", "(m_i + tl.log(l_safe)) * 1.4426950408889634"),
        Mistake("rounded the output to half precision.",
                "It is added to in each tile: keep O_i, and what is added, in float32.",
                "alpha[:, None] * O_i)", "alpha[:, None] * O_i).to(tl.float16).to(tl.float32)"),
    ),
)  # fmt: skip
