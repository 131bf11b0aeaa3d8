"""What a B200 changes beside an H100: products take half as long, exponentials and shared memory equally long.

The module counts the cycles of each part of an SM, computes exponentials without the exponential unit, raises the
maximum late, and adds to dQ in orders that never wait. The schedule that follows is ``flashlab.reference.roles``.
We had no B200: each number about it is computed, or has its source beside it.

Source: FlashAttention-4 (arXiv 2603.05451), sections 2.2, 3.1 and 3.2.
"""

import heapq
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from flashlab.machine import hardware
from flashlab.machine.arguments import check_arguments
from flashlab.reference.online_softmax import State

B200 = hardware.CARDS["B200"]
ROWS = 128  # rows of one product instruction on Blackwell, as many as tensor memory has
THRESHOLD = 8.0  # the rise of the maximum, in units of log2, up to which m stays
LOG2_E, LN_2 = np.log2(np.e), np.log(2)


# Cycles


class Cycles(NamedTuple):
    """The cycles of one SM, by the part that spends them. If all overlap perfectly, the largest remains."""

    products: float
    shared_memory: float
    exponentials: float


@check_arguments()
def forward_cycles(Br: int, Bc: int, d: int, card: hardware.Card = B200) -> Cycles:
    """Return the cycles of a block of Br queries by Bc keys, in a 16-bit dtype. ``ROWS`` divides Br.

    Shared memory is read by S = Q K^T, both of whose operands are there, and by P V, whose P is in tensor memory. K and
    V are read once for each 128 rows of queries. Source of the comparison: FlashAttention-4, table 1.
    """
    if Br % ROWS:
        raise ValueError(f"Br must be a multiple of {ROWS}, the rows of a product, got {Br}")
    read = Br * d + Br // ROWS * 2 * Bc * d  # elements: Q, and K and V for each 128 rows
    return Cycles(
        products=2 * 2 * Br * Bc * d / hardware.flops_per_clock(card),
        shared_memory=2 * read / card.per_sm.smem_bytes_per_clock,
        exponentials=Br * Bc / card.per_sm.exps,
    )


@check_arguments()
def backward_cycles(pair: bool = False, card: hardware.Card = B200) -> Cycles:
    """Return the cycles of the backward pass of a tile of 128 queries by 128 keys, d = 128, per SM.

    Of the five products' left operands three are in shared memory (the others in tensor memory), of the right ones all
    five. dS is written there in 16 bits; dQ is written in 32 bits, and read by the copy engine that adds it up. A
    ``pair`` of SMs works on 256 rows and each keeps half of a right operand. This count is ours; its sums are those of
    FlashAttention-4, table 3.
    """
    tile = 2 * ROWS * ROWS  # bytes in a 16-bit dtype
    tiles = 3 + 5 * (0.5 if pair else 1) + 1 + 2 * 2
    return Cycles(
        products=5 * 2 * ROWS**3 / hardware.flops_per_clock(card),
        shared_memory=tiles * tile / card.per_sm.smem_bytes_per_clock,
        exponentials=ROWS**2 / card.per_sm.exps,
    )


# The exponential, without its unit


@check_arguments(degree=(1, 12))
@cache
def minimax(degree: int) -> np.ndarray:
    """Return the coefficients, float32 [degree + 1], lowest first, of a polynomial p(x) near 2^x for x from 0 to 1.

    p(0) is exactly 1, and so is the weight of the maximum. The other coefficients make the largest relative error as
    small as possible. Each is rounded to float32 before the next ones are found, so that these correct the rounding.
    """
    c = np.ones(1, np.float32)
    while len(c) <= degree:
        c = np.append(c, _remez(c, degree)[:1].astype(np.float32))
    c.setflags(write=False)  # it is computed once
    return c


def _remez(fixed: np.ndarray, degree: int) -> np.ndarray:
    """Return the coefficients after the ``fixed`` ones, float64, by the algorithm of Remez.

    The error of the best polynomial has the same size and alternating signs at one place more than there are free
    coefficients (Chebyshev): solve for such an error, move the places to its extrema, repeat.
    """
    places, powers = degree - len(fixed) + 2, np.arange(len(fixed), degree + 1)
    grid = np.linspace(0, 1, 20_001)[1:]
    x = (1 - np.cos(np.pi * np.arange(1, places + 1) / places)) / 2  # [places]      a first guess
    for _ in range(8):
        A = np.column_stack([x[:, None] ** powers / 2 ** x[:, None], (-1.0) ** np.arange(places)])  # [places, places]
        c = np.linalg.solve(A, 1 - _value(x, fixed) / 2**x)[:-1]  # the last unknown is the size of the error
        error = (_value(grid, fixed) + grid[:, None] ** powers @ c) / 2**grid - 1
        runs = np.split(np.arange(len(grid)), np.flatnonzero(np.diff(np.sign(error))) + 1)  # of one sign each
        x = np.array([grid[run[np.abs(error[run]).argmax()]] for run in runs])[-places:]
    return c


