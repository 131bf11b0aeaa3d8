"""Turn a problem into the arguments of the forward kernels: descriptors of tensors, numbers, and compile-time values.

``forward`` and ``forward_float8`` take them. A descriptor states the shape of a tensor to the copy engine,
and the layout that it writes to shared memory.
"""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import hopper_width
from flashlab.kernels.hopper import scores
from flashlab.kernels.hopper.products import filled
from flashlab.kernels.hopper.scores import LATER, Intervals, static_window
from flashlab.kernels.launch import describe

ROWS = gl.constexpr(64)  # of Q in a warpgroup: the rows of one product
COLUMNS = {64: 64, 128: 128, 192: 64, 256: 128}  # of a piece, by width of heads
SHARED = 227 * 1024 - 1024  # bytes of shared memory for tiles
SIZES = ["H", "Nq", "Nk", "Tr"]  # numbers that change from call to call: one compilation for all
REGISTERS = {2: (240, 24), 3: (160, 32)}  # per thread, by the number of consumers: of a consumer, of the producer


class Shape(NamedTuple):
    """How tiles of Q, K, V and O are divided into ``pieces`` of their columns."""

    columns: int  # of a piece
    pieces: int  # of a tile of Q, and of K
    pieces_v: int  # of V, and of O
    turns: int = 1  # tiles of Q for each consumer in shared memory: this one, and the next

    @classmethod
    def of(cls, d, dv):
        """Return the shape for heads of d and dv columns."""
        columns = COLUMNS[hopper_width(d, dv)]
        return cls(columns, tiles.count(d, columns), tiles.count(dv, columns))

    def with_turns(self, Br, Bc, stages):
        """Return the shape with two turns, if they fit beside the stages of K and V and a piece of O, in 16 bits."""
        rows = 2 * Br * self.pieces + stages * Bc * (self.pieces + self.pieces_v) + Br  # of a piece
        return self._replace(turns=2 if 2 * rows * self.columns <= SHARED else 1)


class Variant(NamedTuple):
    """The compile-time part of a problem: each variant is a kernel of its own."""

    mask: masks.Window  # ``static_window``
    crossed: bool  # the diagonal may run through a second block of a warpgroup
    ragged: bool  # Bc does not divide Nk
    unit: float  # as in ``Problem``
    columns: int  # of Q and K, as ``products.filled``


class Request(NamedTuple):
    """The extras of a call beside a full or causal mask. The compiled kernel has no code for one that is None."""

    mask: masks.Window  # with the ends that are not compile-time values
    intervals: Intervals | None  # of a ``Rule``: the keys that each query sees
    score: tuple | None  # as ``scores.kernel_args``
    scale: float | None  # the factor on the scores before the score functions
    sinks: gl.tensor | None  # pointer to [H]
    scales: tuple | None  # of 8-bit numbers, as ``Scales.kernel_args``


def descriptors(o, q, k, v, rows, Br, Bc, width):
    """Return the descriptors of Q, K, V, O and O_first, which ends where the first tile of a head does."""
    Nq = q.shape[2]
    described = [descriptor(x, r, width) for x, r in zip((q, k, v, o), (rows, Bc, Bc, rows), strict=True)]
    return [*described, descriptor(o, rows, width, Nq - (tiles.count(Nq, Br) - 1) * Br)]


def sizes(problem, Br):
    """Return H, Nq, Nk, Tr and the factor on the scores."""
    factor = problem.factor if problem.score is None else scores.factors(problem)[1]
    return problem.H, problem.Nq, problem.Nk, tiles.count(problem.Nq, Br), factor


def variant(problem, rows, Bc):
    """Return the ``Variant`` for warpgroups of this many rows."""
    mask, Nq, Nk = static_window(problem.mask), problem.Nq, problem.Nk
    # Otherwise rows and keys are aligned: the diagonal of a warpgroup's rows stays inside one block.
    crossed = mask.right is not None and (Nq % rows != 0 or (Nk + problem.mask.right) % rows != 0)
    return Variant(mask, crossed, Nk % Bc != 0, problem.unit, filled(problem.d))


def request_of(problem):
    """Return the ``Request`` of a problem."""
    ends = problem.mask if LATER.value in static_window(problem.mask) else masks.full()
    intervals = Intervals.of(problem) if isinstance(problem.mask, masks.Rule) else None
    if problem.score is None:
        args = None if problem.scales is None else problem.scales.kernel_args
        return Request(ends, intervals, None, None, problem.sinks, args)
    return Request(ends, intervals, scores.kernel_args(problem), scores.factors(problem)[0], problem.sinks, None)


def without_unseen(k, v, problem):
    """Return keys, values and problem without the first keys that no window reaches.

    The weights of those keys are 0, but 0 times a value that is not finite would be NaN.
    """
    if isinstance(problem.mask, masks.Rule) or problem.mask.left is None:
        return k, v, problem
    unseen = max(0, problem.Nk - problem.Nq - problem.mask.left)
    return k[:, :, unseen:], v[:, :, unseen:], problem._replace(Nk=problem.Nk - unseen)


DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
}


def descriptor(x, rows, width, N=None):
    """Describe x [B, H, N, d], ready (``tiles.ready``), in tiles of rows x width; or only its first N rows.

    Elements past the end are read as zeros and never written.
    """
    shape = x.shape if N is None else (*x.shape[:2], N, x.shape[3])
    return _described(x, shape, tiles.strides_of(x), (1, 1, rows, width))


def fours_descriptor(x, rows, width):
    """Describe x [B, H, N, d] as [B, H, N / 4, 4, d], in tiles of two rows of each four, ``rows / 2`` in all.

    A tile has at most 128 columns. Rows of zeros are appended until 4 divides N.
    """
    missing = -x.shape[2] % 4
    if missing:
        x = F.pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype)
    B, H, N, d = x.shape
    b, h, n, _ = tiles.strides_of(x)
    return _described(x, (B, H, N // 4, 4, d), (b, h, 4 * n, n, 1), (1, 1, rows // 4, 2, min(width, 128)))


def flat_descriptor(x, size):
    """Describe all numbers of x, contiguous, as one row in tiles of ``size``."""
    return _described(x, (x.numel(),), (1,), (size,))


def rows_descriptor(x, rows, columns):
    """Describe all numbers of x, contiguous, as rows of this many columns in tiles of rows x columns."""
    return _described(x, (x.numel() // columns, columns), (columns, 1), (rows, columns))


def _described(x, shape, strides, block):
    fields = {"shape": shape, "strides": strides, "block_shape": list(block), "layout": layout(block, x.dtype)}
    return describe(x, TensorDescriptor, fields | {"padding": "zero", "round_f32_to_tf32": False})


@functools.cache
def layout(block, dtype):
    """Return the layout of a tile of the shape ``block`` in shared memory, swizzled so that 8 rows share no bank."""
    return gl.NVMMASharedLayout.get_default_for(list(block), DTYPES[dtype])


@functools.cache
def multiprocessors(device):
    """Return the number of programs of these kernels that run at once: each takes most of a multiprocessor's memory.

    In the interpreter there are few, so that each computes several tiles.
    """
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count


def last_heads(problem, tiles, heads):
    """Return how many of the last heads are processed together, longest tiles first (``stages.place_of``), or None.

    Under a causal mask the first tile of a head takes longest. If the last head began with it, most programs would wait
    for its end. All tiles of the heads that are processed together run at once, one per program; more heads would not
    fit the second level of cache. tiles: of a head; heads: how many there are.
    """
    together = min(heads, multiprocessors(problem.device) // tiles)
    return together if problem.mask == masks.causal() and together > 1 else None
