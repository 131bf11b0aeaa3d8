"""Count the memory that autograd saves for the backward pass, and compute the longest text that fits."""

from collections import Counter
from collections.abc import Callable

import torch

from flashlab.machine import costs
from flashlab.machine.arguments import check_arguments


@check_arguments()
def saved(function: Callable, *inputs: object, **options: object) -> Counter:
    """Return the bytes that autograd saves for the backward pass of ``function(*inputs, **options)``, by shape.

    A piece of memory counts once, under the shape of its first view. Saved inputs are counted, too.
    """
    tensors = {}  # address -> tensor, kept so that no address is used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tensors.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*inputs, **options)
    sizes = Counter()
    for tensor in tensors.values():
        sizes[tuple(tensor.shape)] += tensor.untyped_storage().nbytes()
    return sizes


@check_arguments(N=0)
def dense_bytes(N: int, *, d: int, heads: int, itemsize: int) -> int:
    """Return the bytes that ``plain.dense`` saves: Q, K, V and P of each head, and one causal mask for all."""
    return heads * (3 * N * d + N * N) * itemsize + N * N


@check_arguments(N=0)
def flash_bytes(N: int, *, d: int, heads: int, itemsize: int) -> int:
    """Return the bytes that ``flash_attention`` saves: Q, K, V and O of each head, and lse.

    lse is in float32, or in float64 if the others are in float32. A row of d numbers must be a multiple of 16 bytes:
    shorter ones are padded.
    """
    return heads * (4 * N * d * itemsize + max(4, 2 * itemsize) * N)


@check_arguments(room=0)
def longest(room: float, nbytes: Callable[..., int], **sizes: int) -> int:
    """Return the largest N with ``nbytes(N, **sizes) <= room``, for one of the two functions above.

    Raises: ValueError for a room that is not a finite number.
    """
    return costs.longest(room, lambda N: nbytes(N, **sizes))
