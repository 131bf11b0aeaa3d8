"""The exercises on masks and scores: which tiles a mask leaves, and what a model does to a score before it."""

from typing import NamedTuple

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import REGIMES, sweep
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import online_softmax

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
        (0.125, "That is the share of a tile in the window."),
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
        (4096, "That would be Hugging Face's sliding_window=4096. Here the own key comes on top."),
        (4095, "That is one key less than Hugging Face's window; FlashAttention's has one more."),
        (8193, "right is 0: nothing after the own key."),
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


def _bounds_cases():
    cases = [
        ("two queries in the middle, one key to the left", (4, 6), 8, 8, 1, 0),
        ("the first tile: no key before the first", (0, 2), 8, 8, 3, 0),
        ("the last tile, a window to the right as well: no key past the last", (6, 8), 8, 8, 2, 3),
        ("keys to the right", (2, 4), 8, 8, 1, 2),
        ("one query among more keys: the last query is at the last key", (0, 1), 1, 9, 2, 0),
        ("a tile of three queries among more keys", (3, 6), 6, 10, 3, 1),
        ("more queries than keys: the last tile", (6, 9), 9, 5, 2, 0),
        ("a window of one key", (5, 7), 9, 9, 0, 0),
        ("one query, whose window is all it has", (7, 8), 12, 12, 2, 2),
        ("a narrow last tile", (8, 11), 11, 11, 5, 4),
        ("tiles of 128 and a window of 1,024", (4096, 4224), 16384, 16384, 1023, 0),
        *_windows(),
    ]
    return [Case(name, (slice(*rows), *rest)) for name, rows, *rest in cases]


def _windows():
    """Some tiles of some lengths under some windows, of which each query sees a key."""
    for Nq, Nk in ((7, 7), (4, 9), (9, 7)):
        for start in range(max(Nq - Nk, 0), Nq, 2):
            for left, right in ((0, 0), (1, 0), (3, 0), (2, 1), (0, 2), (9, 9)):
                name = f"Nq = {Nq}, Nk = {Nk}, left = {left}, right = {right}: the tile at row {start}"
                yield name, (start, min(start + 2, Nq)), Nq, Nk, left, right


bounds = Exercise(
    reference=bounds_of,
    cases=_bounds_cases,
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
    mistakes=(
        Mistake(
            "the window was taken for its width, own key included: left counts the keys before the own one.",
            "Nk - Nq - left, 0",
            "Nk - Nq - left + 1, 0",
        ),
        Mistake("aligned at the upper left: query i is at key i + Nk − Nq.",
                "rows.start + Nk - Nq - left, 0)\n    stop = min(rows.stop + Nk - Nq",
                "rows.start - left, 0)\n    stop = min(rows.stop"),
        Mistake("with fewer keys than queries the difference is negative, and stays so.",
                "start = max(rows.start + Nk - Nq", "Nk, Nq = Nk, min(Nq, Nk)\n    start = max(rows.start + Nk - Nq"),
        Mistake("the right end is not aligned: query i is at key i + Nk − Nq there, too.",
                "rows.stop + Nk - Nq", "rows.stop"),
        Mistake("stop excludes the last key: it is one past it, and rows.stop is one past the last query already.",
                "rows.stop + Nk - Nq + right", "rows.stop - 1 + Nk - Nq + right"),
        Mistake("that is one key too many: rows.stop is one past the last query already.",
                "rows.stop + Nk - Nq + right", "rows.stop + 1 + Nk - Nq + right"),
        Mistake("the bounds are those of the last query: the first one reaches further to the left.",
                "rows.start + Nk", "rows.stop - 1 + Nk"),
        Mistake("the bounds are those of the first query: the last one reaches further to the right.",
                "rows.stop + Nk", "rows.start + 1 + Nk"),
        Mistake("there is no key before 0: take the larger of the two.",
                "max(rows.start + Nk - Nq - left, 0)", "rows.start + Nk - Nq - left"),
        Mistake("there is no key past Nk − 1: stop is at most Nk.",
                "min(rows.stop + Nk - Nq + right, Nk)", "rows.stop + Nk - Nq + right"),
        Mistake("the right end was forgotten: these queries see `right` keys after their own.",
                "Nk - Nq + right", "Nk - Nq"),
    ),
)  # fmt: skip


def masked_by_documents(S_ij, i, j, ids):
    """Return S_ij [Br, Bc] with -inf where key j [1, Bc] is of another document than query i [Br, 1], or after it."""
    return np.where((ids[i] == ids[j]) & (j <= i), S_ij, -np.inf)


