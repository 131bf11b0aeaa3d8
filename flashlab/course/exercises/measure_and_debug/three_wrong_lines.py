"""A kernel of one head with three wrong lines, to be fixed one by one: ``fix_1``, ``fix_2`` and ``fix_3``."""

import inspect
from functools import cache, partial, reduce
from typing import NamedTuple

import numpy as np

from flashlab.course.exercises.measure_and_debug.untouched import changed, untouched
from flashlab.course.exercises.triton_forward import attend, attention_one_head, forward
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake, edited

LAST_ROW, FIRST_ROW = "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "tl.minimum(i * Br + Nk - Nq + 1, Nk)"
RESCALED, AS_IT_WAS = "alpha * l_i + tl.sum(P_ij, 1)", "l_i = l_i + tl.sum(P_ij, 1)"
LOAD_V = "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None]"


class Bug(NamedTuple):
    right: str
    wrong: str
    name: str  # the lines that set it, or loop up to it, are those that a learner may change to fix the bug


BUGS = (
    Bug(LAST_ROW, FIRST_ROW, "seen"),
    Bug(f"l_i = {RESCALED}", AS_IT_WAS, "l_i"),
    Bug(f"{LOAD_V}, other=0.0)", f"{LOAD_V})", "V_j"),
)
broken = reduce(lambda kernel, bug: edited(kernel, bug.right, bug.wrong), BUGS, attention_one_head)


@cache  # so that a GPU compiles it once
def but_for(bug, kernel):
    """Return a kernel in which the other wrong lines are right, unless the learner has changed them."""
    for other in BUGS:
        stands = other.wrong in inspect.getsource(kernel.fn)
        if other is not bug and stands and untouched(kernel, broken, other.name):
            kernel = edited(kernel, other.wrong, other.right)
    return kernel


def _launch(bug, kernel, *args):
    changed(kernel, broken, {other.name for other in BUGS} - {bug.name})
    return attend(but_for(bug, kernel), *args)


def _draw(rng, size):
    """Draw a head of any lengths, with a mask or without, and tiles."""
    (Nq, Nk), d = rng.integers(1, 6 * size + 1, 2), int(rng.choice([1, 4, 16]))
    factor = rng.choice([0.3, 3])
    Q, K, V = (scale * rng.normal(size=(N, d)) for scale, N in ((factor, Nq), (factor, Nk), (1, Nk)))
    Br, Bc = 2 ** rng.integers(4, 6, 2)
    return *map(np.float16, (Q, K, V)), bool(rng.integers(2)), int(Br), int(Bc)


def _means(Nq, Nk, causal, *tile):
    """Return a head of equal scores, and of values 0, 1, 2, …: a row of O is the mean of the values that it sees."""
    return *map(np.float16, (np.ones((Nq, 1)), np.zeros((Nk, 1)), np.arange(Nk)[:, None])), causal, *tile


def _of_scores(*scores, causal=False):
    """Return a head of one query per key, of these scores; all values are 1, and so is a row of O that sees a key."""
    ones = np.ones((len(scores), 1))
    return *map(np.float16, (ones, np.array(scores)[:, None], ones)), causal


_an_exercise = partial(
    Exercise, reference=attention_one_head, exact=forward.exact, draw=_draw, draws=8, moves=forward.moves, sways=True,
    level=2, minutes=5,
)  # fmt: skip

fix_1 = _an_exercise(
    launch=partial(_launch, BUGS[0]),
    edges=(
        Case("causal, a tile of queries whose later rows see a second tile of keys", _means(32, 32, True, 32, 16)),
        Case("causal, more keys than queries", _means(20, 52, True)),
        Case("causal, the last row of a tile sees one key of the next", _means(16, 17, True)),
        Case("causal, fewer keys than queries: rows that see nothing", _means(40, 20, True)),
        Case("without a mask, where all rows see all keys", _means(20, 40, False)),
    ),
    mistakes=(
        Mistake("let the loop end where the first row of the tile ends.", "Its last row, (i + 1) * Br - 1, sees most.",
                LAST_ROW, "tl.minimum(i * Br + 1 + Nk - Nq, Nk)"),
        Mistake("let the loop end at the tile's own rows.", "The last query sees the last key: add Nk - Nq.",
                LAST_ROW, "tl.minimum((i + 1) * Br, Nk)"),
        Mistake("let the loop end one key too early.", "The last row, r = (i + 1) * Br - 1, sees r + Nk - Nq + 1 keys.",
                LAST_ROW, "tl.minimum((i + 1) * Br - 1 + Nk - Nq, Nk)"),
        Mistake("inverted the difference of the lengths.", "Query r sees the keys j ≤ r + Nk - Nq.",
                LAST_ROW, "tl.minimum((i + 1) * Br + Nq - Nk, Nk)"),
        Mistake("let the loop go on past the keys that rows of the tile see: right, but it loads tiles in vain.",
                "End it where the tile's last row ends.", f"{LAST_ROW} if causal else Nk", "Nk"),
        Mistake("cut the number of keys at Nq.", "There are Nk keys.",
                LAST_ROW, "tl.minimum((i + 1) * Br + Nk - Nq, Nq)"),
    ),
    hints=(
        "With keys of 0 the first rows of each tile are right, and all rows without a mask. What differs between rows?",
        "The later a row is in its tile, the more keys it sees. Which line says where the loop over keys ends?",
        "seen is the number of keys that the tile's first row sees, i * Br + Nk - Nq + 1. Its last row is "
        "(i + 1) * Br - 1.",
    ),
)  # fmt: skip

