"""Cases that sweep the regimes in which attention goes wrong, generated from a signature.

    def build(draw, Br, Bc, dv):
        state = online_softmax.update(online_softmax.identity(Br, dv), draw.scores(Br, 3), draw.normal(3, dv))
        return state, draw.scores(Br, Bc), draw.normal(Bc, dv)

    cases=lambda: [*by_hand, *sweep(build)]

``sweep`` reads the sizes that ``build`` takes from its signature and calls it once for each regime of scores and for
each unusual combination of sizes. All draws are seeded: the same call builds the same cases.

``PRODUCTS`` are the regimes that products of float16 reach; ``FINITE`` those of them for Q and K, which hold no mask;
``GENTLE`` those of these for gradients, in which a product with K makes visible how scores far from zero are rounded.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flashlab.grading.exercise import Case

inf = np.inf

# How long the dimensions are that ``build`` may ask for. No two are equal, and no tile divides a length.
USUAL = {"B": 2, "H": 4, "Hk": 2, "N": 7, "Nq": 5, "Nk": 7, "Br": 2, "Bc": 3, "d": 4, "dv": 6}
SIZES = {
    "one row": {"Nq": 1, "Br": 1},
    "one key": {"Nk": 1, "Bc": 1, "N": 1},
    "lengths that the tiles divide, more keys than queries": {"N": 6, "Nq": 4, "Nk": 6},
    "more queries than keys": {"Nq": 7, "Nk": 3},
    "tiles taller than wide": {"Br": 4, "Bc": 2, "Nq": 6},
    "a width that is no power of two": {"d": 5, "dv": 3},
    "one head for all keys": {"Hk": 1},
    "as many rows as keys and columns": {"Br": 3, "Bc": 3, "dv": 3},
}
LARGER = SIZES | {
    "a wide head": {"d": 272, "dv": 260},
    "many keys": {"Nk": 131, "Bc": 130, "N": 1000},
    "many rows": {"Nq": 70, "Br": 150},
    "values of one column": {"dv": 1},
    "one row and one key": {"N": 1, "Nq": 1, "Nk": 1, "Br": 1, "Bc": 1},
}


class Regime(NamedTuple):
    """A distribution of the scores of a case."""

    property: str
    keys: Callable[[int], np.ndarray] = np.zeros  # what is added to the scores of each of n keys [n]
    noise: float = 1.0  # standard deviation around it
    hidden: Callable[[int, int], np.ndarray] | None = None  # which of rows x keys scores are -inf, for a mask
    rows: Callable[[int], np.ndarray] = np.zeros  # what is added to the scores of each of n rows [n], not through Q


def _at(place, height):
    def keys(n):
        added = np.zeros(n)
        if n:
            added[max(place, -n)] = height
        return added

    return keys


def _first_keys(rows, n):
    return np.broadcast_to(np.arange(n) < n // 2, (rows, n))


def _last_keys(rows, n):
    return np.broadcast_to(np.arange(n) >= n // 2, (rows, n))


def _outer_keys(rows, n):
    return np.broadcast_to(np.isin(np.arange(n), (0, n - 1)), (rows, n))


def _outer_rows(rows, n):
    return np.broadcast_to(np.isin(np.arange(rows), (0, rows - 1))[:, None], (rows, n))


def _late_row(rows, n):
    return _first_row(rows, n) & _first_keys(rows, n)


def _every_other_key(rows, n):
    return (np.arange(rows)[:, None] + np.arange(n)) % 2 == 0


def _before_a_window(rows, n):
    return np.arange(n) < np.minimum(n - 2 + np.arange(rows), n - 1)[:, None]


def _first_row(rows, n):
    return np.broadcast_to(np.arange(rows)[:, None] == 0, (rows, n))


EVERY_OTHER = Regime("rows that see every other key", hidden=_every_other_key)
REGIMES = (
    Regime("ordinary scores"),
    Regime("scores that are all negative", lambda n: np.full(n, -8.0)),
    Regime("scores that are all positive", lambda n: np.full(n, 8.0)),
    Regime("scores that are all equal", lambda n: np.full(n, 0.5), noise=0),
    Regime("scores whose exponentials fit, but not their sum", lambda n: np.full(n, 88.0), noise=0.2),
    Regime("scores whose exponentials lose digits", lambda n: np.full(n, -99.0), noise=0.5),
    Regime("scores far above zero", lambda n: np.full(n, 3e4)),
    Regime("scores far below zero", lambda n: np.full(n, -3e4)),
    Regime("a last key with a much larger score", _at(-1, 100.0)),
    Regime("a first key with a much larger score", _at(0, 100.0)),
    Regime("a maximum that rises with every key", lambda n: np.linspace(-3, 30, n), noise=0.1),
    Regime("scores that fall with every key", lambda n: np.linspace(0, -14, n), noise=0.1),
    Regime("scores below −10⁶ that are all equal", lambda n: np.full(n, -2e6), noise=0),
    Regime("scores below −10⁶ that fall with every key", lambda n: np.linspace(-3e6, -6e6, n)),
    Regime("scores below −10⁶ that rise with every key", lambda n: np.linspace(-6e6, -3e6, n)),
    Regime("scores below −10³⁸ that are all equal", lambda n: np.full(n, -3.3e38), noise=0),
    Regime("scores below −10³⁸ that fall with every key", lambda n: np.linspace(-1.1e38, -3.3e38, n)),
    Regime("scores below −10³⁸ that rise with every key", lambda n: np.linspace(-3.3e38, -1.1e38, n)),
    Regime("scores above 10⁶ that are all equal", lambda n: np.full(n, 2e6), noise=0),
    Regime("scores above 10⁶ that fall with every key", lambda n: np.linspace(6e6, 3e6, n)),
    Regime("scores above 10⁶ that rise with every key", lambda n: np.linspace(3e6, 6e6, n)),
    Regime("scores above 10³⁸ that are all equal", lambda n: np.full(n, 3.3e38), noise=0),
    Regime("scores above 10³⁸ that fall with every key", lambda n: np.linspace(3.3e38, 1.1e38, n)),
    Regime("scores above 10³⁸ that rise with every key", lambda n: np.linspace(1.1e38, 3.3e38, n)),
    Regime("first keys that are masked, before positive scores", lambda n: np.full(n, 5.0), hidden=_first_keys),
    Regime("first keys that are masked, before negative scores", lambda n: np.full(n, -5.0), hidden=_first_keys),
    Regime("last keys that are masked, after positive scores", lambda n: np.full(n, 5.0), hidden=_last_keys),
    Regime("last keys that are masked, after negative scores", lambda n: np.full(n, -5.0), hidden=_last_keys),
    Regime("a last key but one with a much larger score", _at(-2, 100.0)),
    Regime("first and last key masked, positive scores", lambda n: np.full(n, 5.0), hidden=_outer_keys),
    Regime("first and last key masked, negative scores", lambda n: np.full(n, -5.0), hidden=_outer_keys),
    Regime("rows that lie 200 apart", rows=lambda n: 100.0 * (-1) ** np.arange(n)),
    Regime("a row that sees no key", hidden=_first_row),
    Regime("rows that all see no key", hidden=lambda rows, n: np.ones((rows, n), bool)),
    Regime("a row that sees its first key when others have met theirs", hidden=_late_row),
    EVERY_OTHER,
    Regime("rows whose first keys, of one tile too, are masked", hidden=_before_a_window),
    Regime("keys that lie 200 below their neighbours", lambda n: np.where(np.arange(n) % 2, 0.0, -200.0)),
    Regime("keys that lie 200 above their neighbours", lambda n: np.where(np.arange(n) % 2, 0.0, 200.0)),
)
BETWEEN = Regime("rows that see keys between rows that see none", hidden=_outer_rows)
PRODUCTS = tuple(regime for regime in REGIMES if np.abs(regime.keys(2)).max() < 1e9)
FINITE = tuple(regime for regime in PRODUCTS if regime.hidden is None and regime.rows is np.zeros)
GENTLE = tuple(regime for regime in FINITE if np.abs(regime.keys(2)).max() < 1e6)


class Draw:
    """Seeded random inputs in one regime."""

    def __init__(self, regime: Regime, seed: int, dtype=np.float32):
        self.regime, self.dtype = regime, dtype
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        """Draw an array that the regime does not concern, such as V or dO."""
        return self.rng.normal(size=shape).astype(self.dtype)

    def scores(self, rows: int, keys: int) -> np.ndarray:
        """Draw scores [rows, keys] in the regime, -inf where it masks."""
        S = self.regime.noise * self.rng.normal(size=(rows, keys)) + self.regime.keys(keys)  # [rows, keys]
        S += self.regime.rows(rows)[:, None]
        if self.regime.hidden is not None:
            S = np.where(self.regime.hidden(rows, keys), -inf, S)
        return S.astype(self.dtype)

    def queries_and_keys(self, Nq: int, Nk: int, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw Q [Nq, d] and K [Nk, d] whose scores Q Kᵀ / √d are in the regime. Both fit into float16."""
        Q = self.rng.normal(size=(Nq, d))  # [Nq, d]
        K = self.regime.noise * self.rng.normal(size=(Nk, d))  # [Nk, d]
        height = self.regime.keys(Nk)  # [Nk]
        share = max(1, np.abs(height).max(initial=0) / 3e4)  # of it that Q takes on
        Q[:, 0] = share * np.sqrt(d)
        K[:, 0] = height / share
        return Q.astype(self.dtype), K.astype(self.dtype)