def _documents_cases():
    def case(name, rows, cols, ids):
        i, j = np.ogrid[slice(*rows), slice(*cols)]
        S_ij = np.random.default_rng(len(name)).normal(size=(i.size, j.size)).astype(np.float32)
        return Case(name, (S_ij, i, j, np.array(ids)))

    mixed = np.repeat([3, 5, 8], [5, 9, 2])
    return [
        case("two documents of two tokens", (0, 4), (0, 4), [0, 0, 1, 1]),
        case("one document", (0, 3), (0, 3), [7, 7, 7]),
        case("a tile of two documents, below the diagonal", (3, 6), (0, 3), [0, 0, 0, 0, 1, 1]),
        case("a tile above the diagonal, of one document", (0, 2), (2, 4), [1, 1, 1, 1]),
        case("documents of one token", (0, 3), (0, 3), [0, 1, 2]),
        case("numbers that skip", (2, 7), (1, 6), mixed),
        case("a tile that is taller than wide", (4, 16), (3, 8), mixed),
        case("one query", (13, 14), (0, 16), mixed),
        case("one key", (0, 16), (5, 6), mixed),
    ]


documents = Exercise(
    reference=masked_by_documents,
    cases=_documents_cases,
    laws=(no_nan_replaced,),
    level=1,
    minutes=5,
    hints=(
        "Two conditions, and both must hold. i and j are arrays that broadcast: a comparison of them is [Br, Bc].",
        "ids[i] is the document of each query [Br, 1], ids[j] that of each key [1, Bc].",
        "np.where((ids[i] == ids[j]) & (j <= i), S_ij, -np.inf). The brackets are needed: & binds tighter than ==.",
    ),
    mistakes=(
        Mistake("the causal part is missing: a query must not see its document's future.", " & (j <= i)", ""),
        Mistake("a query does not see its own key: it is ≤, not <.", "j <= i", "j < i"),
        Mistake("the future was kept and the past hidden.", "j <= i", "j >= i"),
        Mistake("only the causal part is there: documents see each other.", "(ids[i] == ids[j]) & ", ""),
        Mistake("either condition was enough: both must hold.", " & ", " | "),
        Mistake("places within the tile were compared: i and j are places in the whole matrix.", "(j <= i)",
                "(j - j.min() <= i - i.min())"),
        Mistake("hidden scores became 0: e⁰ = 1 is a weight.", "-np.inf", "0"),
        Mistake("a document's own tokens were hidden and all others shown.", "ids[i] == ids[j]", "ids[i] != ids[j]"),
    ),
)  # fmt: skip


def softcapped(S_ij, seen, cap):
    """Return the scores [Br, Bc] capped, cap · tanh(S / cap), and −∞ where ``seen`` [Br, Bc] is False."""
    return np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)


def _softcap_cases():
    by_hand = [
        Case("four scores, all seen", (np.float32([[0, 1, -3, 50]]), np.ones((1, 4), bool), 2.0)),
        Case("a hidden score", (np.float32([[0, 1, -3, 50]]), np.array([[True, True, False, True]]), 30.0)),
        Case("a row that sees nothing", (np.float32([[5, 1], [5, 1]]), np.array([[False, False], [True, False]]), 4.0)),
    ]

    def build(draw, Br, Bc):
        seen = draw.rng.random((Br, Bc)) < 0.7
        return draw.scores(Br, Bc), seen, float(draw.rng.choice([0.5, 7.0, 30.0]))

    finite = [regime for regime in REGIMES if regime.hidden is None]
    return by_hand + sweep(build, regimes=finite)


softcap = Exercise(
    reference=softcapped,
    cases=_softcap_cases,
    laws=(no_nan_replaced,),
    level=1,
    minutes=5,
    hints=(
        "Three steps: divide by the cap, squash, stretch back. And then the mask. Which order keeps −∞?",
        "tanh(−∞) is −1, so a mask that comes first ends as −cap. np.where comes last.",
        "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)",
    ),
    mistakes=(
        Mistake("the mask came first, and the cap made −cap of −∞: hidden keys have a weight again.",
                "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)",
                "cap * np.tanh(np.where(seen, S_ij, -np.inf) / cap)"),
        Mistake("the scores were not stretched back: multiply by the cap.", "cap * np.tanh", "np.tanh"),
        Mistake("the scores were not divided by the cap, so even small ones are bent.", "S_ij / cap", "S_ij"),
        Mistake("the scores were multiplied with the cap before tanh: divide.", "S_ij / cap", "S_ij * cap"),
        Mistake("that clips: tanh bends the scores, and keeps their order.",
                "cap * np.tanh(S_ij / cap)", "np.clip(S_ij, -cap, cap)"),
        Mistake("the mask is missing.", "np.where(seen, cap * np.tanh(S_ij / cap), -np.inf)",
                "cap * np.tanh(S_ij / cap)"),
        Mistake("a large negative number is not −∞.", "-np.inf", "-1e9"),
        Mistake("hidden scores became 0: e⁰ = 1 is a weight.", "-np.inf", "0"),
        Mistake("the scores that are seen were hidden, and the others shown.", "where(seen", "where(~seen"),
    ),
)  # fmt: skip


