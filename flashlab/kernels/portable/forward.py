"""The forward pass as a Triton kernel: the tile loop with queries in the outer loop.

One program computes one tile of O. To ``reference.tiling.fa2_forward`` it adds loads, stores, masks, the options of
``flash_attention`` and the narrowing of P_ij. It computes 2^x instead of e^x, which the hardware does not have.

If no product can overflow, the scale turns scores into units of log2 at once. Otherwise they stay in natural units, and
the base changes after the maximum is subtracted, so that no finite score overflows (``Problem.natural``).

Source: FlashAttention-2, Algorithm 1.
"""

import triton
import triton.language as tl

from flashlab.kernels import dropout, log_sum_exp, scores, tiles
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.masks import questions
from flashlab.kernels.problem import LOG2_E


def run(o, lse, q, k, v, problem, c, rest=None, launched=None, kernel=None):
    """Fill o [B, H, Nq, dv] and lse [B, H, Nq] for a ``Problem``, with the tiles of the ``Configuration`` c.

    rest: like lse, for its part beyond float32, or None. launched: as for ``launch.repeat``. kernel: one with the
    arguments of ``attention_forward``, in its place.
    """
    launched = {} if launched is None else launched
    start(o, lse, q, k, v, problem, c, rest, launched, kernel)
    if problem.mask.keeps_apart:
        repair(o, lse, q, k, v, problem, c, rest, launched, kernel)


def repair(o, lse, q, k, v, problem, c, rest, launched, kernel=None):
    """Compute again those tiles of O and lse in which O has NaN or infinities, which may come from other texts."""
    start(o, lse, q, k, v, problem, c._replace(stages=1), rest, launched, kernel, repair=True)


def start(o, lse, q, k, v, problem, c, rest, launched, kernel, repair=False):
    """Launch the kernel; repair: as in ``Tile``."""

    def first():
        args, tile = problem.kernel_args(c)
        transposed = (2,) if tile.transposed else ()  # V
        tensors, strides = tiles.arguments((q, k, v, o), (c.Br, c.Bc, c.Bc, c.Br), transposed)
        return launch(
            kernel or attention_forward,
            (tiles.count(problem.Nq, c.Br), problem.H, problem.B),
            (*tensors, lse, rest),
            (strides, args, tile._replace(repair=repair)),
            warps=c.warps,
            stages=c.stages,
        )

    repeat(launched, ("repair" if repair else "forward"), (q, k, v, o, lse, rest), first)


@triton.jit
def attention_forward(
    Q, K, V, O,  # Q O [B, H, Nq, ...], K V [B, Hk, Nk, ...]: descriptors or pointers
    lse, rest,  # pointers to [B, H, Nq], as for ``log_sum_exp.store``
    strides,  # of the four
    problem,  # ``KernelArgs``: sizes, mask, score function, ...
    tile: tl.constexpr,  # ``Tile``: Br, Bc, ...
):  # fmt: skip
    """Compute rows i * Br .. (i + 1) * Br of O in head h of batch b: program (p, h, b), where i counts down with p."""
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    width: tl.constexpr = tile.width
    width_v: tl.constexpr = tile.width_v
    i = tl.num_programs(0) - 1 - tl.program_id(0)  # causal: the tiles that see most keys start first
    h, b, H, B = tl.program_id(1), tl.program_id(2), tl.num_programs(1), tl.num_programs(2)
    Hk, Nq, Nk = H // problem.group, problem.Nq, problem.Nk
    Q = tiles.view(Q, [B, H, Nq, problem.d], strides[0], Br, width)
    K = tiles.view(K, [B, Hk, Nk, problem.d], strides[1], Bc, width)
    V = tiles.view(V, [B, Hk, Nk, problem.dv], strides[2], Bc, width_v)
    O = tiles.view(O, [B, H, Nq, problem.dv], strides[3], Br, width_v)
    if tile.repair:
        if tiles.is_finite(tiles.load(O, b, h, i * Br, Br, width_v)):
            return

    rows = i * Br + tl.arange(0, Br)  # [Br]
    ends = questions.ranges(problem.mask, b, h, i * Br, Br, Bc, Nq, Nk, tile.ragged)
    Q_i = tiles.load(Q, b, h, i * Br, Br, width)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, width_v], tl.float32)  # [Br, dv]
    for part in tl.static_range(3):  # tiles that are cut by the mask, whole ones, cut ones
        for at in range(ends[part], ends[part + 1], questions.step(problem.mask, Bc)):
            start = questions.first_of(problem.mask, b, h, i, at, Bc)
            m_i, l_i, O_i = update(m_i, l_i, O_i, Q_i, K, V, b, h, rows, start, problem, tile, part != 1)

    sink = None if problem.sinks is None else tl.load(problem.sinks + h).to(tl.float32)
    lse_i, rest_i, inverse = log_sum_exp.finish(m_i * (tile.unit / LOG2_E), l_i, sink)  # [Br] each
    tiles.store(O, b, h, i * Br, O_i * inverse[:, None], Br, width_v)
    log_sum_exp.store(lse, rest, (b * H + h).to(tl.int64) * Nq + rows, lse_i, rest_i, rows < Nq)


@triton.jit
def update(m_i, l_i, O_i, Q_i, K, V, b, h, rows, start, problem, tile: tl.constexpr, masked: tl.constexpr):
    """Take in one tile of keys and values. S_ij * factor has the units of m_i, and times ``unit`` those of log2."""
    unit: tl.constexpr = tile.unit
    hk, factor = h // problem.group, problem.factor
    i, j = rows[:, None], (start + tl.arange(0, tile.Bc))[None, :]  # [Br, 1], [1, Bc]
    K_j = tiles.load(K, b, hk, start, tile.Bc, tile.width)  # [Bc, d]
    S_ij = tl.dot(Q_i, K_j.T, input_precision=tile.precision)  # [Br, Bc]  not yet scaled
    if problem.score is not None:  # which takes scaled scores
        S_ij = scores.apply(problem, S_ij * problem.scale, b, h, i, j)
    if masked:
        seen = questions.visible(problem.mask, b, h, i, j, problem.Nq, problem.Nk, tile.ragged)  # [Br, Bc]
        S_ij = tl.where(seen, S_ij, -float("inf"))
    # The factor is positive, so it may wait until after the maximum, and S * factor - m is one instruction.
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * factor)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = tl.exp2((m_i - m_safe) * unit)  # [Br]
    P_ij = tl.exp2((S_ij * factor - m_safe[:, None]) * unit)  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    if problem.dropout is not None:  # after the sum: l_i is that of all weights
        P_ij = dropout.drop(problem.dropout, P_ij, b, h, i, j)  # [Br, Bc]
    V_j = tiles.load(V, b, hk, start, tile.Bc, tile.width_v)  # [Bc, dv]
    if masked and tile.repair:
        O_i, V_j = questions.finite(O_i, V_j, seen)
    elif masked and tile.unseen:
        V_j = questions.forget(V_j, seen)
    P_ij = P_ij.to(V_j.dtype)  # the one narrowing
    O_i = tl.dot(P_ij, V_j, alpha[:, None] * O_i, input_precision=tile.precision)  # [Br, dv]
    return m_new, l_i, O_i
