"""Softmax, naive and safe, and what each reads and writes when a row does not fit into fast memory."""

from typing import Any, NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.machine.memory import Memory
from flashlab.reference.dtypes import one_dtype


def naive(x: np.ndarray) -> np.ndarray:
    """Compute exp(x) / sum(exp(x)) along the last axis as the formula is written: it overflows where ``safe`` does not.

    x: [..., N] of any floating dtype, which is also the dtype of the arithmetic and of the result [..., N].
    """
    e = np.exp(x)  # [..., N]
    return e / e.sum(-1, keepdims=True)


def safe(x: np.ndarray) -> np.ndarray:
    """Compute softmax along the last axis with the maximum subtracted: the same function, and no exponential above 1.

    x: [..., N] of any floating dtype, which is also the dtype of the result [..., N]. The sum is kept in float32 or
    better: in float16 the sum of a long row would overflow. A row that is all -inf (every key masked) gives zeros.
    """
    one_dtype(x=x)
    m = x.max(-1, keepdims=True, initial=-np.inf)  # [..., 1]
    e = np.exp(x - np.where(m == -np.inf, 0, m))  # [..., N]
    l = e.sum(-1, keepdims=True, dtype=np.result_type(x, np.float32))  # [..., 1]
    return (e / np.where(l == 0, 1, l)).astype(x.dtype)


def lse(x: np.ndarray) -> np.ndarray:
    """Compute log(sum(exp(x))) along the last axis, in natural logarithms, with the maximum subtracted and added back.

    x: [..., N] of any floating dtype; the result [...] has it too, and the sum is kept in float32 or better. A row that
    is all -inf gives -inf.
    """
    one_dtype(x=x)
    m = x.max(-1, initial=-np.inf)  # [...]
    m_safe = np.where(m == -np.inf, 0, m)  # [...]
    l = np.exp(x - m_safe[..., None]).sum(-1, dtype=np.result_type(x, np.float32))  # [...]
    return np.where(l == 0, -np.inf, m_safe + np.log(np.where(l == 0, 1, l))).astype(x.dtype)


def shifted(x: Any, c: Any) -> tuple[Any, Any, Any]:
    """Return exp(x - c), its sum, and their ratio, with each of the three rounded to the dtype of x.

    x: a torch tensor [..., N], so that bfloat16 is among its dtypes; c: a number, or one for each row [..., 1].
    Any c gives the same P in exact arithmetic; ``safe`` takes max(x).
    Returns e [..., N], l [..., 1] and P [..., N].
    """
    e = (x - c).exp()  # [..., N]
    l = e.sum(-1, keepdim=True)  # [..., 1]
    return e, l, e / l


class Window(NamedTuple):
    """The range of exp in a dtype: below ``zero`` it is 0, below ``normal`` subnormal, above ``inf`` inf."""

    zero: float
    normal: float
    inf: float


def window(info: Any) -> Window:
    """Return the ``Window`` of a dtype that rounds to nearest. info: its ``numpy.finfo`` or ``torch.finfo``."""
    normal = float(info.tiny)
    return Window(*(float(np.log(edge)) for edge in (normal * float(info.eps) / 2, normal, float(info.max))))


def naive_streamed(x: np.ndarray, block: int, memory: Memory) -> np.ndarray:
    """Compute ``naive`` for a row that passes through fast memory block by block: 2 loads and 1 store per element.

    x: one row [N]; block: elements per block; memory: a ``flashlab.machine.memory.Memory``, which counts accesses.
    Source: Milakov and Gimelshein 2018, algorithm 1.
    """
    blocks = place_row(x, block, memory)
    l = sum(np.exp(memory.load("x", b)).sum() for b in blocks)
    for b in blocks:
        memory.store("y", np.exp(memory.load("x", b)) / l, b)
    return memory.tensors["y"]


def safe_streamed(x: np.ndarray, block: int, memory: Memory) -> np.ndarray:
    """Compute ``safe`` for a row that passes through fast memory block by block: 3 loads and 1 store per element.

    Sums are kept in the dtype of x. A row that is all -inf gives NaN. Arguments as ``naive_streamed``.
    Source: Milakov and Gimelshein 2018, algorithm 2.
    """
    blocks = place_row(x, block, memory)
    m = max(memory.load("x", b).max() for b in blocks)
    l = sum(np.exp(memory.load("x", b) - m).sum() for b in blocks)
    for b in blocks:
        memory.store("y", np.exp(memory.load("x", b) - m) / l, b)
    return memory.tensors["y"]


def online_streamed(x: np.ndarray, block: int, memory: Memory) -> np.ndarray:
    """Compute ``safe`` for a row that passes through fast memory block by block: 2 loads and 1 store per element.

    One pass finds the maximum and the sum l, which is rescaled to each new maximum, as ``online_softmax.update`` does,
    here without V. Sums are kept in the dtype of x. Arguments as ``naive_streamed``.
    Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    blocks = place_row(x, block, memory)
    m, l = x.dtype.type(-np.inf), x.dtype.type(0)
    for b in blocks:
        x_j = memory.load("x", b)
        m_new = max(m, x_j.max())
        m_safe = 0 if m_new == -np.inf else m_new
        m, l = m_new, np.exp(m - m_safe) * l + np.exp(x_j - m_safe).sum()
    for b in blocks:
        memory.store("y", np.exp(memory.load("x", b) - m_safe) / (l or 1), b)
    return memory.tensors["y"]


@check_arguments()
def place_row(x: np.ndarray, block: int, memory: Memory) -> list[slice]:
    """Put a row x [N] into slow memory, with room for its softmax y, and return the slices of its blocks."""
    one_dtype(x=x)
    if x.ndim != 1:
        raise ValueError(f"expected one row [N], got {x.shape}")
    memory.place(x=x)
    memory.reserve("y", x.shape, x.dtype)
    return [slice(start, start + block) for start in range(0, len(x), block)]
