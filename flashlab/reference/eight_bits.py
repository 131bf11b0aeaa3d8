"""Attention in 8 bits: the 256 numbers of e4m3, scales, rotations, and the precision of tensor-core sums.

A number of 8 bits has a code and shares a scale with others: X ≈ numbers * scale. Two formats are supported: ``e4m3``,
the float8 with 4 bits of exponent and 3 of mantissa, and ``int8``, the whole numbers from -127 to 127.

Sources: Micikevicius et al. 2022, arXiv 2209.05433, for e4m3; FlashAttention-3, arXiv 2407.08608, section 3.3;
SageAttention, arXiv 2410.02367, for int8 and keys without their mean; DeepSeek-V3, arXiv 2412.19437, section 3.3.2, and
SageAttention2, arXiv 2411.10958, for the bits that a Hopper tensor core keeps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments, check_fields, check_whole
from flashlab.machine.costs import error
from flashlab.reference import attention as dense
from flashlab.reference import masks
from flashlab.reference.attention import scale_of
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.online_softmax import State, finish, identity

LARGEST = {"e4m3": 448.0, "int8": 127.0}
WEIGHT_OF_THE_LARGEST = {"e4m3": 256.0, "int8": 127.0}  # the row's largest weight, before it is rounded
GRANULARITIES = ("tensor", "head", "block", "token")


# the numbers


def numbers_of_e4m3() -> np.ndarray:
    """Return the numbers [256] that the codes 0 to 255 of e4m3 stand for, in float64; codes 127 and 255 are NaN.

    A code is a sign, 4 bits of exponent E and 3 of mantissa M: 2^(E - 7) (1 + M / 8), or 2^-6 M / 8 where E is 0.
    """
    code = np.arange(128)
    E, M = code >> 3, code & 7  # [128], [128]
    number = np.where(E == 0, 2.0**-6 * M / 8, 2.0 ** (E - 7) * (1 + M / 8))  # [128]
    number[127] = np.nan
    return np.concatenate([number, -number])


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """Return the numbers of e4m3 nearest to x, ties to even, in the shape and dtype of x.

    Larger numbers become ±448, the largest number of the format. NaN stays NaN.
    """
    x = np.clip(x, -448, 448)
    _, exponent = np.frexp(x)  # |x| is in [2^(exponent - 1), 2^exponent)
    step = np.ldexp(x.dtype.type(1), np.maximum(exponent - 1, -6) - 3)  # between neighbours: 8 of them per power of two
    return np.rint(x / step) * step


@check_arguments()
def to_int8(x: np.ndarray) -> np.ndarray:
    """Return the whole numbers nearest to x, ties to even, at most 127 in size, in the shape and dtype of x."""
    return np.clip(np.rint(x), -127, 127)


ROUND = {"e4m3": to_e4m3, "int8": to_int8}


# scales


class Quantised(NamedTuple):
    """Rows in 8 bits: X ≈ numbers * scale."""

    numbers: np.ndarray  # [..., N, d]  each one of the kind's
    scale: np.ndarray  # [..., N, 1]  of each row: the same for all rows that share it
    kind: str = "e4m3"

    def widened(self) -> np.ndarray:
        """Return what the codes stand for [..., N, d]."""
        return self.numbers * self.scale


def quantise(X: np.ndarray, kind: str = "e4m3", per: str = "head", block: int = 128) -> Quantised:
    """Return X [..., N, d] in 8 bits, scaled such that the largest number in size becomes the kind's largest.

    Args:
        kind: "e4m3" or "int8".
        per: what shares a scale: the whole "tensor", a "head" (the last two axes), a "block" of ``block`` rows of a
            head, or a "token", one row. Of zeros the scale is 1.

    Returns:
        ``Quantised``, in the dtype of X.

    Raises:
        ValueError: an unknown kind or granularity, or a block without rows.
    """
    if kind not in LARGEST:
        raise ValueError(f"expected one of {', '.join(LARGEST)}, got {kind}")
    one_dtype(X=X)
    if X.ndim < 2:
        raise ValueError(f"expected X [..., N, d], got {X.shape}")
    check_whole("block", block)
    scale = _largest(X, per, block) / X.dtype.type(LARGEST[kind])  # [..., N, 1]
    scale = np.where(scale == 0, 1, scale).astype(X.dtype)  # [..., N, 1]   zeros: 0 / 0 would be NaN
    return Quantised(ROUND[kind](X / scale), scale, kind)


def _largest(X: np.ndarray, per: str, block: int) -> np.ndarray:
    """Return the largest size of a number among those that share a scale, for each row [..., N, 1]."""
    if per not in GRANULARITIES:
        raise ValueError(f"a scale is per {', '.join(GRANULARITIES[:-1])} or {GRANULARITIES[-1]}, got {per}")
    largest = np.abs(X).max(-1, keepdims=True, initial=0)  # [..., N, 1]
    if per == "tensor":
        return np.full_like(largest, largest.max(initial=0))
    N = X.shape[-2]
    rows = {"head": max(N, 1), "block": block, "token": 1}[per]
    tops = np.maximum.reduceat(largest, np.arange(0, N, rows), -2)  # [..., N / rows, 1]
    return np.repeat(tops, rows, -2)[..., :N, :]


# before the scale: spread outliers, and remove the mean


@check_arguments(seed=0)
def signs(d: int, seed: int = 0) -> np.ndarray:
    """Return d signs at random, 1.0 or -1.0: the diagonal of a rotation."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], d)