def _value(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.polynomial.polynomial.polyval(x, c.astype(np.float64))


@check_arguments()
def exp2(x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return 2^x for float32 x up to 127 by additions, multiplications and bits, as the ordinary units can.

    Range reduction (Cody and Waite): x = n + f with a whole n and 0 <= f <= 1. A polynomial gives 2^f, from 1 to 2; n
    is added to the eight exponent bits of the result. Below -126, where float32 loses precision, the result is 0 or a
    number below 2^-126, as good as 0.
    """
    if coefficients.ndim != 1 or len(coefficients) == 0:
        raise ValueError(f"expected coefficients [degree + 1], got {coefficients.shape}")
    if (x >= 128).any():
        raise ValueError(f"expected x up to 127, got {x.max()}")
    x = np.maximum(x, np.float32(-127))  # the exponent's eight bits hold no smaller n
    n = np.floor(x)
    f = x - n
    p = np.full_like(f, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = multiply_add(p, f, c)
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        return (p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c of float32, rounded once, as a GPU's multiply-add does."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


@check_arguments()
def bfloat16(x: np.ndarray) -> np.ndarray:
    """Return float32 x rounded to bfloat16: its upper 16 bits, as integers. Neighbours differ by 1."""
    if x.dtype != np.float32:
        raise TypeError(f"x must be float32, got {x.dtype}")
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.int32)  # to nearest, ties to even


class Survey(NamedTuple):
    """The distance of ``exp2`` from 2^x over all fractions that range reduction can leave."""

    inputs: int
    largest: float  # relative error
    mean: float
    ulps: float  # largest error in units of the last place of float32
    same: float  # share of the inputs whose result equals the exact one after rounding both to bfloat16
    apart: int  # the largest difference between the two, in steps of bfloat16


@check_arguments()
def survey(coefficients: np.ndarray, every: int = 1) -> Survey:
    """Compare ``exp2`` with 2^x for every fraction that range reduction can leave, or each ``every``-th of them.

    The fraction f of a float32 from -126 to 0 is a multiple of 2^-24, so there are 2^24 of them below 1. The input is
    x = f - 1, so that the comparison includes range reduction. Other n give the same digits.
    """
    worst, total, ulps, same, apart, inputs = 0.0, 0.0, 0.0, 0, 0, 0
    for start in range(0, 2**24, 2**20):
        x = (np.arange(start, start + 2**20, every) * 2.0**-24 - 1).astype(np.float32)  # in chunks, for memory
        got, exact = exp2(x, coefficients), np.exp2(x.astype(np.float64))
        error, rounded = np.abs(got - exact), exact.astype(np.float32)
        relative, steps = error / exact, np.abs(bfloat16(got) - bfloat16(rounded))
        worst, total = max(worst, relative.max()), total + relative.sum()
        ulps, apart = max(ulps, (error / np.spacing(rounded)).max()), max(apart, steps.max())
        same, inputs = same + (steps == 0).sum(), inputs + len(x)
    return Survey(inputs, float(worst), float(total / inputs), float(ulps), float(same / inputs), int(apart))


class Rates(NamedTuple):
    """What one SM does per cycle, and what a score costs beside its exponential.

    The last two rates are Hopper's (NVIDIA, CUDA C++ Programming Guide; that of conversions is an assumption). We
    assume that Blackwell has the same.
    """

    flops: int = 8192  # of products
    exponentials: int = 16
    lanes: int = 128  # additions, multiplications and multiply-adds
    others: int = 64  # maxima and conversions, shifts, integers

    @check_arguments(scores=0, share=(0, 1))
    def lane_cycles(self, scores: float, share: float, degree: int = 3) -> float:
        """Return the cycles of the ordinary units for ``scores`` scores, a ``share`` of them by polynomial.

        A score takes a multiply-add (scale, subtract m), an addition (to l), half a maximum of three numbers and half a
        conversion of two. A polynomial takes a maximum, three additions, ``degree`` multiply-adds, and one instruction
        that shifts and adds. A test counts them in the machine code for Blackwell of ``kernels.blackwell.toy``.
        """
        plain = 2 / self.lanes + 1 / self.others
        polynomial = (3 + degree) / self.lanes + 2 / self.others
        return scores * (plain + share * polynomial)

    @check_arguments(scores=0, share=(0, 1))
    def exponential_cycles(self, scores: float, share: float) -> float:
        """Return the cycles of the exponential unit for ``scores`` scores without the ``share`` of the polynomial."""
        return scores * (1 - share) / self.exponentials

    @check_arguments()
    def balanced(self, degree: int = 3) -> float:
        """Return the share for which all units take equally long; 0 if the ordinary ones take longer at any share."""
        most, least = self.exponential_cycles(1, 0), self.lane_cycles(1, 0, degree)
        slope = self.lane_cycles(1, 1, degree) - least + most
        return max(0.0, (most - least) / slope)


# A maximum that is raised late


def lazy_update(state: State, S_ij: np.ndarray, V_j: np.ndarray, threshold: float = THRESHOLD) -> State:
    """Take in one block as ``online_softmax.update`` does, but raise m only where it would rise by more than threshold.

    The state is exact for any m, since l and O are relative to the same m. S_ij [Br, Bc] is in natural units, the
    threshold in those of log2, as in a kernel: a weight is 2^threshold at most.
    """
    m_i, l_i, O_i = state
    if S_ij.shape != (len(m_i), len(V_j)) or not threshold >= 0:
        expected = f"S_ij {(len(m_i), len(V_j))} and a threshold from 0 on"
        raise ValueError(f"expected {expected}, got {S_ij.shape} and {threshold}")
    m_new = np.maximum(m_i, S_ij.max(-1, initial=-np.inf))  # [Br]
    m_new = np.where(m_new > m_i + threshold * LN_2, m_new, m_i).astype(m_i.dtype)  # [Br]      the lazy maximum
    m_safe = np.where(m_new == -np.inf, 0, m_new)  # [Br]      rows that have seen no key yet
    alpha = np.exp(m_i - m_safe)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = alpha[:, None] * O_i + P_ij @ V_j  # [Br, dv]
    return State(m_new, l_i, O_i)


@check_arguments(threshold=0)
def raised(S: np.ndarray, Bc: int, threshold: float) -> float:
    """Return the share of (row, block) pairs after the first block in which a lazy maximum is raised. S: [N, N]."""
    if S.ndim != 2 or S.shape[1] <= Bc:
        raise ValueError(f"expected S [N, N] of more than one block of {Bc} keys, got {S.shape}")
    m, rises, blocks = np.full(len(S), -np.inf), 0, range(0, S.shape[1], Bc)
    for start in blocks:
        m_new = np.maximum(m, S[:, start : start + Bc].max(-1))  # [N]
        up = m_new > m + threshold * LN_2  # [N]
        rises, m = rises + (start > 0) * up.sum(), np.where(up, m_new, m)
    return float(rises / len(S) / (len(blocks) - 1))


# The order of additions


@check_arguments()
def visits(T: int, causal: bool = False, shifted: bool = True) -> list[list[int]]:
    """Return, for each of T programs with one tile of keys each, its tiles of queries in order.

    ``shifted``: program j begins at tile j and goes up; after the last tile comes the first. Otherwise it begins at the
    first tile that the mask lets it see.
    """
    if shifted:
        return [[(j + step) % T for step in range(T - j if causal else T)] for j in range(T)]
    return [list(range(j if causal else 0, T)) for j in range(T)]


@check_arguments()
def turns(T: int, causal: bool = False, shifted: bool = True) -> list[list[int]]:
    """Return for each tile of queries the programs in the order in which they add to its dQ."""
    if shifted:
        return [[j % T for j in range(i, -1 if causal else i - T, -1)] for i in range(T)]
    return [list(range(i + 1 if causal else T)) for i in range(T)]


class Finished(NamedTuple):
    """The time at which the last of T programs was done, and the time that all of them together waited for turns."""

    makespan: float
    waited: float


@check_arguments(compute=0, add=0)
def finished(T: int, causal: bool = False, shifted: bool = True, compute: int = 4, add: int = 1) -> Finished:
    """Let T programs compute, and add in the fixed order of ``turns``: a tile's dQ takes one addition at a time."""
    queues, order = visits(T, causal, shifted), turns(T, causal, shifted)
    done, free, waited = [0] * T, [0] * T, 0  # the time at which each program, and each dQ, is free again
    while any(queues):
        j = next((j for j in range(T) if queues[j] and order[queues[j][0]][0] == j), None)
        if j is None:
            raise ValueError("every program waits for another's turn")
        i = queues[j].pop(0)
        order[i].pop(0)
        ready = done[j] + compute
        start = max(ready, free[i])
        waited, done[j], free[i] = waited + start - ready, start + add, start + add
    return Finished(max(done), waited)


@check_arguments(order=0)
def dQ_sum(parts: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return the sum of parts [T, rows, d], added in this order."""
    if sorted(order) != list(range(len(parts))):
        raise ValueError(f"expected an order of the {len(parts)} parts, each once, got {list(order)!r:.40}")
    total = np.zeros_like(parts[0])
    for j in order:
        total = total + parts[j]
    return total


@check_arguments(T=0)
def pairs(T: int) -> list[tuple[int, int]]:
    """Return the tiles of queries 0 ... T - 1 in pairs with equal numbers of keys under a causal mask. T is even."""
    if T % 2:
        raise ValueError(f"expected an even number of tiles, got {T}")
    return [(i, T - 1 - i) for i in range(T // 2)]


@check_arguments(work=0)
def busiest(work: Sequence[int], programs: int) -> int:
    """Return the work of the busiest program, if each piece goes, in this order, to whichever is free first."""
    busy = [0] * programs  # a heap
    for piece in work:
        heapq.heapreplace(busy, busy[0] + int(piece))
    return max(busy)
