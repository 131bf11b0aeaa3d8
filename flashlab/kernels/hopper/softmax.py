"""The softmax of one block of scores, as the fast forward kernels take it.

The six lines are those of ``ladder.update``, with three liberties. The maximum is raised lazily, which is one line
more. The denominator stays in partial sums until a tile ends. And the last line, O_i = alpha * O_i + P_ij V_j, is left
to the caller, who issues the product a step later and rescales in between (``rescale``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels.hopper.products import along_rows
from flashlab.kernels.problem import LOG2_E

LAZY = gl.constexpr(8.0)  # in units of log2: see ``new_maximum``


@gluon.jit
def update_weights(m_i, S_ij, scale_log2, offset: gl.constexpr = 0.0, lazy: gl.constexpr = LAZY):
    """Return m_i after the block S_ij [Br, Bc], as ``new_maximum``, and its ``weights`` P_ij and alpha."""
    m_new = new_maximum(m_i, S_ij, scale_log2, offset, lazy)
    P_ij, alpha = weights(m_i, m_new, S_ij, scale_log2)
    return m_new, P_ij, alpha


@gluon.jit
def new_maximum(m_i, S_ij, scale_log2, offset: gl.constexpr = 0.0, lazy: gl.constexpr = LAZY):
    """Return m_i [Br] after the block S_ij [Br, Bc], in units of log2.

    The maximum is raised only where it would rise by more than 8. Until then weights may reach 2^8, which float32 sums
    and 16-bit weights hold as precisely as 1, and alpha is exactly 1, so rescaling can be left out (``rescale``).
    Source: FlashAttention-4, section 3.1.4, whose kernel for Blackwell does so.

    In float8, scale_log2 is one per row, [Br]; m_i is ``offset`` below the maximum, so that small weights do not
    vanish, and 2^(offset + lazy) must not be more than the largest code.
    """
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * scale_log2 - offset)  # [Br]
    return gl.where(m_new > m_i + lazy, m_new, m_i)  # [Br]      the lazy maximum


@gluon.jit
def weights(m_i, m_new, S_ij, scale_log2):
    """Return the weights P_ij of the block S_ij [Br, Bc], and alpha, the factor for all sums before it."""
    scale_rows = scale_log2[:, None] if len(scale_log2.shape) == 1 else scale_log2
    m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2(m_i - m_safe)  # [Br]
    P_ij = gl.exp2(S_ij * scale_rows - m_safe[:, None])  # [Br, Bc]
    return P_ij, alpha


@gluon.jit
def update_sums(l_i, P_ij, alpha):
    """Return alpha * l_i + rowsum(P_ij), both as partial sums [Br, 4]."""
    sums = partial_sums(P_ij)  # [Br, 4]
    return along_rows(alpha, sums, free=False)[:, None] * l_i + sums


@gluon.jit
def first_weights(S_ij, scale_log2, sinks, h):
    """Return m_i, l_i and the weights after the first block of a tile, for head h.

    sinks: pointer to [H], or None. A sink is where the maximum begins; ``output.finish`` adds it to the denominator.
    """
    m_i = gl.full([S_ij.shape[0]], -float("inf"), gl.float32, gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    if sinks is not None:
        m_i = gl.maximum(m_i, sink_of(sinks, h))
    m_i, P_ij, _ = update_weights(m_i, S_ij, scale_log2)
    return m_i, partial_sums(P_ij), P_ij


@gluon.jit
def sink_of(sinks, h):
    """Return the sink of head h in units of log2."""
    return gl.load(sinks + h).to(gl.float32) * LOG2_E


@gluon.jit
def partial_sums(P_ij):
    """Return the row sums of P_ij [Br, Bc] as far as each thread can add alone, [Br, 4]: four threads share a row.

    The four are added once per tile of queries, not once per block of keys.
    """
    Br: gl.constexpr = P_ij.shape[0]
    Bc: gl.constexpr = P_ij.shape[1]
    return gl.sum(gl.sum(gl.reshape(P_ij, [Br, Bc // 8, 4, 2]), 3), 1)


@gluon.jit
def total(l_i, m_i):
    """Return the row sums [Br] of the partial sums l_i [Br, 4], in the layout of m_i."""
    return gl.convert_layout(gl.sum(l_i, 1), m_i.type.layout)
