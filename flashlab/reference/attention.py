"""Dense attention, straight from its definition: the oracle with which everything else is compared."""

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_flag, check_number
from flashlab.reference.dtypes import one_dtype
from flashlab.reference.mask_kinds import Mask
from flashlab.reference.masks import as_mask
from flashlab.reference.scores import Score, as_score


def attention(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    *,
    mask: Mask | np.ndarray | None = None,
    score: Score | tuple[Score, ...] | None = None,
    sink: float | None = None,
    scale: float | np.floating | None = None,
    return_lse: bool = False,
) -> Any:
    """Compute O = softmax(scale * Q K^T) V with every intermediate of size N x N stored.

    Args:
        Q: queries [..., Nq, d]; K: keys [..., Nk, d]; V: values [..., Nk, dv]. numpy arrays of one floating dtype;
            the whole computation runs in it. In float64 the result is the reference, in any other dtype that of "the
            plain computation".
        mask: from ``masks``, or a boolean array broadcastable to [..., Nq, Nk], True where a key is seen; full if None.
        score: what happens to a scaled score before the mask, from ``scores``; nothing if None.
        sink: score of one extra key whose value is 0; lse includes it. No sink if None.
        scale: factor on the scores, 1/sqrt(d) if None.
        return_lse: also return the log-sum-exp of each row of scores [..., Nq], in natural logarithms.

    Returns:
        O [..., Nq, dv], or (O, lse). A row that sees no key has O = 0 and lse = -inf.

    Raises:
        TypeError, ValueError: dtypes or shapes that do not match.

    Source: Vaswani et al. 2017, equation 1; FlashAttention, section 2.2.
    """
    check_flag("return_lse", return_lse)
    P, lse = weights(Q, K, mask=mask, score=score, sink=sink, scale=scale)  # [..., Nq, Nk], [..., Nq]
    one_dtype(Q=Q, V=V)
    if V.ndim < 2 or V.shape[-2] != K.shape[-2]:
        raise ValueError(f"V must have a row for each key: expected V [..., {K.shape[-2]}, dv], got {V.shape}")
    O = P @ V  # [..., Nq, dv]
    return (O, lse) if return_lse else O


