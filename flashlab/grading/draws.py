"""Random inputs from all that the text of an exercise allows: the same for all learners, small ones first.

An exercise has a function ``draw(rng, size)`` that returns inputs with lengths up to ``size``. This file builds
cases from it, and has draws that several exercises share.
"""

import zlib
from collections.abc import Iterator

import numpy as np

from flashlab.grading.exercise import Case, Exercise

PROPERTY = "inputs drawn at random"
LARGEST = 10  # size of the largest draws, apart from ``LONG``
LONG = 150  # size of the last draws, for functions in numpy: more than one block, even if an attempt has large blocks
LAST = 4  # how many draws have this size
SHARE = 16  # to find the smallest wrong case, draws / SHARE more are made of each smaller size

inf = np.inf


def cases(exercise: Exercise) -> Iterator[Case]:
    """Yield the drawn cases of an exercise, in order of size."""
    for n in range(exercise.draws if exercise.draw else 0):
        yield _case(exercise, _size(exercise, n), n)


def smaller(exercise: Exercise, n: int) -> tuple[Case, ...]:
    """Return more draws, smaller than draw ``n``, small ones first."""
    sizes, times = range(1, min(_size(exercise, n), LARGEST + 1)), max(1, exercise.draws // SHARE)
    return tuple(_case(exercise, size, exercise.draws + again) for size in sizes for again in range(times))


def _size(exercise, n):
    if exercise.launch is None and n >= exercise.draws - LAST:
        return LONG
    return 1 + n * LARGEST // exercise.draws


def _case(exercise, size, n):
    seed = zlib.crc32(exercise.reference.__name__.encode())
    return Case(PROPERTY, exercise.draw(np.random.default_rng([seed, size, n]), size))


# Draws that exercises share


def whole(rng: np.random.Generator, size: int, largest: int) -> int:
    """Draw a whole number of any order of magnitude, from 1 to below ``largest``; small draws have small ones."""
    return int(largest ** (rng.random() * min(size, LARGEST) / LARGEST))


def lengths(rng: np.random.Generator, size: int, n: int) -> list[int]:
    """Draw n lengths up to ``size``; those of size ``LONG`` are all long."""
    return rng.integers(max(1, size - LONG // 10), size + 1, n).tolist()


def scores(rng: np.random.Generator, rows: int, keys: int, largest: float = 3e38, masked: bool = True) -> np.ndarray:
    """Draw scores [rows, keys] in float32, near zero or far off: equal, rising, falling, alternating, or one far above.

    largest: the bound of their absolute values, at least 1,000. masked: some are -inf, as masks make them: single keys,
    the first or last ones, whole rows.
    """
    centres = [centre for centre in (8, 88, 1e4, 1e10, 1e38) if centre < largest / 2]
    centre = rng.choice([0, rng.choice(centres) * rng.choice([-1, 1])])
    reach = rng.choice([0, abs(centre) / 2] if abs(centre) >= 1e4 else [0, 0.01, 3, 30, 200])
    steps = np.linspace(-1, 1, keys)  # [keys]
    trend = rng.choice(["flat", "rises", "falls", "one above", "every other"])
    one = np.arange(keys) == rng.integers(max(1, keys))  # [keys]
    at = {"flat": 0 * steps, "rises": steps, "falls": -steps, "one above": one,
          "every other": np.arange(keys) % 2}[trend]  # [keys]  # fmt: skip
    S = centre + reach * at + rng.choice([0, 0.1, 1]) * rng.normal(size=(rows, keys))  # [rows, keys]
    S += rng.choice([0, 0, 100]) * (-1.0) ** np.arange(rows)[:, None]
    if masked and rng.random() < 0.5:
        S = np.where(hidden(rng, rows, keys), -inf, S)
    return S.astype(np.float32)


def hidden(rng: np.random.Generator, rows: int, keys: int) -> np.ndarray:
    """Draw which of [rows, keys] scores a mask hides: single, first or last ones, or all; in some rows or in all."""
    some = rng.random((rows, 1)) < rng.choice([0.3, 1])  # [rows, 1]
    column, edge = np.arange(keys), rng.integers(0, keys + 1, (rows, 1))  # [keys], [rows, 1]
    kind = rng.choice(["single", "first", "last", "all", "all"])
    hides = {
        "single": rng.random((rows, keys)) < 0.4,
        "first": column < edge,
        "last": column >= edge,
        "all": column >= 0,
    }
    return hides[kind] & some


def finished(rng: np.random.Generator, S: int, rows: int, dv: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw results of attention to S parts of the keys of each row: O_s [S, rows, dv], lse_s [S, rows] in float32.

    A part without a visible key has O = 0 and lse = -inf. Any part but the heaviest may have O = 0, too. Right answers
    may subtract outputs, or take e^(lse_s - lse) with the lse of the whole. So the numbers of O_s are of one magnitude,
    and where lse_s are far from 0, that of one part is far above all others.
    """
    # [S, rows]
    lse_s = rng.choice([0, 4]) * rng.uniform(-1, 1, rows) + rng.choice([0, 0.1, 1, 5]) * rng.normal(size=(S, rows))
    if rng.random() < 0.5:
        lse_s = np.where(hidden(rng, rows, S).T, -inf, lse_s)
    if rng.random() < 0.3:
        top, first = rng.choice([-1, 1]) * rng.choice([100, 1e4, 1e38]), rng.integers(S, size=rows)
        lse_s = np.where(np.arange(S)[:, None] == first, top, top - abs(top) + lse_s)
    signs = rng.choice([-1, 1], (S, rows, dv))
    O_s = 10.0 ** rng.choice([0, -18, 5]) * signs * rng.uniform(1, 2, (S, rows, dv))
    zero = (lse_s == -inf) | (lse_s < lse_s.max(0)) & (rng.random((S, rows)) < rng.choice([0, 0.3]))
    return np.where(zero[..., None], 0, O_s).astype(np.float32), lse_s.astype(np.float32)


def cut_lengths(rng: np.random.Generator, size: int) -> tuple[int, int, int, int]:
    """Draw Nq, Nk, Br, Bc: lengths, and sizes of tiles that cut each into three parts at most. Nk may be 0."""
    Br, Bc = (2 ** int(rng.integers(4, 7)) for _ in range(2))
    return max(1, _cut_length(rng, size, Br)), _cut_length(rng, size, Bc), Br, Bc


def _cut_length(rng, size, tile):
    near = int(rng.choice([-1, 0, 1, 1, rng.integers(-tile // 2, tile // 2)]))
    length = tile * int(rng.integers(0, 3 if size > 3 else 2)) + near
    return length if length > 0 else int(rng.integers(0, 3))


def queries_and_keys(
    rng: np.random.Generator, Nq: int, Nk: int, d: int, largest: float = 1e5
) -> tuple[np.ndarray, np.ndarray]:
    """Draw Q [Nq, d] and K [Nk, d], both within float16, with scores Q Kᵀ / √d as ``scores`` draws them, or their
    negatives in some rows."""
    Q, K = rng.normal(size=(Nq, d)), rng.choice([0, 0.1, 1]) * rng.normal(size=(Nk, d))
    row = scores(rng, 1, Nk, largest, masked=False)[0]  # [Nk]
    share = max(1, np.abs(row).max(initial=0) / 3e4)  # a factor in Q, so that K stays within float16
    Q[:, 0] = share * np.sqrt(d) * rng.choice([1, -1], Nq, p=rng.choice([[1, 0], [0.7, 0.3]]))
    K[:, 0] = row / share
    return Q, K
