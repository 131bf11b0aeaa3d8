"""The growth of traffic with N, d and M, counted and fitted; and the growth of the memory that attention needs.

``M`` is the size of the fast memory in elements, as in the paper. Elements are counted, not bytes: all tensors are in
float32 here, and the counts are the same in any dtype.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flashlab.machine import costs
from flashlab.machine.arguments import check_arguments, check_fields, check_whole
from flashlab.machine.memory import Memory
from flashlab.reference import block_size, standard_attention, tiling


@check_arguments(N=0)
def standard(N: int, d: int) -> int:
    """Count the elements that standard attention moves forward, without mask and dropout: Theta(N d + N^2)."""
    memory = Memory()
    standard_attention.forward(*np.zeros((3, N, d), np.float32), memory=memory)
    return memory.moved // 4


@check_arguments(N=0)
def fused(N: int, d: int, M: int) -> int:
    """Count the elements that FlashAttention moves forward with the paper's tiles for M: Theta(N^2 d^2 / M).

    Source: FlashAttention, Algorithm 1 and theorem 2, which assumes d <= M <= N d.
    """
    Br, Bc = block_size.formula(M, d)
    memory = Memory()
    X = np.zeros((N, d), np.float32)
    tiling.fa1_forward(X, X, X, Br, Bc, memory=memory)
    return memory.moved // 4


def predicted(N: int, d: int, M: int) -> int:
    """Predict what ``fused`` counts for Q, K, V and O, without running it: N d (3 Tc + 1) elements.

    K and V are read once, Q is read and O written for each of the Tc tiles of keys, and O is read for all but the
    first. It leaves out lse, at most 1 / d of the result.
    """
    check_whole("N", N, 0)
    _, Bc = block_size.formula(M, d)
    Tc = -(-N // Bc)
    return N * d * (3 * Tc + 1)


class Fit(NamedTuple):
    """y ~ x^exponent, and the standard error of the exponent."""

    exponent: float
    error: float

    def __str__(self) -> str:
        return f"{self.exponent:.3f} ± {self.error:.3f}"


def fit(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Fit:
    """Return the slope of log y over log x by least squares. x, y: at least three positive numbers each."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.shape != y.shape or x.size < 3:
        raise ValueError(f"a slope and its error need at least three pairs, got {x.size} and {y.size} numbers")
    if not (x > 0).all() or not (y > 0).all() or (x == x[0]).all():
        found = f"{x.tolist()!s:.40} and {y.tolist()!s:.40}"
        raise ValueError(f"a slope needs positive numbers, and at least two different ones in x, got {found}")
    (slope, _), covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    return Fit(float(slope), float(covariance[0, 0] ** 0.5))


@check_arguments(N=2)
def crossover(N: int, M: int, step: int = 4) -> int:
    """Return the smallest head dimension, a multiple of ``step``, at which ``fused`` moves no less than ``standard``.

    The leading terms of the counts, 4 N^2 and 12 N^2 d^2 / M, are equal where d^2 = M / 3. Raises ValueError for one
    token: there ``fused`` moves less for every d, since S and P never move. For more tokens there is a crossover: from
    d = M / 4 on, a tile of keys has one key, and all of Q and O moves for each key.
    """
    low, high = 0, step
    while fused(N, high, M) < standard(N, high):
        low, high = high, 2 * high
    while high - low > step:
        middle = (low + high) // (2 * step) * step
        low, high = (middle, high) if fused(N, middle, M) < standard(N, middle) else (low, middle)
    return high


class Need(NamedTuple):
    """Bytes of slow memory that one layer's attention needs at the moment when it needs most."""

    thin: int  # tensors of N x d: Q, K, V, O; in training also their gradients
    rows: int  # one float32 number per row: lse; in training also delta
    square: int  # N x N: S, which P overwrites; in training P, and dP, which dS overwrites

    @property
    def total(self) -> int:
        """Return the sum of the three."""
        check_fields(self, thin=0, rows=0, square=0)
        return sum(self)


@check_arguments(N=0)
def need(N: int, d: int, *, heads: int, itemsize: int = 2, training: bool = False, fused: bool) -> Need:
    """Return what attention over N tokens holds, ``fused`` or as separate kernels, without mask and dropout.

    heads: of the whole batch; itemsize: bytes per number. It is the least possible: P overwrites S, and dS overwrites
    dP. A framework may hold more.
    """
    thin = (8 if training else 4) * heads * N * d * itemsize
    if fused:
        return Need(thin, (2 if training else 1) * heads * N * 4, 0)
    return Need(thin, 0, (2 if training else 1) * heads * N * N * itemsize)


@check_arguments(nbytes=0)
def longest(nbytes: float, d: int, **layer: Any) -> int:
    """Return the largest N whose ``need`` is at most ``nbytes``; 0 if there is none. ``layer``: as for ``need``."""
    return costs.longest(nbytes, lambda N: need(N, d, **layer).total)
