"""Tiles of the backward pass, in pieces of their columns.

In Triton the columns of a tile are a power of two, and 192 would be padded to 256: a quarter of all products would be
products of zeros. So a tile [rows, width] is a tuple of pieces [rows, columns]: three of 64 for 129 to 192 columns,
otherwise one. A score is a sum over the pieces of two tiles; each piece of a gradient is a product of its own.
"""

import triton
import triton.language as tl

from flashlab.kernels import tiles
from flashlab.kernels.masks import questions


@triton.jit
def view(X, shape, strides, rows: tl.constexpr, width: tl.constexpr):
    """Return ``tiles.view`` for the pieces of tiles rows x width."""
    return tiles.view(X, shape, strides, rows, tiles.columns_of(width))


@triton.jit
def load(X, b, h, start, rows: tl.constexpr, width: tl.constexpr):
    """Return rows start .. start + rows of head h of batch b, as a tile."""
    columns: tl.constexpr = tiles.columns_of(width)
    X_i = ()
    for first in tl.static_range(0, width, columns):
        X_i = X_i + (tl.reshape(X.load([b, h, start, first]), [rows, columns]),)
    return X_i


@triton.jit
def is_finite(X_i):
    """Return whether a tile has neither NaN nor infinities."""
    finite = tiles.is_finite(X_i[0])
    for p in tl.static_range(1, len(X_i)):
        finite = finite & tiles.is_finite(X_i[p])
    return finite


@triton.jit
def store(X, b, h, start, X_i, factor, rows: tl.constexpr, width: tl.constexpr):
    """Write factor * X_i, narrowed to the dtype of X."""
    columns: tl.constexpr = tiles.columns_of(width)
    for p in tl.static_range(len(X_i)):
        piece = (X_i[p] * factor).to(X.dtype)  # [rows, columns]
        X.store([b, h, start, p * columns], tl.reshape(piece, [1, 1, rows, columns]))


@triton.jit
def zeros(rows: tl.constexpr, width: tl.constexpr):
    """Return a tile of zeros in float32."""
    columns: tl.constexpr = tiles.columns_of(width)
    X_i = ()
    for _ in tl.static_range(width // columns):
        X_i = X_i + (tl.zeros([rows, columns], tl.float32),)
    return X_i


@triton.jit
def product(A, B, tile: tl.constexpr):
    """Return A B^T, of two tiles, [rows of A, rows of B]."""
    S = tl.dot(A[0], B[0].T, input_precision=tile.precision)
    for p in tl.static_range(1, len(A)):
        S = tl.dot(A[p], B[p].T, S, input_precision=tile.precision)
    return S


@triton.jit
def add_product(sums, P, B, tile: tl.constexpr):
    """Return the tile sums + P B. P [rows, rows of B] is narrowed to the dtype of B."""
    X_i = ()
    for p in tl.static_range(len(B)):
        X_i = X_i + (tl.dot(P.to(B[p].dtype), B[p], sums[p], input_precision=tile.precision),)
    return X_i


@triton.jit
def forget(X_j, seen):
    """Return a tile as ``questions.forget`` does."""
    return [questions.forget(piece, seen) for piece in X_j]


@triton.jit
def finite(sums, X_j, seen):
    """Return sums and a tile as ``questions.finite`` does."""
    sums_new, X_new = (), ()
    for p in tl.static_range(len(X_j)):
        sums_p, X_p = questions.finite(sums[p], X_j[p], seen)
        sums_new, X_new = sums_new + (sums_p,), X_new + (X_p,)
    return sums_new, X_new