def weights(
    Q: np.ndarray,
    K: np.ndarray,
    *,
    mask: Mask | np.ndarray | None = None,
    score: Score | tuple[Score, ...] | None = None,
    sink: float | None = None,
    scale: float | np.floating | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights P = softmax(scale * Q K^T) [..., Nq, Nk] and lse [..., Nq]. Arguments as ``attention``."""
    one_dtype(Q=Q, K=K)
    if min(Q.ndim, K.ndim) < 2:
        raise ValueError(f"expected Q [..., Nq, d] and K [..., Nk, d], got {Q.shape} and {K.shape}")
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q and K must have the same head dimension, got {Q.shape[-1]} and {K.shape[-1]}")
    Nq, Nk, d = Q.shape[-2], K.shape[-2], Q.shape[-1]
    S = Q @ K.swapaxes(-1, -2) * scale_of(scale, d, Q.dtype)  # [..., Nq, Nk]
    function = as_score(score)
    if function is not None:
        S = function.apply(S, slice(0, Nq), slice(0, Nk), (Nq, Nk))  # [..., Nq, Nk]
    if mask is not None:
        S = np.where(_seen(mask, S.shape), S, -np.inf)  # [..., Nq, Nk]
    sink = sink_of(sink, Q.dtype)
    m = S.max(-1, initial=sink)  # [..., Nq]
    m_safe = np.where(m == -np.inf, 0, m)  # [..., Nq]   a row that sees no key
    P = np.exp(S - m_safe[..., None])  # [..., Nq, Nk]
    l = P.sum(-1) + np.exp(sink - m_safe)  # [..., Nq]
    l_safe = np.where(l == 0, 1, l)  # [..., Nq]
    lse = np.where(l == 0, -np.inf, m_safe + np.log(l_safe))  # [..., Nq]
    return P / l_safe[..., None], lse.astype(Q.dtype)


def attention_backward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    dO: np.ndarray,
    *,
    mask: Mask | np.ndarray | None = None,
    score: Score | tuple[Score, ...] | None = None,
    sink: float | None = None,
    scale: float | np.floating | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the gradients of sum(dO * attention(Q, K, V)) with every N x N intermediate stored.

    Arguments as ``attention``, and dO [..., Nq, dv]. Returns (dQ, dK, dV), shaped like Q, K, V.

    Source: FlashAttention, appendix B.2, equations 3 to 6.
    """
    one_dtype(Q=Q, K=K, V=V, dO=dO)
    if not Q.shape[:-2] == K.shape[:-2] == V.shape[:-2] or dO.shape != (*Q.shape[:-1], V.shape[-1]):
        found = ", ".join(str(x.shape) for x in (Q, K, V, dO))
        raise ValueError(f"expected Q [..., Nq, d], K [..., Nk, d], V [..., Nk, dv], dO [..., Nq, dv], got {found}")
    scale = scale_of(scale, Q.shape[-1], Q.dtype)
    P, _ = weights(Q, K, mask=mask, score=score, sink=sink, scale=scale)  # [..., Nq, Nk]
    dV = P.swapaxes(-1, -2) @ dO  # [..., Nk, dv]
    dP = dO @ V.swapaxes(-1, -2)  # [..., Nq, Nk]
    dS = P * (dP - (P * dP).sum(-1, keepdims=True))  # [..., Nq, Nk]
    function = as_score(score)
    if function is not None:
        S, (Nq, Nk) = Q @ K.swapaxes(-1, -2) * scale, P.shape[-2:]  # [..., Nq, Nk]
        dS = dS * function.slope(S, slice(0, Nq), slice(0, Nk), (Nq, Nk))  # [..., Nq, Nk]
    dQ = scale * (dS @ K)  # [..., Nq, d]
    dK = scale * (dS.swapaxes(-1, -2) @ Q)  # [..., Nk, d]
    return dQ, dK, dV


def scale_of(scale: float | np.floating | None, d: int, dtype: DTypeLike) -> np.floating:
    """Return the factor on the scores as a number of ``dtype``: ``scale``, or 1/sqrt(d) if that is None.

    Raises: TypeError or ValueError for a scale that is no finite number of this dtype, or a head without dimensions.
    """
    if d == 0:
        raise ValueError("a head needs at least one dimension, got d = 0")
    number: Any = np.dtype(dtype).type
    if scale is None:
        return number(d**-0.5)
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(f"scale must be a number or None, got {scale!r:.40}")
    if not abs(scale) <= float(np.finfo(dtype).max):
        raise ValueError(f"scale must be a finite number that {dtype} can hold, got {scale}")
    return number(scale)


def sink_of(sink: float | None, dtype: DTypeLike) -> np.floating:
    """Return the score of the sink as a number of ``dtype``, -inf if there is none.

    Raises: TypeError or ValueError for a sink that is neither a finite number nor -inf.
    """
    number: Any = np.dtype(dtype).type
    if sink is None or (isinstance(sink, Real) and sink == -np.inf):
        return number(-np.inf)
    return number(check_number("sink", sink, -np.inf))


def _seen(mask: Any, shape: Any) -> np.ndarray:
    """Return a mask as a boolean array that broadcasts to [..., Nq, Nk]."""
    if not isinstance(mask, np.ndarray):
        return as_mask(mask).dense(shape[-2:])
    if mask.dtype != bool:
        raise TypeError(f"mask must be boolean, True where a key is seen, got {mask.dtype}")
    if any(a not in (1, b) for a, b in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(f"mask must be broadcastable to the scores {shape}, got {mask.shape}")
    return mask
