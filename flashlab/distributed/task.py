"""The task that the ranks of a group compute together: checked, and the same on all ranks."""

import hashlib
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashlab.distributed.compute import Gradients, in_torch
from flashlab.distributed.shards import runs_of
from flashlab.distributed.wire import GroupError, Wire
from flashlab.machine.arguments import check_flag, check_whole, shown
from flashlab.machine.numbers import whole_number
from flashlab.machine.ranks import Block, Runs, blocks, check_documents, length

KERNELS = "torch", "portable", "hopper", "decode"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Task(NamedTuple):
    """One call of attention over a group, the same on every rank."""

    placement: tuple[Runs, ...]
    Hk: int  # key/value heads
    left: int | None  # of the mask: keys before its own that a query sees, None for all
    right: int | None  # keys after its own
    documents: tuple[int, ...] | None  # where packed texts begin, and N
    scale: float
    return_lse: bool
    kernel: str | None

    @property
    def whole(self) -> Runs:
        """The runs of a rank that has all tokens, in order."""
        return (range(sum(map(length, self.placement))),)

    def blocks(self, queries: Runs, keys: Runs) -> tuple[Block, ...]:
        """Return the blocks of scores between the queries of one rank and the keys of another."""
        return blocks(queries, keys, self.left, self.right, self.documents)

    def gradients(self, dO: Tensor, q: Tensor, O: Tensor, lse: Tensor) -> Gradients:
        """Return the ``Gradients`` of a rank's queries: in torch, or by the kernels."""
        if in_torch(q, self.kernel):
            return Gradients(dO, q, O, lse, self.scale)
        from flashlab.distributed.kernel_gradients import KernelGradients  # late: Triton

        return KernelGradients(dO, q, O, lse, self.scale, self.kernel)


class Options(NamedTuple):
    """Options of ``attention`` that do not concern the group."""

    causal: bool = False  # a query sees the keys at its own position and before
    mask: object = None  # ``causal()`` or ``window(left, right)`` of ``flashlab.kernels.masks`` or ``reference.masks``
    # Where packed texts begin, from 0 on, and N at the end: queries see their own text only. Each text with
    # queries on one rank and keys on another takes a kernel call of its own.
    documents: Sequence[int] | None = None
    scale: float | None = None  # factor on the scores, 1/sqrt(d) if None
    return_lse: bool = False  # also return the log-sum-exp of each row, in natural logarithms; not differentiable
    kernel: str | None = None  # as for ``flash_attention``; "torch" for torch's own operations, as None on a CPU


def prepare(
    way: str, q: Tensor, k: Tensor, v: Tensor, wire: Wire, placement: str, options: Options
) -> tuple[Tensor, Tensor, Tensor, Task]:
    """Check the arguments here and compare them with the other ranks'. Return q, k and v for the kernels, and the task.

    Raises:
        TypeError, ValueError: an argument is not as ``attention`` describes it.
        GroupError: the ranks disagree, or do not answer.
    """
    fault, documents = None, options.documents
    try:
        _check(q, k, v)
        check_flag("return_lse", options.return_lse)
        _check_kernel(options.kernel)
        left, right = _window(options.causal, options.mask)
        scale = _scale(options.scale, q.shape[-1])
        documents = None if documents is None else tuple(_whole(place, "documents") for place in _list(documents))
    except (TypeError, ValueError) as error:
        if not isinstance(q, Tensor):
            raise
        fault = error
    wire.check(q)
    facts = {"whether the arguments are right": fault is None}
    if fault is None:
        (B, H, _, d), (_, Hk, _, dv) = q.shape, v.shape
        texts = documents and f"{len(documents) - 1} texts {hashlib.sha1(str(documents).encode()).hexdigest()[:8]}"
        facts |= {"the method": way, "the placement": placement, "B": B, "H": H, "Hk": Hk, "d": d, "dv": dv}
        facts |= {"the dtype": str(q.dtype), "the window of the mask": [left, right], "documents": texts}
        facts |= {"the scale": scale, "the kernel": options.kernel}
    try:
        counts = wire.agree(facts, q.shape[2] if q.ndim == 4 else 0, q.device)
    except GroupError as error:
        raise fault or error from None
    if fault:
        raise fault
    N = sum(counts)
    runs = runs_of(placement, counts)
    if documents is not None:
        check_documents(documents, N)
    if scale <= 0:  # the kernels take the maximum before they scale, so their scale must be positive
        q, scale = (-q, -scale) if scale < 0 else (q * 0, 1.0)
    if not in_torch(q, options.kernel):
        q, k, v = (_pad_rows(x) for x in (q, k, v))
    return q, k, v, Task(runs, Hk, left, right, documents, scale, options.return_lse, options.kernel)


def _check(q, k, v):
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor [B, heads, n, width], got {shown(x)}")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise TypeError(f"q, k and v must have one floating-point dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not (q.device == k.device == v.device):
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
    (B, H, n, d), Hk = q.shape, k.shape[1]
    if k.shape != (B, Hk, n, d) or v.shape[:3] != (B, Hk, n) or Hk == 0 or H % Hk:
        raise ValueError(
            "expected q [B, H, n, d], k [B, Hk, n, d] and v [B, Hk, n, dv] of the same n tokens, H a multiple of Hk, "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )


def _check_kernel(kernel):
    if not (kernel is None or isinstance(kernel, str) and kernel in KERNELS):
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, or None, got {shown(kernel)}")


def _window(causal, mask):
    """Return the ends (left, right) of the window of ``causal`` and ``mask``."""
    check_flag("causal", causal)
    if mask is None:
        return None, 0 if causal else None
    if causal:
        raise ValueError(f"causal=True is short for a mask: give one of the two, got the mask {shown(mask)} too")
    if not (hasattr(mask, "left") and hasattr(mask, "right")):
        raise TypeError(f"mask must be None, causal() or window(left, right) of masks, got {shown(mask)}")
    ends = {"mask.left": mask.left, "mask.right": mask.right}
    return tuple(None if end is None or end == math.inf else check_whole(name, end, 0) for name, end in ends.items())


def _list(documents):
    """Return documents, or raise TypeError if they are no list."""
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise TypeError(f"documents must be a list of whole numbers, got {type(documents).__name__}")
    return documents


def _whole(number, name):
    """Return a whole number as an int, or raise TypeError."""
    n = whole_number(number)
    if n is None:
        raise TypeError(f"{name} must be whole numbers, got {shown(number)}")
    return n


def _scale(scale, d):
    """Return the factor on the scores as a float, or raise TypeError or ValueError."""
    if scale is None:
        return d**-0.5
    number = scale.numel() == 1 if isinstance(scale, Tensor) else isinstance(scale, numbers.Real)
    if isinstance(scale, bool) or not number:
        raise TypeError(f"scale must be a number or None, got {shown(scale)}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale}")
    return float(scale)


def _pad_rows(x):
    """Append zero columns until a row is a multiple of 16 bytes, as the kernels require."""
    missing = -x.shape[-1] % (16 // x.element_size())
    return F.pad(x, (0, missing)) if missing else x