def slope_of_softcap(S_ij, cap):
    """Return the derivative of cap · tanh(S / cap) by S [Br, Bc]."""
    return 1 - np.tanh(S_ij / cap) ** 2


def _slope_cases():
    by_hand = [
        Case("a score of 0: the slope is 1", (np.zeros((1, 1), np.float32), 30.0)),
        Case("a score at the cap, on either side", (np.float32([[30, -30]]), 30.0)),
        Case("scores far beyond the cap: flat", (np.float32([[900, -900]]), 30.0)),
    ]

    def build(draw, Br, Bc):
        return draw.scores(Br, Bc), float(draw.rng.choice([0.5, 7.0, 30.0]))

    return by_hand + sweep(build, regimes=[regime for regime in REGIMES if regime.hidden is None])


cap_slope = Exercise(
    reference=slope_of_softcap,
    cases=_slope_cases,
    laws=(no_nan_replaced,),
    level=1,
    minutes=5,
    hints=(
        "The derivative of tanh(x) is 1 − tanh²(x). What does the chain rule add for S / cap, and for cap in front?",
        "cap · (1 − tanh²(S / cap)) · 1/cap: they cancel.",
        "1 - np.tanh(S_ij / cap) ** 2",
    ),
    mistakes=(
        Mistake("the chain rule brings 1 / cap, which cancels the cap in front.", "1 - ", "cap - cap * "),
        Mistake("the cap in front cancels the 1 / cap: neither stays.", "1 - np.tanh(S_ij / cap) ** 2",
                "(1 - np.tanh(S_ij / cap) ** 2) / cap"),
        Mistake("that is the function, not its slope.", "1 - np.tanh(S_ij / cap) ** 2", "cap * np.tanh(S_ij / cap)"),
        Mistake("the square is missing: 1 − tanh².", " ** 2", ""),
        Mistake("the scores were not divided by the cap.", "S_ij / cap", "S_ij"),
        Mistake("a slope of 1 everywhere is that of no cap at all.", "1 - np.tanh(S_ij / cap) ** 2",
                "np.ones_like(S_ij)"),
    ),
)  # fmt: skip


def start_with_a_sink(s, Br, dv):
    """Return the state (m, l, O) of Br rows that have met one key with the score s, whose value is 0."""
    return online_softmax.State(np.full(Br, s), np.ones(Br), np.zeros((Br, dv)))


sink = Exercise(
    reference=start_with_a_sink,
    cases=lambda: [
        Case("a score of 0", (0.0, 2, 3)),
        Case("a negative score", (-1.5, 1, 2)),
        Case("a score whose exponential overflows in float32", (100.0, 3, 1)),
        Case("a score whose exponential overflows in float64", (800.0, 2, 4)),
        Case("a score far below zero", (-900.0, 4, 2)),
        Case("one row, one column", (2.5, 1, 1)),
        Case("a score that float16 rounds", (1 + 2.0**-12, 2, 3)),
    ],
    level=1,
    minutes=4,
    hints=(
        "Take one key with the score s into the identity (−∞, 0, 0): what are maximum, denominator and output?",
        "The maximum is s. The denominator counts e^(s − m) with m = s. The output counts that weight times a value "
        "of 0.",
        "online_softmax.State(np.full(Br, s), np.ones(Br), np.zeros((Br, dv)))",
    ),
    mistakes=(
        Mistake("l counts e^(s − m), and m is s: that is 1, whatever s is.", "np.ones(Br)", "np.full(Br, np.exp(s))"),
        Mistake("m is 0 and l is e^s: the same number, until e^s overflows. Let m be s.",
                "np.full(Br, s), np.ones(Br)", "np.zeros(Br), np.full(Br, np.exp(s))"),
        Mistake("the sink is in m only: its weight e^(s − m) = 1 belongs into l.", "np.ones(Br)", "np.zeros(Br)"),
        Mistake("m is still −∞: the sink is a key that has been met, so m is its score.",
                "np.full(Br, s)", "np.full(Br, -np.inf)"),
        Mistake("the value of a sink is 0: it adds nothing to O.", "np.zeros((Br, dv))", "np.ones((Br, dv))"),
        Mistake("m and l are exchanged.", "np.full(Br, s), np.ones(Br)", "np.ones(Br), np.full(Br, s)"),
    ),
)  # fmt: skip
