"""The end of a tile in the forward kernels: lse is stored, and the copy engine writes O."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from flashlab.kernels.hopper.products import along_rows
from flashlab.kernels.hopper.softmax import sink_of
from flashlab.kernels.hopper.stages import matrix


class Output(NamedTuple):
    """The destinations of the results."""

    O: tma.tensor_descriptor  # [B, H, Nq, dv]
    O_first: tma.tensor_descriptor  # the same, ending where the first tile of a head does
    lse: gl.tensor  # pointer to [B, H, Nq]


@gluon.jit
def finish(m_i, l_i, out, tile, work):
    """Store lse of a tile's rows, and return 1 / l_i, both [Br]."""
    LN2: gl.constexpr = 0.6931471805599453
    if work.request.sinks is not None:
        l_i += gl.exp2(sink_of(work.request.sinks, tile.h) - gl.where(m_i == -float("inf"), 0.0, m_i))
    row = tile.start + gl.arange(0, m_i.shape[0], layout=m_i.type.layout)  # [Br]
    l_safe = gl.where(l_i == 0, 1.0, l_i)  # [Br]      a row that sees no key: O = 0, lse = -inf
    lse_i = gl.where(l_i == 0, -float("inf"), (m_i + gl.log2(l_safe)) * LN2)  # [Br]
    lse = out.lse + (tile.b * work.H + tile.h).to(gl.int64) * work.Nq
    gl.store(lse + row, lse_i, mask=(row >= 0) & (row < tile.end))
    return 1.0 / l_safe


@gluon.jit
def store(shared, out, tile, O_i, inverse, w: gl.constexpr, variant: gl.constexpr):
    """Hand inverse[:, None] * O_i to the copy engine, once the buffer of warpgroup w is free."""
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
