"""The exercises on masks and scores: which tiles a mask leaves, and what a model does to a score before it."""

from typing import NamedTuple

import numpy as np

from flashlab.grading.draws import hidden, scores
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.grading.laws import hidden_whatever_they_are, no_nan_replaced
from flashlab.reference import online_softmax

__all__ = [
    "tiles_per_row",
    "useful_share",
    "bounds",
    "window_keys",
    "documents",
    "softcap",
    "cap_slope",
    "sink",
]  # in the lesson's order

inf = np.inf

tiles_per_row = Question(
    answer=9,
    because="The window of the tile's first query reaches back 1,023 keys, that of the last ends at its own: "
    "127 + 1,024 = 1,151 keys, which begin inside one tile and touch nine.",
    hints=(
        "A tile has 128 queries. Which keys does the first of them see, which the last?",
        "If the tile begins at query i, keys i − 1,023 to i + 127 are needed.",
        "1,151 keys that end with a tile: 1151 / 128, rounded up.",
    ),
    wrong=(
        (8, "That is for the last query alone. The first one reaches further back."),
        (10, "1,151 keys end at the end of a tile: 8.99 tiles."),
        (1151, "Those are keys. A tile has 128."),
        (1024, "Those are keys, of a single query."),
    ),
    minutes=3,
)

useful_share = Question(
    answer=0.889,
    because="W / (W + T): each query sees 1,024 keys, and its tile computes 9 · 128 = 1,152 for it.",
    hints=(
        "For each query: how many scores are computed, and how many of them count?",
        "Nine tiles of 128 keys are computed. The window has 1,024.",
        "1024 / 1152",
    ),
    wrong=(
        (1, "Then no tile would be cut. Those at both edges are."),
        (0.778, "Seven of nine tiles are whole. But the two that are cut are not all hidden: half of each counts."),
        (0.125, "That is a tile's share of the window."),
    ),
    minutes=2,
)

window_keys = Question(
    answer=4097,
    rel=1e-6,
    because="left counts the keys before the query's own, which is seen as well: left + 1.",
    hints=(
        "Does left count the query's own key?",
        "No: it counts the keys before it.",
        "4096 before it, and its own.",
    ),
    wrong=(
        (4096, "That would be Hugging Face's sliding_window=4096. Here the query's own key comes on top."),
        (4095, "That is one key less than Hugging Face's window; FlashAttention's has one more."),
        (8193, "right is 0: no key after the query's own."),
    ),
    minutes=1,
)


class Bounds(NamedTuple):
    """The keys that some query of a tile sees."""

    start: int
    stop: int


def bounds_of(rows, Nq, Nk, left, right):
    """Return (start, stop): the keys that the queries in ``rows`` see with ``left`` keys before and ``right`` after."""
    start = max(rows.start + Nk - Nq - left, 0)
    stop = min(rows.stop + Nk - Nq + right, Nk)
    return Bounds(start, stop)


def _draw_bounds(rng, size):
    """Draw a tile of queries of which the last one sees a key at least."""
    Nq, Nk = (int(n) for n in rng.integers(1, size + 1, 2))
    left, right = (int(n) for n in rng.integers(0, size + 1, 2))
    stop = int(rng.integers(max(1, Nq - Nk - right + 1), Nq + 1))
    return slice(int(rng.integers(stop)), stop), Nq, Nk, left, right


