"""Mistakes in the lines from S_ij to dS_ij of one tile, which the kernels of both gradients have in common."""

from flashlab.grading.exercise import Mistake

MISTAKES = (
    Mistake("left delta out.", "Raising one weight of a row lowers the others: subtract delta from dP.",
            "(dP_ij - delta_i[:, None])", "dP_ij"),
    Mistake("took the row sum over this tile only.", "delta belongs to the whole row: take delta_i.",
            "delta_i[:, None]", "tl.sum(P_ij * dP_ij, 1)[:, None]"),
    Mistake("did not mask P.", "A key that a query did not see has no weight: P_ij is 0 there.",
            "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "tl.exp(S_ij - lse_i[:, None])"),
    Mistake("masked P by a product, or masked the scores.",
            "Where lse is −∞, or the exponential overflows, ∞ · 0 and ∞ − ∞ are NaN: mask last, with tl.where.",
            "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "seen * tl.exp(S_ij - lse_i[:, None])"),
)  # fmt: skip
