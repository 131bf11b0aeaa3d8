"""Scores that a query must not see: ``mask``."""

import numpy as np

from flashlab.grading.draws import scores
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.laws import hidden_whatever_they_are, no_nan_replaced

inf = np.inf


def masked(S_ij, rows, cols, Nq, Nk):
    """Return S_ij [Br, Bc] with -inf where query i must not see key j. rows, cols: slices of the Nq x Nk scores."""
    i = np.arange(rows.start, rows.stop)[:, None]  # [Br, 1]
    j = np.arange(cols.start, cols.stop)  # [Bc]
    return np.where(j <= i + Nk - Nq, S_ij, -np.inf)


def _draw(rng, size):
    """Draw a tile of scores, some of which may be hidden already. The queries or the keys may be many."""
    lengths = rng.integers(1, size + 1, 2)
    lengths[rng.integers(2)] += rng.integers(40_000, 120_000) * (rng.random() < 0.4)  # 16 bits do not hold all of them
    Nq, Nk = lengths.tolist()
    rows, cols = _draw_part(rng, Nq, size), _draw_part(rng, Nk, size)
    return scores(rng, rows.stop - rows.start, cols.stop - cols.start), rows, cols, Nq, Nk


def _draw_part(rng, N, size):
    """Draw a part of 0 to N − 1, near its beginning or its end."""
    start = int(rng.choice([0, max(0, N - size)]) + rng.integers(min(N, size)))
    return slice(start, int(rng.integers(start, min(N, start + size))) + 1)


def _edge(property, S_ij, rows, cols, Nq, Nk):
    return Case(property, (np.float32(S_ij), slice(*rows), slice(*cols), Nq, Nk))


TWO_BY_TWO, TWO_BY_THREE = [[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]]

mask = Exercise(
    reference=masked,
    edges=(
        _edge("a tile on the diagonal", TWO_BY_TWO, (2, 4), (2, 4), 4, 4),
        _edge("a tile that every query sees", TWO_BY_TWO, (2, 4), (0, 2), 4, 4),
        _edge("more keys than queries: the last query sees the last key", TWO_BY_THREE, (0, 2), (1, 4), 2, 4),
        _edge("fewer keys than queries: the first queries see nothing", TWO_BY_TWO, (1, 3), (0, 2), 4, 2),
        _edge("scores of 0, which are scores like any other", np.zeros((2, 3)), (0, 2), (0, 3), 2, 3),
    ),
    draw=_draw,
    laws=(no_nan_replaced, hidden_whatever_they_are),
    mistakes=(
        Mistake("hid the query's own key.", "It is ≤, not <.", "j <= i", "j < i"),
        Mistake("aligned the mask at the upper left.", "The last query sees the last key: j ≤ i + Nk − Nq.",
                "i + Nk - Nq", "i"),
        Mistake("compared places within the tile.", "Add rows.start and cols.start.",
                "np.where(j <= i + Nk - Nq", "np.where(j - cols.start <= i - rows.start + Nk - Nq"),
        Mistake("hid scores with a large negative number: a row that sees nothing would average its values.", "Use −∞.",
                "S_ij, -np.inf", "S_ij, -1e9"),
        Mistake("set hidden scores to 0, whose weight is e⁰ = 1.", "Set them to −∞.", "S_ij, -np.inf", "S_ij, 0"),
        Mistake("multiplied 0 by −∞, which gives NaN.", "Choose with np.where instead of multiplying.",
                "np.where(j <= i + Nk - Nq, S_ij, -np.inf)", "S_ij + (j > i + Nk - Nq) * -np.inf"),
    ),
    level=2,
    minutes=8,
    hints=(
        "The first row of the tile is query rows.start, its first column key cols.start.",
        "Lower right: the last query, Nq - 1, sees the last key, Nk - 1. So query i sees the keys j <= i + Nk - Nq.",
        "i = np.arange(rows.start, rows.stop)[:, None]; j = np.arange(cols.start, cols.stop); "
        "then np.where(j <= i + Nk - Nq, S_ij, -np.inf).",
    ),
)  # fmt: skip