bounds = Exercise(
    reference=bounds_of,
    edges=(
        Case("two queries in the middle, which see keys on both sides", (slice(4, 6), 9, 9, 1, 2)),
        Case("a first tile, whose window begins before the first key", (slice(0, 2), 8, 8, 3, 0)),
        Case("a last tile, whose window ends after the last key", (slice(6, 8), 8, 8, 2, 3)),
        Case("one query among more keys: it is at the last one", (slice(0, 1), 1, 9, 2, 0)),
        Case("more queries than keys", (slice(6, 9), 9, 5, 2, 0)),
    ),
    draw=_draw_bounds,
    mistakes=(
        Mistake("counted the query's own key in the window.", "left counts the keys before it.",
                "Nk - Nq - left, 0", "Nk - Nq - left + 1, 0"),
        Mistake("aligned the queries at the upper left.", "Query i is at key i + Nk − Nq.",
                "rows.start + Nk - Nq - left, 0)\n    stop = min(rows.stop + Nk - Nq",
                "rows.start - left, 0)\n    stop = min(rows.stop"),
        Mistake("excluded the last key.", "stop is one past it, and rows.stop is one past the last query already.",
                "rows.stop + Nk - Nq + right", "rows.stop - 1 + Nk - Nq + right"),
        Mistake("took the bounds of the last query.", "The first one reaches further to the left.",
                "rows.start + Nk", "rows.stop - 1 + Nk"),
        Mistake("returned a start below 0.", "No key comes before 0: take the larger of the two.",
                "max(rows.start + Nk - Nq - left, 0)", "rows.start + Nk - Nq - left"),
        Mistake("returned a stop above Nk.", "No key comes after Nk − 1: take the smaller of the two.",
                "min(rows.stop + Nk - Nq + right, Nk)", "rows.stop + Nk - Nq + right"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Query i is at the position i + Nk − Nq among the keys. Which query of the tile sees the first key, which the "
        "last?",
        "The first query, rows.start, reaches furthest to the left: its own key less `left`. The last query, "
        "rows.stop − 1, reaches furthest to the right, and stop is one past its last key. No key comes before 0 or "
        "after Nk − 1.",
        "start = max(rows.start + Nk - Nq - left, 0); stop = min(rows.stop + Nk - Nq + right, Nk).",
    ),
)  # fmt: skip


def masked_by_documents(S_ij, i, j, ids):
    """Return S_ij [Br, Bc] with -inf where key j [1, Bc] is of another document than query i [Br, 1], or after it."""
    return np.where((ids[i] == ids[j]) & (j <= i), S_ij, -np.inf)


def _documents(ids, rows, cols):
    """Return a tile of scores, its places and the numbers of the texts."""
    i, j = np.ogrid[slice(*rows), slice(*cols)]
    return np.float32(i + 0.5 * j), i, j, np.array(ids)


def _draw_documents(rng, size):
    """Draw a tile of a row of packed texts. The numbers of the texts rise, and may skip many."""
    N = int(rng.integers(1, size + 1))
    begins = rng.random(N) < rng.choice([0, 0.3, 1])  # [N]
    steps = rng.integers(1, 4, N) * 2 ** rng.choice([0, 0, 8, 16, 32], N)  # [N]: few bits do not hold all numbers
    ids = np.cumsum(begins * steps)  # [N]
    starts = rng.integers(N, size=2)
    i, j = np.ogrid[tuple(slice(start, rng.integers(start, N) + 1) for start in starts)]
    return scores(rng, i.size, j.size), i, j, ids


documents = Exercise(
    reference=masked_by_documents,
    edges=(
        Case("one document", _documents([7, 7, 7], (0, 3), (0, 3))),
        Case("two documents of two tokens", _documents([0, 0, 1, 1], (0, 4), (0, 4))),
        Case("a tile of two documents, below the diagonal", _documents([0, 0, 0, 0, 1, 1], (3, 6), (0, 3))),
        Case("a tile above the diagonal, of one document", _documents([1, 1, 1, 1], (0, 2), (2, 4))),
    ),
    draw=_draw_documents,
    laws=(no_nan_replaced, hidden_whatever_they_are),
    mistakes=(
        Mistake("left the causal part out.", "A query must not see the future of its own document.", " & (j <= i)", ""),
        Mistake("hid the query's own key.", "It is ≤, not <.", "j <= i", "j < i"),
        Mistake("hid the past and showed the future.", "A query sees the keys j ≤ i.", "j <= i", "j >= i"),
        Mistake("let documents see each other.", "The ids of query and key must be equal.",
                "(ids[i] == ids[j]) & ", ""),
        Mistake("let either condition suffice.", "Both must hold.", " & ", " | "),
        Mistake("set hidden scores to 0, whose weight is e⁰ = 1.", "Set them to −∞.", "-np.inf", "0"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Two conditions, and both must hold. i and j are arrays that broadcast: a comparison of them is [Br, Bc].",
        "ids[i] is the document of each query [Br, 1], ids[j] that of each key [1, Bc].",
        "np.where((ids[i] == ids[j]) & (j <= i), S_ij, -np.inf). The brackets are needed: & binds tighter than ==.",
    ),
)  # fmt: skip


def softcapped(S_ij, seen, cap):
    """Return the scores [Br, Bc] capped, cap · tanh(S / cap), and −∞ where ``seen`` [Br, Bc] is False."""
    return np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)


def _draw_slope(rng, size):
    """Draw scores of which one is 0, and a cap. The slope at 0 is 1: the rounding of 1 − tanh² is small beside it."""
    S = scores(rng, *rng.integers(1, size + 1, 2), masked=False)  # [Br, Bc]
    S[0, 0] = 0
    return S, float(10 ** rng.uniform(-1, 3))


def _draw_softcap(rng, size):
    S, cap = _draw_slope(rng, size)
    return S, ~hidden(rng, *S.shape), cap


FOUR = np.float32([[0, 1, -3, 50]])

softcap = Exercise(
    reference=softcapped,
    edges=(
        Case("four scores, all seen", (FOUR, np.ones((1, 4), bool), 2.0)),
        Case("a hidden score", (FOUR, np.array([[True, True, False, True]]), 30.0)),
        Case("a row that sees nothing", (np.float32([[5, 1]]), np.zeros((1, 2), bool), 4.0)),
    ),
    draw=_draw_softcap,
    laws=(no_nan_replaced, hidden_whatever_they_are),
    mistakes=(
        Mistake("gave hidden scores −cap, which has a weight: the cap turns −∞ into −cap.",
                "Set hidden scores to −∞ after the cap.",
                "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)",
                "cap * np.tanh(np.where(seen, S_ij, -np.inf) / cap)"),
        Mistake("did not stretch the scores back.", "Multiply tanh by the cap.", "cap * np.tanh", "np.tanh"),
        Mistake("did not divide the scores by the cap, so even small ones are bent.", "Take tanh(S / cap).",
                "S_ij / cap", "S_ij"),
        Mistake("clipped the scores.", "tanh bends them, and keeps their order.",
                "cap * np.tanh(S_ij / cap)", "np.clip(S_ij, -cap, cap)"),
        Mistake("left the mask out.", "Return −∞ where seen is False.",
                "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)", "cap * np.tanh(S_ij / cap)"),
        Mistake("hid scores with a large negative number, which has a weight in a row that sees nothing.", "Use −∞.",
                "-np.inf", "-1e9"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Three steps: divide by the cap, squash, stretch back. And then the mask. Which order keeps −∞?",
        "tanh(−∞) is −1, so a mask that comes first ends as −cap. np.where comes last.",
        "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)",
    ),
)  # fmt: skip


def slope_of_softcap(S_ij, cap):
    """Return the derivative of cap · tanh(S / cap) by S [Br, Bc]."""
    return 1 - np.tanh(S_ij / cap) ** 2


cap_slope = Exercise(
    reference=slope_of_softcap,
    edges=(
        Case("a score of 0: the slope is 1", (np.zeros((1, 1), np.float32), 30.0)),
        Case("a score at the cap, on either side, and a small one", (np.float32([[30, -30, 0.5]]), 30.0)),
        Case("scores far beyond the cap: flat", (np.float32([[0, 900, -900]]), 30.0)),
    ),
    draw=_draw_slope,
    laws=(no_nan_replaced,),
    mistakes=(
        Mistake("left a factor cap.", "The chain rule brings 1 / cap, which cancels it.", "1 - ", "cap - cap * "),
        Mistake("left a factor 1 / cap.", "The cap in front cancels it.", "1 - np.tanh(S_ij / cap) ** 2",
                "(1 - np.tanh(S_ij / cap) ** 2) / cap"),
        Mistake("returned the capped scores.", "Return their derivative by S.",
                "1 - np.tanh(S_ij / cap) ** 2", "cap * np.tanh(S_ij / cap)"),
        Mistake("forgot the square.", "The derivative of tanh is 1 − tanh².", " ** 2", ""),
        Mistake("did not divide the scores by the cap.", "Take tanh(S / cap).", "S_ij / cap", "S_ij"),
        Mistake("returned 1 everywhere.", "That is the slope without a cap.", "1 - np.tanh(S_ij / cap) ** 2",
                "np.ones_like(S_ij)"),
    ),
    level=1,
    minutes=5,
    hints=(
        "The derivative of tanh(x) is 1 − tanh²(x). What does the chain rule add for S / cap, and for cap in front?",
        "cap · (1 − tanh²(S / cap)) · 1/cap: they cancel.",
        "1 - np.tanh(S_ij / cap) ** 2",
    ),
)  # fmt: skip


def start_with_a_sink(s, Br, dv):
    """Return the state (m, l, O) of Br rows that have met one key with the score s, whose value is 0."""
    return online_softmax.State(np.full(Br, s), np.ones(Br), np.zeros((Br, dv)))


def _draw_sink(rng, size):
    """Draw a score that float32 holds, as a state may be returned in it."""
    s = np.float32(rng.choice([0, 1, 100, 900]) * rng.normal())
    return float(s), *(int(n) for n in rng.integers(1, size + 1, 2))


sink = Exercise(
    reference=start_with_a_sink,
    edges=(
        Case("a score of 0", (0.0, 2, 3)),
        Case("a negative score", (-1.5, 1, 2)),
        Case("a score whose exponential overflows", (800.0, 2, 4)),
    ),
    draw=_draw_sink,
    mistakes=(
        Mistake("gave l the weight e^s.", "l counts e^(s − m), and m is s: that is 1, whatever s is.",
                "np.ones(Br)", "np.full(Br, np.exp(s))"),
        Mistake("started with m = 0 and l = e^s.", "It is the same number, until e^s overflows: let m be s.",
                "np.full(Br, s), np.ones(Br)", "np.zeros(Br), np.full(Br, np.exp(s))"),
        Mistake("left l at 0.", "The weight of the sink, e^(s − m) = 1, belongs in l.",
                "np.ones(Br)", "np.zeros(Br)"),
        Mistake("left m at −∞.", "The sink is a key that has been met: m is its score.",
                "np.full(Br, s)", "np.full(Br, -np.inf)"),
        Mistake("added a value to O.", "The value of a sink is 0.", "np.zeros((Br, dv))", "np.ones((Br, dv))"),
        Mistake("exchanged m and l.", "State takes m first.", "np.full(Br, s), np.ones(Br)",
                "np.ones(Br), np.full(Br, s)"),
    ),
    level=1,
    minutes=4,
    hints=(
        "Take one key with the score s into the identity (−∞, 0, 0): what are maximum, denominator and output?",
        "The maximum is s. The denominator counts e^(s − m) with m = s. The output counts that weight times a value "
        "of 0.",
        "online_softmax.State(np.full(Br, s), np.ones(Br), np.zeros((Br, dv)))",
    ),
)  # fmt: skip
