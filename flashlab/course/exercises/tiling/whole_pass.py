"""The learner's own FlashAttention, forward: ``forward``, the loop over tiles of queries around ``inside``."""

import numpy as np

from flashlab.course.exercises.tiling.meetings import QUERY, TWO, Output, draw_inside, keys
from flashlab.course.exercises.tiling.meetings import keys_inside as inside
from flashlab.course.exercises.tiling.one_tile_at_a_time import tile_by_tile
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced


def queries_outside(Q, K, V, Br, Bc):
    """Return O [Nq, dv] and lse [Nq] for Q [Nq, d], K [Nk, d] and V [Nk, dv], Br queries and Bc keys at a time."""
    O, lse = np.zeros((len(Q), V.shape[1]), Q.dtype), np.zeros(len(Q), Q.dtype)  # [Nq, dv], [Nq]
    for start in range(0, len(Q), Br):
        rows = slice(start, start + Br)
        O[rows], lse[rows] = inside(Q[rows], K, V, Bc)
    return Output(O, lse)


def _draw(rng, size):
    Q, K, V, Bc = draw_inside(rng, size)
    return Q, K, V, int(rng.integers(1, size + 1)), Bc


forward = Exercise(
    reference=queries_outside,
    edges=(
        Case("one tile of queries, one tile of keys", (TWO, *keys(0, 1), 2, 2)),
        Case("two tiles of queries", (TWO, *keys(0, 1), 1, 2)),
        Case("a last tile of queries that is not full", (np.vstack([TWO, QUERY]), *keys(0, 1), 2, 2)),
        Case("more queries than keys", (np.vstack([TWO, TWO]), *keys(3), 2, 1)),
        Case("more keys than queries, and larger tiles of queries", (TWO, *keys(0, 1, 2, 3), 2, 1)),
    ),
    draw=_draw,
    laws=(no_nan_replaced, tile_by_tile),
    sways=True,
    mistakes=(
        Mistake("dropped the last, shorter tile of queries.", "Loop to len(Q): a slice ends there by itself.",
                "range(0, len(Q), Br)", "range(0, len(Q) - Br + 1, Br)"),
        Mistake("passed each tile of queries only the keys and values of its own places.",
                "Each query sees all keys: pass K and V whole. `inside` cuts them.",
                "[rows], K, V, Bc)", "[rows], K[rows], V[rows], Bc)"),
        Mistake("went through the queries in steps of Bc.", "Their tiles have Br rows.",
                "range(0, len(Q), Br)", "range(0, len(Q), Bc)"),
        Mistake("returned the last tile of queries only.", "Write each tile to its rows of O and of lse.",
                "O[rows], lse[rows] =", "O, lse ="),
        Mistake("returned inside the loop, after the first tile.", "Return after the loop.",
                "    return Output", "        return Output"),
        Mistake("made O as wide as Q.", "An output is as long as a value: O is [Nq, dv].",
                "V.shape[1]", "Q.shape[1]"),
    ),
    level=2,
    minutes=10,
    hints=(
        "inside returns O and lse of one tile of queries. Where do these rows belong in the whole O and lse?",
        "Make O [Nq, dv] and lse [Nq] first. Then, for each start in range(0, len(Q), Br), fill the rows of one tile.",
        "rows = slice(start, start + Br), then O[rows], lse[rows] = inside(Q[rows], K, V, Bc).",
    ),
)  # fmt: skip