def hadamard(X: np.ndarray) -> np.ndarray:
    """Return X times the Hadamard matrix of entries ±1 / sqrt(d), along the last axis, in d log2(d) additions per row.

    X: [..., d]. Where d is no power of two, zeros fill the row up to the next one, and the result is that wide. The
    matrix is orthogonal and symmetric: it keeps the product of any two rows, and it is its own inverse.
    """
    one_dtype(X=X)
    if X.ndim < 1:
        raise ValueError(f"expected X [..., d], got {X.shape}")
    d = X.shape[-1]
    width = 1 << max(d - 1, 0).bit_length()
    Y = np.concatenate([X, np.zeros((*X.shape[:-1], width - d), X.dtype)], -1)  # [..., width]
    half = 1
    while half < width:  # sums and differences of neighbours, of neighbouring pairs, ...
        pairs = Y.reshape(*X.shape[:-1], -1, 2, half)  # [..., width / (2 half), 2, half]
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        Y = np.stack([a + b, a - b], -2).reshape(*X.shape[:-1], width)
        half *= 2
    return Y * X.dtype.type(width**-0.5)


def rotate(X: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return X [..., d] with the signs s [d] on its columns, then through ``hadamard``: incoherent processing.

    Rotating Q and K alike leaves the scores unchanged and spreads outliers over all columns.
    """
    one_dtype(X=X)
    one_dtype(s=s)
    if s.shape != X.shape[-1:]:
        raise ValueError(f"expected a sign s [d] for each column of X {X.shape}, got {s.shape}")
    if not (abs(s) == 1).all():
        raise ValueError(f"expected signs s of 1 or -1, got {s[abs(s) != 1][0]}")
    return hadamard(X * s.astype(X.dtype))


@check_arguments()
def without_mean(K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return K [..., N, d] less its mean over the tokens, and the mean [..., 1, d].

    Every score of query i falls by scale * Q_i @ mean, so the weights stay, and lse falls by as much.
    """
    one_dtype(K=K)
    if K.ndim < 2:
        raise ValueError(f"expected K [..., N, d], got {K.shape}")
    mean = K.mean(-2, keepdims=True)  # [..., 1, d]
    return K - mean, mean


# products


def exactly(C: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return C + A @ B as numpy adds it up."""
    return C + A @ B


class TensorCore(NamedTuple):
    """A model of how Hopper's tensor cores add up products of 8 bits.

    One instruction multiplies ``terms`` pairs and adds the products to the accumulator, exactly; what lies more than
    ``bits`` below the sum's leading bit is cut off. Every ``flush`` terms the accumulator goes to float32 registers,
    where it is added without that loss, and starts from zero: two-level accumulation. If None, it never goes there.

    NVIDIA documents none of this: the 13 bits come from measurements, and the order of truncation is a simplification.
    """

    bits: int = 13
    flush: int | None = None
    terms: int = 32

    def __call__(self, C: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return C [M, n] + A [M, k] @ B [k, n]."""
        check_fields(self, bits=0)
        if self.flush is not None and self.flush % self.terms:
            raise ValueError(f"flush must be a multiple of the {self.terms} terms of an instruction, got {self.flush}")
        total, sums = (C, np.zeros_like(C)) if self.flush else (np.zeros_like(C), C)
        for start in range(0, A.shape[-1], self.terms):
            part = slice(start, start + self.terms)
            sums = cut(sums + A[:, part] @ B[part], self.bits)  # [M, n]
            if self.flush and (start + self.terms) % self.flush == 0:
                total, sums = total + sums, np.zeros_like(C)
        return total + sums


@check_arguments(bits=0)
def cut(x: np.ndarray, bits: int) -> np.ndarray:
    """Return x without what lies more than ``bits`` below its leading bit: towards zero, in the dtype of x."""
    _, exponent = np.frexp(x)
    step = np.ldexp(x.dtype.type(1), exponent - 1 - bits)
    return np.trunc(x / step) * step


# attention


@check_arguments(scale=-np.inf)
def attention(
    Q: Quantised,
    K: Quantised,
    V: Quantised,
    *,
    mask: masks.Mask | None = None,
    scale: float | None = None,
    Bc: int = 128,
    largest: float | None = None,
    product: Callable = exactly,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute attention of one head in 8 bits, a tile of Bc keys at a time.

    Weights are rounded to the kind of V before the product with V. They are raised first, so that the largest weight of
    a row so far is ``largest`` instead of 1. O and l have the same factor, which cancels.

    Args:
        Q: [Nq, d]; K: [Nk, d]; V: [Nk, dv], as ``quantise`` returns them. All keys of a tile share one
            scale of V.
        mask: one of ``masks``; full if None. scale: factor on the scores, 1/sqrt(d) if None.
        largest: 256 for e4m3 and 127 for int8 if None.
        product: (C, A, B) -> C + A @ B: ``exactly``, or a ``TensorCore``.

    Returns:
        O [Nq, dv] and lse [Nq], in the dtype of the arithmetic, which is that of the numbers.

    Raises:
        ValueError: shapes that do not match, or a scale of V that changes within a tile.
    """
    (Nq, d), Nk = Q.numbers.shape, len(K.numbers)
    if K.numbers.shape != (Nk, d) or len(V.numbers) != Nk:
        found = ", ".join(str(x.numbers.shape) for x in (Q, K, V))
        raise ValueError(f"expected Q [Nq, d], K [Nk, d], V [Nk, dv], got {found}")
    scale, mask = scale_of(scale, d, Q.numbers.dtype), masks.as_mask(mask)
    raised = np.log(Q.numbers.dtype.type(WEIGHT_OF_THE_LARGEST[V.kind] if largest is None else largest))
    state = identity(Nq, V.numbers.shape[1], Q.numbers.dtype)
    for start in range(0, Nk, Bc):
        cols = slice(start, min(start + Bc, Nk))
        if np.ptp(V.scale[cols]) > 0:
            raise ValueError(f"V has more than one scale within a tile of {Bc} keys: quantise it per block of {Bc}")
        S_ij = product(np.zeros((Nq, cols.stop - start), scale.dtype), Q.numbers, K.numbers[cols].T)  # [Nq, Bc]
        S_ij = mask.apply(scale * Q.scale * K.scale[cols].T * S_ij, slice(0, Nq), cols, (Nq, Nk))  # [Nq, Bc]
        state = update(state, S_ij, V.numbers[cols], V.scale[start], raised, V.kind, product)
    return finish(state)


def update(
    state: State, S_ij: np.ndarray, V_j: np.ndarray, scale: float, raised: float, kind: str, product: Callable
) -> State:
    """Take in one tile of scores S_ij [Br, Bc] and its values, numbers V_j [Bc, dv] times a scale.

    Same lines as ``online_softmax.update``, with weights relative to (maximum - ``raised``).
    """
    m_i, l_i, O_i = state
    m_new = np.maximum(m_i, S_ij.max(-1) - raised)  # [Br]
    m_safe = np.where(m_new == -np.inf, 0, m_new)  # [Br]
    alpha = np.exp(m_i - m_safe)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = scale * product(alpha[:, None] * O_i / scale, ROUND[kind](P_ij), V_j)  # [Br, dv]
    return State(m_new, l_i, O_i)


def alone(Q: np.ndarray, K: np.ndarray, V: np.ndarray, kind: str = "e4m3", per: str = "head") -> dict[str, float]:
    """Return the error of O with one part in 8 bits and all others exact, by part: "Q and K", "V" and "weights".

    Arguments as ``quantise`` takes them, for Q [Nq, d], K [Nk, d] and V [Nk, dv]. The error is that of ``costs.error``.
    """
    exact = dense.attention(Q, K, V)  # [Nq, dv]
    as_they_are = [Quantised(X, np.ones((len(X), 1), X.dtype), kind) for X in (Q, K, V)]
    q, k, v = (quantise(X, kind, per).widened() for X in (Q, K, V))
    outputs = {
        "Q and K": dense.attention(q, k, V),
        "V": dense.attention(Q, K, v),
        "weights": attention(*as_they_are)[0],
    }
    return {part: error(O, exact) for part, O in outputs.items()}
