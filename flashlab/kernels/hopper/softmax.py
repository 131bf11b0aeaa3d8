"""The softmax of one block of scores, as the fast forward kernels compute it, and the end of a tile.

The six lines are those of ``rungs.one_consumer.update``, with three changes. The maximum is raised lazily, which is
one line more. The denominator stays in partial sums until a tile ends. The caller computes the last line,
O_i = alpha * O_i + P_ij V_j: it issues the product a step later and rescales in between (``products.rescale``).

Scores keep the units of ``Problem.natural``: S_ij * factor has those of m_i, and times ``unit`` those of log2.

At the end of a tile, lse is stored and the copy engine writes O.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from flashlab.kernels import log_sum_exp
from flashlab.kernels.hopper.products import along_rows
from flashlab.kernels.hopper.stages import matrix
from flashlab.kernels.problem import LOG2_E

LAZY = gl.constexpr(8.0)  # in units of log2: see ``new_maximum``


@gluon.jit
def update_weights(
    m_i, S_ij, factor, unit: gl.constexpr, offset: gl.constexpr = 0.0, lazy: gl.constexpr = LAZY
):  # fmt: skip
    """Return m_i after the block S_ij [Br, Bc], as ``new_maximum``, and its ``weights`` P_ij and alpha."""
    m_new = new_maximum(m_i, S_ij, factor, unit, offset, lazy)
    P_ij, alpha = weights(m_i, m_new, S_ij, factor, unit)
    return m_new, P_ij, alpha


@gluon.jit
def new_maximum(m_i, S_ij, factor, unit: gl.constexpr, offset: gl.constexpr = 0.0, lazy: gl.constexpr = LAZY):
    """Return m_i [Br] after the block S_ij [Br, Bc].

    The maximum is raised only where it would rise by more than ``lazy``, in units of log2. Until then weights may reach
    2^8, which float32 sums and 16-bit weights hold as precisely as 1, and alpha is exactly 1, so rescaling can be left
    out (``rescale``).
    Source: FlashAttention-4, section 3.1.4, whose kernel for Blackwell does so.

    In float8, factor has one number per row, [Br]. m_i is ``offset`` below the maximum, so that small weights do not
    become 0, and 2^(offset + lazy) must not be more than the largest code.
    """
    m_new = gl.maximum(m_i, gl.max(S_ij, 1) * factor - offset)  # [Br]
    return gl.where(m_new > m_i + lazy / unit, m_new, m_i)  # [Br]      the lazy maximum


@gluon.jit
def weights(m_i, m_new, S_ij, factor, unit: gl.constexpr):
    """Return the weights P_ij of the block S_ij [Br, Bc], and alpha, the factor for all sums before it."""
    factor = factor[:, None] if len(factor.shape) == 1 else factor
    m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2((m_i - m_safe) * unit)  # [Br]
    P_ij = gl.exp2((S_ij * factor - m_safe[:, None]) * unit)  # [Br, Bc]
    return P_ij, alpha


@gluon.jit
def update_sums(l_i, P_ij, alpha):
    """Return alpha * l_i + rowsum(P_ij), both as partial sums [Br, 4]."""
    sums = partial_sums(P_ij)  # [Br, 4]
    return along_rows(alpha, sums, free=False)[:, None] * l_i + sums


@gluon.jit
def first_weights(S_ij, factor, unit: gl.constexpr):
    """Return m_i, l_i and the weights after the first block of a tile."""
    m_i = gl.full([S_ij.shape[0]], -float("inf"), gl.float32, gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    m_i, P_ij, _ = update_weights(m_i, S_ij, factor, unit)
    return m_i, partial_sums(P_ij), P_ij


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


class Output(NamedTuple):
    """The destinations of the results."""

    O: tma.tensor_descriptor  # [B, H, Nq, dv]
    O_first: tma.tensor_descriptor  # the same, ending where the first tile of a head does
    lse: gl.tensor  # pointers to [B, H, Nq], as for ``log_sum_exp.store``
    rest: gl.tensor | None = None


@gluon.jit
def finish(m_i, l_i, out, tile, work, variant: gl.constexpr):
    """Store lse of a tile's rows, and return the factor that normalises O_i, both [Br]."""
    row = tile.start + gl.arange(0, m_i.shape[0], layout=m_i.type.layout)  # [Br]
    sink = None
    if work.request.sinks is not None:
        sink = gl.load(work.request.sinks + tile.h).to(gl.float32)
    lse_i, rest_i, inverse = log_sum_exp.finish(m_i * (variant.unit / LOG2_E), l_i, sink)  # [Br] each
    at = (tile.b * work.H + tile.h).to(gl.int64) * work.Nq + row  # [Br]
    log_sum_exp.store(out.lse, out.rest, at, lse_i, rest_i, (row >= 0) & (row < tile.end))
    return inverse


@gluon.jit
def store(shared, out, tile, O_i, inverse, w: gl.constexpr, variant: gl.constexpr):
    """Hand inverse[:, None] * O_i to the copy engine, piece by piece in warpgroup w's buffer, which must be free."""
    for p in gl.static_range(len(O_i)):
        O_p = O_i[p] * along_rows(inverse, O_i[p], free=False)[:, None]  # [Br, d]
        if p > 0:
            tma.store_wait(0)
        matrix(shared.O.index(w)).store(O_p.to(shared.O.dtype))
        hand_over(shared, out, tile, w, variant, p * shared.O.shape[4])


@gluon.jit
def hand_over(shared, out, tile, w: gl.constexpr, variant: gl.constexpr, column: gl.constexpr = 0):
    """Hand the buffer of warpgroup w to the copy engine: a tile of O, from a column on."""
    buffer = shared.O.index(w)
    fence_async_shared()
    if variant.mask.right is not None and tile.end <= shared.O.shape[0] * shared.O.shape[3]:
        tma.async_copy_shared_to_global(out.O_first, [tile.b, tile.h, tile.start, column], buffer)
    else:
        tma.async_copy_shared_to_global(out.O, [tile.b, tile.h, tile.start, column], buffer)