fix_2 = _an_exercise(
    launch=partial(_launch, BUGS[1]),
    edges=(
        Case("a second tile of keys that raises the maximum", _of_scores(*[0] * 16, 3)),
        Case("a second tile of keys that raises it far", _of_scores(*[0] * 16, 100)),
        Case("a second tile of keys that does not raise it", _of_scores(3, *[0] * 16)),
        Case("causal, a maximum that rises in each tile", _of_scores(*range(40), causal=True)),
        Case("equal scores, which never raise it", _means(20, 40, False)),
    ),
    mistakes=(
        Mistake("added the old sum as it was.", "It belongs to the old maximum: multiply it by alpha.",
                RESCALED, "tl.sum(P_ij, 1) + l_i"),
        Mistake("rescaled the new weights, too.", "They belong to the new maximum already: multiply only l_i by alpha.",
                RESCALED, "alpha * (l_i + tl.sum(P_ij, 1))"),
        Mistake("rescaled the new weights in place of the old sum.", "The old sum is what belongs to the old maximum.",
                RESCALED, "l_i + alpha * tl.sum(P_ij, 1)"),
        Mistake("removed the factor of O_i, too: now both sums are wrong.", "O_i was right. Rescale l_i as O_i is.",
                "tl.exp(m_i - m_safe)", "tl.zeros([Br], tl.float32) + 1"),
        Mistake("divided by alpha.", "The old weights shrink when the maximum rises: multiply by alpha.",
                RESCALED, "l_i / alpha + tl.sum(P_ij, 1)"),
        Mistake("added the weights after they were narrowed to float16.", "l_i is a sum in float32: add P_ij as it is.",
                RESCALED, "alpha * l_i + tl.sum(P_ij.to(tl.float16), 1)"),
    ),
    hints=(
        "With all values 1 each output should be 1. It is smaller. Which of the two sums is wrong, if O_i is right?",
        "Rows whose maximum never rises after the first tile are right. What happens when it rises?",
        "alpha brings what was added before to the new maximum. O_i is multiplied by it, and l_i?",
    ),
)  # fmt: skip

HIDDEN = (
    "the numbers are right, but a NaN was replaced. Where the values themselves hold a NaN, it is replaced, too, and "
    "O hides it. Change the load so that it leaves nothing undefined."
)


def _shows_a_nan(kernel):
    """Law with inputs of its own: a NaN in a value that all rows see is in all rows of O."""
    Q, K, V, causal = _means(1, 4, False)
    V[2] = np.nan
    found = _launch(BUGS[2], kernel, Q, K, V, causal).O
    return None if np.isnan(found).all() else Broken("a value that is NaN", HIDDEN, if_right=True)


fix_3 = _an_exercise(
    launch=partial(_launch, BUGS[2]),
    edges=(
        Case("one tile of keys that is not full", _means(1, 3, False)),
        Case("a tile that is full, and one that is not", _means(20, 20, False)),
        Case("full tiles only", _means(16, 32, False)),
        Case("causal, a last tile that is not full", _means(20, 20, True)),
    ),
    once=(_shows_a_nan,),
    mistakes=(
        Mistake("left places of V_j undefined, or infinite.",
                "Give its load other=0.0: the weight there is 0, but 0 · NaN is NaN, and 0 · ∞, too.",
                f"{LOAD_V}, other=0.0)", f"{LOAD_V.replace('inside', '(keys < Nk)')})"),
        Mistake("removed the mask of the load.", "Then it reads past the end of V. Keep the mask and give other=0.0.",
                f"{LOAD_V}, other=0.0)", "V_j = tl.load(V + keys[:, None] * d + columns)"),
        Mistake("left out the last tile, which is not full.", "Its first keys exist, and rows see them.",
                "range(0, seen, Bc)", "range(0, seen // Bc * Bc, Bc)"),
        Mistake("masked the values by the number of queries.", "There are Nk values, one per key.",
                f"{LOAD_V}, other=0.0)", f"{LOAD_V.replace('inside', '(keys < Nq)')}, other=0.0)"),
    ),
    hints=(
        "Without NaN in memory every number is right. What does a GPU do differently from the interpreter?",
        "Three tensors are loaded with a mask. What is in the places that the mask leaves out?",
        "Two of the three loads say other=0.0. The third one leaves such places undefined.",
    ),
)  # fmt: skip
