"""The memory that autograd keeps between the forward and the backward pass, counted; and the longest text that fits."""

from collections import Counter
from collections.abc import Callable

import torch

from flashlab.machine import costs


def saved(function: Callable, *inputs: object, **options: object) -> Counter:
    """Return the bytes that autograd keeps for the backward pass of ``function(*inputs, **options)``, by shape.

    A piece of memory counts once, however many views of it are kept, under the shape in which it is first met. Inputs
    that are kept are counted too.
    """
    kept = {}  # address -> tensor; held, so that no address is given out twice

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*inputs, **options)
    sizes = Counter()
    for tensor in kept.values():
        sizes[tuple(tensor.shape)] += tensor.untyped_storage().nbytes()
    return sizes


def dense_bytes(N: int, *, d: int, heads: int, itemsize: int) -> int:
    """Return the bytes that ``plain.dense`` keeps: Q, K, V and P of each head, and one causal mask for all."""
    return heads * (3 * N * d + N * N) * itemsize + N * N


def flash_bytes(N: int, *, d: int, heads: int, itemsize: int) -> int:
    """Return the bytes that ``flash_attention`` keeps: Q, K, V and O of each head, and lse.

    lse is in float32, or in float64 if the others are in float32. A row of d numbers must be a multiple of 16 bytes:
    shorter ones are padded.
    """
    return heads * (4 * N * d * itemsize + max(4, 2 * itemsize) * N)


def longest(room: int, nbytes: Callable[..., int], **sizes: int) -> int:
    """Return the largest N with ``nbytes(N, **sizes) <= room``, for one of the two functions above.

    Raises: ValueError for a room that is not a finite number.
    """
    return costs.longest(room, lambda N: nbytes(N, **sizes))
