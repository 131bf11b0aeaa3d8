"""How the weights of a real row fall onto the numbers of e4m3, and how much error they and Q, K, V in 8 bits cause.

Kills four beliefs: that a scale makes float8 more exact (steps are relative, and a scale moves the window); that e4m3
is the better number for everything (int8 has a third of its error on Q and K, unless an outlier stretches a scale);
that a rotation always helps; and that tensor cores add up in float32.

One head of a trained model reads *Alice*. The outlier is a factor on one column of K. Each error but the last is that
of one part, rounded by ``reference.eight_bits``, with all others exact; the last is that of all parts together.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from figures import style
from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, Toggle
from flashlab.course import data
from flashlab.machine.costs import error
from flashlab.reference import eight_bits
from flashlab.reference.attention import attention, weights

ROW = 327  # "rabbit", whose weights are mostly far below the largest
EVERY = 4  # the output is computed for every fourth query
LENGTHS = tuple(2**n for n in range(10, 18))  # numbers in a sum
FLUSHES = (None, 2048, 512, 128)


@dataclass(frozen=True)
class State:
    """``step``: a row's weights are multiplied until the largest is 2^step. ``kind``: of Q and K, per head or token."""

    step: int = 0
    kind: str = "e4m3"
    outlier: int = 1
    per: str = "head"
    rotated: bool = False


@lru_cache(maxsize=4)
def _inputs(outlier: int) -> tuple[np.ndarray, ...]:
    Q, K, V = (X.astype(float) for X in data.captured("alice").head())  # [N, d] each
    largest = np.arange(K.shape[1]) == np.abs(K).max(0).argmax()  # [d]
    K = np.where(largest, outlier * K, K)  # [N, d]
    return Q[::EVERY], K, V, weights(Q[[ROW]], K)[0][0], attention(Q[::EVERY], K, V)


def _exactly(X: np.ndarray) -> eight_bits.Quantised:
    """Return X as ``Quantised``, with the scale 1 and nothing rounded."""
    return eight_bits.Quantised(X, np.ones((len(X), 1)))


@lru_cache(maxsize=64)
def _trace(kind: str, outlier: int, per: str, rotated: bool) -> dict[str, Any]:
    Q, K, V, row, exact = _inputs(outlier)
    s = eight_bits.signs(Q.shape[1])
    turned = [eight_bits.rotate(X, s) if rotated else X for X in (Q, K)]
    q, k = (eight_bits.quantise(X, kind, per) for X in turned)
    v = eight_bits.quantise(V)
    alone = {"Q, K": attention(q.widened(), k.widened(), V), "V": attention(Q, K, v.widened())}
    errors = {name: error(O, exact) for name, O in alone.items()}
    numbers = eight_bits.numbers_of_e4m3()[:127]
    return {
        "token": data.captured("alice").tokens[ROW],
        "N": len(row),
        "numbers": numbers.tolist(),
        "steps": [
            _fallen(row, V, 2.0**step, numbers)
            | {"errors": errors | _weights_and_all(step, (Q, K, V), (q, k, v), exact)}
            for step in range(9)
        ],
        "columns": np.abs(K).max(0).tolist(),  # [d]
        "outlier": outlier,
        "lengths": LENGTHS,
        "sums": [{"flush": flush, "lost": _lost(flush)} for flush in FLUSHES],
    }


def _fallen(row: np.ndarray, V: np.ndarray, largest: float, numbers: np.ndarray) -> dict[str, Any]:
    """Return how many weights of a row fall onto each number, how many become 0 and their sum, and the error of O."""
    fallen = eight_bits.to_e4m3(row / row.max() * largest)  # [N]
    codes, counts = np.unique(np.searchsorted(numbers, fallen[fallen > 0]), return_counts=True)
    return {
        "largest": largest,
        "counts": [[int(code), int(count)] for code, count in zip(codes, counts, strict=True)],
        "zeros": int((fallen == 0).sum()),
        "vanished": float(row[fallen == 0].sum()),
        "row": error(fallen @ V * row.max() / largest, row @ V),
    }


def _weights_and_all(step: int, inputs: tuple, quantised: tuple, exact: np.ndarray) -> dict[str, float]:
    """Return the errors of O from rounded weights alone, and from everything in 8 bits."""
    parts = {"weights": map(_exactly, inputs), "all": quantised}
    return {name: error(eight_bits.attention(*of, largest=2.0**step)[0], exact) for name, of in parts.items()}


@lru_cache
def _lost(flush: int | None) -> list[float]:
    """Return the share of a sum of positive numbers that a tensor core loses, for each of ``LENGTHS``."""
    A = np.random.default_rng(0).random((8, LENGTHS[-1]))  # [sums, keys]
    core = eight_bits.TensorCore()
    start, ones = 0, np.ones((LENGTHS[-1], 1))
    total, lost = np.zeros((len(A), 1)), []  # [sums, 1]
    for N in LENGTHS:
        if flush is None:
            total, start = core(total, A[:, start:N], ones[start:N]), N  # [sums, 1]
        else:  # each part starts from zeros, so all may be rows of one product
            parts = A[:, :N].reshape(-1, min(flush, N))  # [sums * parts, flush]
            sums = core(np.zeros((len(parts), 1)), parts, ones[: parts.shape[1]])  # [sums * parts, 1]
            total = sums.reshape(len(A), -1).sum(1, keepdims=True)  # [sums, 1]
        lost.append(float(1 - (total[:, 0] / A[:, :N].sum(1)).mean()))
    return lost


def trace(state: State) -> dict:
    """Return where the row's weights fall for each offset, the errors of O, and what long sums lose."""
    return _trace(state.kind, state.outlier, state.per, state.rotated)


def describe(state: State) -> str:
    """Say how many weights vanished, and what each part costs the output."""
    numbers = trace(state)
    now, N = numbers["steps"][state.step], numbers["N"]
    errors = now["errors"]
    parts = ", ".join(f"{name} {_percent(errors[name])}" for name in ("Q, K", "V", "weights"))
    return (
        f"Largest weight {now['largest']:.0f}: {now['zeros']} of {N} weights of “{numbers['token']}” become 0, "
        f"{_percent(now['vanished'])} of their sum; its output errs by {_percent(now['row'])}. "
        f"All rows, all in 8 bits: {_percent(errors['all'])}; each part alone: {parts}."
    )


def _percent(share: float) -> str:
    """Return a share in percent, with as many digits as the picture shows."""
    return f"{style.digits(100 * share, 3)}%"


CONTROLS = {
    "step": Scrub(lambda state: 8, "offset", tuple(f"offset × {2**step}" for step in range(9))),
    "kind": Choose(("e4m3", "int8"), "Q and K as"),
    "per": Choose(("head", "token"), "a scale per"),
    "outlier": Slide((1, 4, 16), "one column of K ×"),
    "rotated": Toggle("rotated"),
}
explore = explorer(__name__)
