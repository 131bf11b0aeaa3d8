"""Tiles in pieces of their columns, for heads of more than 128 columns.

In Gluon the columns of a tile are a power of two, and 192 would be padded to 256: a quarter of all products would be
products of zeros. So a tile [rows, width] is a tuple of pieces [rows, columns]. Up to 128 columns, the tile itself is
the only piece; up to 192, pieces have 64 columns, and above that 128. S_ij is a sum over the pieces of Q_i and K_j;
each piece of O_i is a product of its own.

In a ring, the pieces of a stage are one after the other; ``full`` are its barriers, one per stage.
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait

from flashlab.kernels.hopper import products
from flashlab.kernels.hopper.products import rescale as rescale_piece
from flashlab.kernels.hopper.stages import matrix


@gluon.constexpr_function
def bytes_of(ring, full):
    """Return the bytes of a tile in this ring."""
    numbers = math.prod(ring.shape) // full.shape[0]
    return numbers * ring.dtype.primitive_bitwidth // 8


@gluon.jit
def piece(ring, full, g, p: gl.constexpr):
    """Return the buffer of piece p of step g."""
    pieces: gl.constexpr = ring.shape[0] // full.shape[0]
    return ring.index(g % full.shape[0] * pieces + p)


@gluon.jit
def ask_for(X, at, barrier, ring, full, g, pred=True):
    """Ask for the tile of step g, at batch, head and first row ``at`` of X; it arrives at ``barrier``."""
    for p in gl.static_range(ring.shape[0] // full.shape[0]):
        place = [at[0], at[1], at[2], p * ring.shape[4]]
        tma.async_copy_global_to_shared(X, place, barrier, piece(ring, full, g, p), pred)


@gluon.jit
def tile(ring, full, g):
    """Return the tile of step g in shared memory."""
    pieces: gl.constexpr = ring.shape[0] // full.shape[0]
    X = ()
    for p in gl.static_range(pieces):
        X = X + (matrix(piece(ring, full, g, p)),)
    return X


@gluon.jit
def product(A, B, columns: gl.constexpr = None):
    """Issue A B^T, of two tiles. columns: how many of a single piece are read, as for ``products.product``."""
    S = products.product(A[0], B[0], columns if len(A) == 1 else None)
    for p in gl.static_range(1, len(A)):
        S = warpgroup_mma(A[p], B[p].permute((1, 0)), S, is_async=True)
    return S


@gluon.jit
def add_product(P, V, O):
    """Issue O + P V, a product per piece."""
    sums = ()
    for p in gl.static_range(len(O)):
        sums = sums + (warpgroup_mma(P, V[p], O[p], is_async=True),)
    return sums


@gluon.jit
def finished(O, later: gl.constexpr = 0):
    """Wait for all products but the last ``later``, and return the sums O."""
    if len(O) == 1:
        return (warpgroup_mma_wait(later, deps=O),)
    else:
        return warpgroup_mma_wait(later, deps=O)


@gluon.jit
def zeros(rows: gl.constexpr, ring, full):
    """Return sums O that begin at 0, with the pieces of the tiles in a ring."""
    columns: gl.constexpr = ring.shape[4]
    O = ()
    for _ in gl.static_range(ring.shape[0] // full.shape[0]):
        O = O + (gl.zeros([rows, columns], gl.float32, products.accumulator(columns, rows)),)
    return O


@gluon.jit
def rescale(O, alpha):
    """Return alpha[:, None] * O."""
    return [rescale_piece(O_p, alpha) for O_p in O]
