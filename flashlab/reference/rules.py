"""``Rules``: which attention is computed. The forward pass and its backward pass take the same rules.

Q K^T is scaled, changed by the score function, then masked; the sink joins the denominator, and dropout acts on the
weights that multiply V. ``PLAIN`` has none of these but the usual scale, 1/sqrt(d).
"""

from dataclasses import dataclass

import numpy as np

from flashlab.reference.attention import scale_of, sink_of
from flashlab.reference.dropout import Dropout
from flashlab.reference.mask_kinds import Mask, Shape
from flashlab.reference.masks import as_mask, full
from flashlab.reference.online_softmax import State, identity
from flashlab.reference.scores import Score, as_score


@dataclass(frozen=True)
class Rules:
    """The options of an attention.

    mask: which keys each query sees, from ``masks``; all if None. Tiles that no query sees are skipped.
    score: a function applied to each scaled score before masking, from ``scores``, or a tuple of these.
    sink: the score of one extra key whose value is 0; lse includes it. No sink if None.
    dropout: a ``Dropout``, or None. The denominator sums all weights; only the kept ones contribute to the output.
    scale: the factor on the scores; 1/sqrt(d) if None.
    """

    mask: Mask = full()
    score: Score | None = None
    sink: float | None = None
    dropout: Dropout | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", as_mask(self.mask))
        object.__setattr__(self, "score", as_score(self.score))
        sink_of(self.sink, float)
        scale_of(self.scale, 1, float)
        if not (self.dropout is None or hasattr(self.dropout, "tile")):
            raise TypeError(f"dropout must be None or a Dropout, such as Dropout(p, seed), got {self.dropout!r:.40}")

    @staticmethod
    def check(rules: "Rules") -> None:
        """Raise TypeError if these are no ``Rules``."""
        if not isinstance(rules, Rules):
            raise TypeError(f"rules must be Rules, such as Rules(mask=causal()), got {type(rules).__name__}")

    def scale_for(self, Q_i: np.ndarray) -> np.floating:
        """Return the factor on the scores of queries Q_i [Br, d], in their dtype."""
        return scale_of(self.scale, Q_i.shape[1], Q_i.dtype)

    def start(self, Br: int, dv: int, dtype: np.dtype) -> State:
        """Return the initial state of Br rows: the identity, or the state of the sink, a key whose value is 0."""
        if self.sink is None:
            return identity(Br, dv, dtype)
        return State(np.full(Br, self.sink, dtype), np.ones(Br, dtype), np.zeros((Br, dv), dtype))

    def scores(self, Q_i: np.ndarray, K_j: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray:
        """Return one tile of scores S_ij [Br, Bc]: scaled, passed through the score function, then masked.

        rows, cols: the slices of Q_i [Br, d] in Q and of K_j [Bc, d] in K; shape: (Nq, Nk).
        """
        S_ij = self.scale_for(Q_i) * (Q_i @ K_j.T)  # [Br, Bc]
        if self.score is not None:
            S_ij = self.score.apply(S_ij, rows, cols, shape)  # [Br, Bc]
        return self.mask.apply(S_ij, rows, cols, shape)

    def slope(self, Q_i: np.ndarray, K_j: np.ndarray, rows: slice, cols: slice, shape: Shape) -> np.ndarray | int:
        """Return the derivative of the score function at one tile: [Br, Bc], or 1. Arguments as ``scores``."""
        if self.score is None:
            return 1
        return self.score.slope(self.scale_for(Q_i) * (Q_i @ K_j.T), rows, cols, shape)


PLAIN = Rules()
