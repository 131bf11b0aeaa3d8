"""Score functions: what a model does to a score between the product with the keys and the mask.

The order is always the same: scale, then score, then mask. A score function takes scores in natural units, as
``scale * Q_i @ K_j.T`` gives them. It answers two questions:

- ``apply``: what does the score of query i and key j become?
- ``slope``: what is the derivative of the result by the score? The backward pass multiplies dS_ij by it.

A tuple of score functions is applied in its order: ``(bias(b), softcap(30))`` caps the sum. Positions follow the masks:
query i is at the position i + Nk - Nq among the keys. ``rows`` and ``cols`` are slices; ``shape`` is (Nq, Nk).

A score function of your own is a subclass of ``Score``. Without ``slope`` it serves the forward pass only.
"""

from dataclasses import dataclass
from numbers import Real

import numpy as np

from flashlab.machine.arguments import check_arguments, check_fields, shown
from flashlab.machine.truth import NoTruth
from flashlab.reference.mask_kinds import Shape


def softcap(cap: float) -> "Score":
    """Return the score function cap * tanh(s / cap), which keeps scores within -cap and cap.

    Source: Gemma Team 2024, Gemma 2 (https://arxiv.org/abs/2408.00118), section 2.
    """
    return Softcap(cap)


def alibi(slope: float) -> "Score":
    """Return the score function s - slope * |distance|: one head of ALiBi. ``slopes`` gives those of all heads.

    Source: Press et al. 2021, "Train short, test long" (https://arxiv.org/abs/2108.12409).
    """
    return Alibi(slope)


@check_arguments()
def slopes(H: int) -> np.ndarray:
    """Return the slopes of ALiBi [H]: 2^(-8 h / H) for h = 1 .. H, where H is a power of two.

    For any other H: the slopes of the power of two below, then every other one of the power of two above.

    Source: the published implementation of ALiBi, ``get_slopes``.
    """
    below = 2 ** (H.bit_length() - 1)  # a power of two
    powers = [-8 * h / below for h in range(1, below + 1)]
    between = [-4 * h / below for h in range(1, 2 * below, 2)]
    return 2.0 ** np.array((powers + between)[:H])


def bias(b: np.ndarray) -> "Score":
    """Return the score function s + b, for a matrix b [Nq, Nk] or what broadcasts to it.

    Its bytes must be read, like those of any tensor, but the tile loops of the reference do not book them.
    """
    return Bias(b)


def as_score(score: "Score | tuple[Score, ...] | None") -> "Score | None":
    """Return a tuple of score functions as one, and None or a score function as it is; TypeError for anything else."""
    functions = score if isinstance(score, tuple) else (score,)
    if score is None or isinstance(score, Score):
        return score
    if not all(isinstance(function, Score) for function in functions):
        source = "made by flashlab.reference.scores, such as softcap(30)"
        raise TypeError(f"score must be None or {source}, or a tuple of these, got {score!r:.40}")
    return Chain(functions)


class Score(NoTruth):
    """A score function: its subclasses answer the two questions."""

    combine = "combine score functions in a tuple"

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        """Return the new scores [Br, Bc] for S_ij [Br, Bc]."""
        raise NotImplementedError

    def slope(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        """Return the derivative of ``apply`` at S_ij: [Br, Bc], or what broadcasts to it."""
        raise NotImplementedError(f"{type(self).__name__} has no slope: the backward pass needs it")


@dataclass(frozen=True)
class Softcap(Score):
    """cap * tanh(s / cap)."""

    cap: float

    def __post_init__(self) -> None:
        check_fields(self)

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        return self.cap * np.tanh(S_ij / self.cap)

    def slope(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        return 1 - np.tanh(S_ij / self.cap) ** 2


@dataclass(frozen=True)
class Alibi(Score):
    """s - slope * |i + Nk - Nq - j|."""

    factor: float

    def __post_init__(self) -> None:
        if isinstance(self.factor, bool) or not (isinstance(self.factor, Real) and np.isfinite(self.factor)):
            raise ValueError(f"ALiBi's slope is a finite number, one per head, got {self.factor!r:.40}")

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        i, j = np.ogrid[rows, cols]  # [Br, 1], [1, Bc]
        Nq, Nk = shape
        return S_ij - S_ij.dtype.type(self.factor) * np.abs(i + Nk - Nq - j).astype(S_ij.dtype)

    def slope(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        return 1


@dataclass(frozen=True, eq=False)
class Bias(Score):
    """s + b[i, j]."""

    b: np.ndarray

    def __post_init__(self) -> None:
        if not isinstance(self.b, np.ndarray) or not np.issubdtype(self.b.dtype, np.floating):
            raise TypeError(f"b must be an array of floating-point numbers, got {shown(self.b)}")
        if not (self.b < np.inf).all():
            raise ValueError(f"b must hold finite numbers, or -inf, got {self.b[~(self.b < np.inf)][0]}")

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        try:
            b = np.broadcast_to(self.b, shape)  # [Nq, Nk]
        except ValueError:
            raise ValueError(f"expected a bias that broadcasts to [Nq, Nk] = {shape}, got {self.b.shape}") from None
        return S_ij + b[rows, cols].astype(S_ij.dtype)

    def slope(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        return 1


@dataclass(frozen=True)
class Chain(Score):
    """Several score functions, one after the other; an empty chain changes no score."""

    functions: tuple

    def apply(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        for function in self.functions:
            S_ij = function.apply(S_ij, rows, cols, shape)
        return S_ij

    def slope(self, S_ij: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        slope = 1
        for function in self.functions:
            slope = slope * function.slope(S_ij, rows, cols, shape)
            S_ij = function.apply(S_ij, rows, cols, shape)
        return slope
