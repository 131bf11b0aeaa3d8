"""Scores that a query must not see: ``mask``."""

import numpy as np

from flashlab.course.exercises.tiling.meetings import drawn
from flashlab.grading.exercise import Case, Exercise
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.laws import no_nan_replaced

inf = np.inf


def masked(S_ij, rows, cols, Nq, Nk):
    """Return S_ij [Br, Bc] with -inf where query i must not see key j. rows, cols: slices of the Nq x Nk scores."""
    i = np.arange(rows.start, rows.stop)[:, None]  # [Br, 1]
    j = np.arange(cols.start, cols.stop)  # [Bc]
    return np.where(j <= i + Nk - Nq, S_ij, -np.inf)


def _masked_cases():
    cases = [
        ("the first tile of four queries and keys", (0, 2), (0, 2), 4, 4),
        ("a tile on the diagonal, further down", (2, 4), (2, 4), 4, 4),
        ("a tile that no query sees", (0, 2), (2, 4), 4, 4),
        ("a tile that every query sees", (2, 4), (0, 2), 4, 4),
        ("more keys than queries: the last query sees the last key", (0, 2), (0, 5), 2, 5),
        ("more keys than queries: a tile further right", (0, 2), (2, 5), 2, 5),
        ("fewer keys than queries: the first queries see nothing", (0, 3), (0, 2), 4, 2),
        ("a narrow last tile", (3, 7), (6, 7), 7, 7),
        ("one query, one key", (0, 1), (0, 1), 1, 1),
        ("three queries, one key", (0, 3), (0, 1), 3, 1),
        ("a tile far down a long text", (2_081, 2_085), (2_080, 2_083), 2_100, 2_100),
        ("the last two queries of a long text", (0, 2), (69_997, 70_000), 2, 70_000),
        ("many queries, few keys", (69_996, 70_000), (0, 3), 70_000, 3),
        ("the first keys of a long text", (0, 2), (0, 3), 2, 50_000),
        ("the first of many queries, which see nothing", (0, 2), (0, 3), 50_000, 3),
        *_every_tile(),
    ]
    zeros = np.zeros((2, 3), np.float32), slice(0, 2), slice(0, 3), 2, 3
    return [
        *(
            Case(name, (*drawn(at, (r[1] - r[0], c[1] - c[0])), slice(*r), slice(*c), Nq, Nk))
            for at, (name, r, c, Nq, Nk) in enumerate(cases)
        ),
        Case("scores of 0, which are scores like any other", zeros),
        Case("a tile in which a score is −∞ already", (np.float32([[1, -inf, 2], [-inf, 3, 4]]), *zeros[1:])),
    ]


def _every_tile():
    """All tiles of some lengths and tile sizes, none of them square."""
    for Nq, Nk, Br, Bc in ((5, 5, 2, 3), (4, 6, 2, 3), (6, 4, 3, 2), (7, 3, 2, 2), (1, 7, 1, 3), (3, 8, 4, 2)):
        for row in range(0, Nq, Br):
            for col in range(0, Nk, Bc):
                name = f"Nq = {Nq}, Nk = {Nk}: the tile at row {row} and column {col}"
                yield name, (row, min(row + Br, Nq)), (col, min(col + Bc, Nk)), Nq, Nk


mask = Exercise(
    reference=masked,
    cases=_masked_cases,
    laws=(no_nan_replaced,),
    level=2,
    minutes=8,
    hints=(
        "A tile does not know where it is: its first row is query rows.start, its first column key cols.start.",
        "Lower right: the last query, Nq - 1, sees the last key, Nk - 1. So query i sees the keys j <= i + Nk - Nq.",
        "i = np.arange(rows.start, rows.stop)[:, None]; j = np.arange(cols.start, cols.stop); "
        "then np.where(j <= i + Nk - Nq, S_ij, -np.inf).",
    ),
    mistakes=(
        Mistake("the mask is off by one: a query sees its own key too, so it is ≤ and not <.", "j <= i", "j < i"),
        Mistake("the mask is off by one: a query saw one key of the future.", "i + Nk - Nq", "i + Nk - Nq + 1"),
        Mistake(
            "aligned at the upper left: with Nq ≠ Nk the last query must see the last key, j ≤ i + Nk − Nq.",
            "i + Nk - Nq",
            "i",
        ),
        Mistake("the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.", "+ Nk - Nq", "- Nk + Nq"),
        Mistake(
            "places within the tile were compared: add rows.start and cols.start.",
            "np.where(j <= i + Nk - Nq",
            "np.where(j - cols.start <= i - rows.start + Nk - Nq",
        ),
        Mistake(
            "a large negative number is not −∞: a row that sees nothing would average its values.",
            "S_ij, -np.inf",
            "S_ij, -1e9",
        ),
        Mistake(
            "a large negative number is not −∞: a row that sees nothing would average its values.",
            "S_ij, -np.inf",
            "S_ij, np.nan_to_num(-np.inf)",
        ),
        Mistake("the wrong half is masked: keys at or before the query are the ones it sees.", "j <= i", "j > i"),
        Mistake("the wrong half is masked: keys at or before the query are the ones it sees.", "j <= i", "j >= i"),
        Mistake(
            "masked scores were set to 0: a score of 0 has the weight e⁰ = 1, only −∞ has none.",
            "S_ij, -np.inf",
            "S_ij, 0",
        ),
        Mistake(
            "0 · (−∞) is NaN: choose with np.where instead of multiplying.",
            "np.where(j <= i + Nk - Nq, S_ij, -np.inf)",
            "S_ij + (j > i + Nk - Nq) * -np.inf",
        ),
        Mistake(
            "with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
            "i + Nk - Nq",
            "i + max(Nk - Nq, 0)",
        ),
        Mistake(
            "with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
            "i + Nk - Nq",
            "i + abs(Nk - Nq)",
        ),
        Mistake(
            "a tile was masked as a whole or not at all: on the diagonal each score is decided by itself.",
            "np.where(j <= i + Nk - Nq, S_ij, -np.inf)",
            "np.where(cols.start <= rows.stop - 1 + Nk - Nq, S_ij, -np.inf)",
        ),
        Mistake(
            "a tile was masked as a whole or not at all: on the diagonal each score is decided by itself.",
            "np.where(j <= i + Nk - Nq, S_ij, -np.inf)",
            "np.where((j <= i + Nk - Nq).all(), S_ij, -np.inf)",
        ),
        Mistake(
            "a large negative number is not −∞: a row that sees nothing would average its values.",
            "S_ij, -np.inf",
            "S_ij, np.finfo(np.float32).min",
        ),
        Mistake(
            "a score of 0 was taken for a forbidden one: it is a score like any other.",
            "np.where(j <= i + Nk - Nq, S_ij, -np.inf)",
            "np.where((j <= i + Nk - Nq) & (S_ij != 0), S_ij, -np.inf)",
        ),
        Mistake(
            "the tile was left out because its first row sees none of it: the last row sees most.",
            "np.where(j <= i + Nk - Nq, S_ij, -np.inf)",
            "np.where((j <= i + Nk - Nq) & (cols.start <= rows.start + Nk - Nq), S_ij, -np.inf)",
        ),
    ),
)