def sweep(
    build: Callable[..., tuple],
    *,
    regimes: Sequence[Regime] = REGIMES,
    sizes: dict[str, dict[str, int]] = SIZES,
    usual: dict[str, int] | None = None,
    dtype=np.float32,
) -> list[Case]:
    """Build cases with ``build(draw, **sizes)``: one for each regime, then one for each unusual combination of sizes.

    The parameters of ``build`` after ``draw`` are the sizes that it takes, by their names in ``USUAL``. ``usual``
    replaces some of those, ``regimes`` and ``sizes`` choose what is swept; cases of another dtype than float32 say so.
    Combinations that would change nothing for this signature are left out. Raises ValueError for a size that is not
    known.
    """
    known = USUAL | (usual or {})
    wanted = list(inspect.signature(build).parameters)[1:]
    if unknown := set(wanted) - known.keys():
        raise ValueError(f"expected sizes of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    plain = {name: known[name] for name in wanted}
    swept = [(regime.property, regime, plain) for regime in regimes]
    if "Br" in plain and any(regime.hidden for regime in regimes):
        swept.append((BETWEEN.property, BETWEEN, plain | {"Br": 4}))
        one = {name: 1 for name in ("N", "Nk", "Bc") if name in plain}
        swept.append(("one key, which every other row sees", EVERY_OTHER, plain | {"Br": 4} | one))
    for property, changes in sizes.items():
        shape = plain | {name: size for name, size in changes.items() if name in plain}
        if shape != plain:
            swept.append((property, REGIMES[0], shape))
    kind = "" if dtype == np.float32 else f", in {np.dtype(dtype)}"
    return [
        Case(property + kind, build(Draw(regime, seed, dtype), **shape))
        for seed, (property, regime, shape) in enumerate(swept)
    ]
