"""The log-sum-exp of a row: its computation at the end of the row, and the weights that a backward pass rebuilds.

lse is kept as two float32 numbers, whose sum it is. One number has too few digits for a score of 1e9 plus the logarithm
of the number of keys, and for gradients in float32. The second number is computed only for a backward pass.
"""

import triton
import triton.language as tl


@triton.jit
def finish(m_i, l_i, sink):
    """Return the lse of some rows [Br], its rest beyond float32, and the factor that normalises O_i.

    m_i: the largest score; l_i: the sum of all weights e^(score - m_i), 0 where a row sees no key: there lse is the
    sink, or -inf without one.
    sink: the score of one more key, whose value is 0; None: there is none.
    """
    m = m_i if sink is None else tl.maximum(m_i, sink)  # [Br]
    m_safe = tl.where(m == -float("inf"), 0, m)  # [Br]
    alpha = 1.0
    if sink is not None:
        alpha = tl.exp(m_i - m_safe)  # [Br]
        l_i = alpha * l_i + tl.exp(sink - m_safe)  # [Br]
    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]
    log_l = tl.log(l_safe)  # [Br]
    total = m_safe + log_l  # [Br]
    share = total - m_safe  # [Br]      Knuth's sum of two numbers: total + rest_i is m_safe + log_l
    rest_i = (m_safe - (total - share)) + (log_l - share)  # [Br]
    return tl.where(l_i == 0, -float("inf"), total), rest_i, alpha / l_safe


@triton.jit
def weights(S_ij, lse_i, rest_i, factor, unit: tl.constexpr):
    """Return P_ij = e^(S_ij - lse) [Br, Bc], or all of it transposed.

    lse_i, rest_i: of ``rows.Constants`` [Br, 1]; rest_i may be None. An error in lse scales all weights of the
    row, so the rest is subtracted, too. factor, unit: as in ``Problem``.
    """
    power = (S_ij * factor - lse_i) * unit  # [Br, Bc]
    if rest_i is not None:
        power -= rest_i
    return tl.exp2(power)


@triton.jit
def store(lse, rest, at, lse_i, rest_i, inside):
    """Store lse_i [Br] at lse + at, and rest_i at rest + at if there is such a tensor. inside: the rows that exist."""
    tl.store(lse + at, lse_i, mask=inside)
    if rest is not None:
        tl.store(rest + at, rest_i, mask=inside)
