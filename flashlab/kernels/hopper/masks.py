"""Answer the forward kernels: how many blocks of keys do some rows meet, and which scores of one are hidden?

``flashlab.kernels.masks`` decides which keys a row sees; the schedule on the host reads the same lines.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks


@gluon.jit
def blocks(variant: gl.constexpr, end, rows: gl.constexpr, Bc: gl.constexpr, Nq, Nk):
    """Return how many blocks of keys the rows up to ``end`` meet: at least 1, which may be hidden as a whole."""
    _, seen = masks.bounds(masks.Window(variant.mask.left, variant.mask.right), end - rows, rows, Nq, Nk)
    return gl.maximum(gl.cdiv(seen, Bc), 1)


@gluon.jit
def hide(S_ij, limit, causal: gl.constexpr):
    """Return S_ij [Br, Bc] with -inf for the keys past ``limit``, the last key that row 0 may see.

    Keys are counted from the block's first. causal: the limit grows by one per row.
    """
    keys = gl.arange(0, S_ij.shape[1], layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    return hide_keys(S_ij, keys, limit, causal)


@gluon.jit
def hide_keys(S_ij, keys, limit, causal: gl.constexpr):
    """Return the same where the columns belong to these keys [Bc]."""
    rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    limits = limit + rows if causal else limit + rows * 0  # [Br]
    return gl.where(keys[None, :] <= limits[:, None], S_ij, -float("inf"))
