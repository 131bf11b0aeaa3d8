"""Tensors in float8: codes of e4m3, with a scale for each 128 tokens of a head, or one for all of them.

A code has 3 bits of mantissa: its relative error is at most 1/16 for numbers from 2^-6 to 448 in size, and more below.
The scale makes the largest number of a block 448. A rotation spreads the large numbers of one column over all columns
of its ``GROUP``. If queries and keys are rotated alike, their products do not change.

Source: FlashAttention-3, section 3.3.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashlab.kernels import tiles
from flashlab.kernels.checks import check_dense, check_device, check_memory, check_no_gradient, check_place
from flashlab.kernels.device import stepped_around
from flashlab.kernels.launch import launch
from flashlab.machine.arguments import check_arguments, check_flag, shown

E4M3 = torch.float8_e4m3fn
BLOCK = tl.constexpr(128)  # tokens that share a scale; every Br and Bc of the kernels divides it
GROUP = tl.constexpr(128)  # columns that are rotated together, at most
LARGEST = tl.constexpr(448.0)  # number with a code
PROGRAMS, MOST = 256, 8  # from 2 * PROGRAMS blocks on, a program computes several, at most MOST
OFFSET = 8  # the largest weight is 2^8: were it 1, those below 2^-10 would have the code 0
LEAST = tl.constexpr(2.0**-126)  # of scales and their products: a product of 0 would make 0 * -inf, which is NaN
OF_Q, OF_K, OF_V = map(tl.constexpr, range(3))


class Quantised(NamedTuple):
    """A tensor in 8 bits: x ≈ codes * scale."""

    codes: Tensor  # [B, H, N, d] in float8_e4m3fn
    scale: Tensor  # [B, H, blocks of N] in float32, one per ``BLOCK`` tokens, or [B, H, 1]


class Scales(NamedTuple):
    """The scales of the codes of one call, and how their products are added up."""

    q: Tensor  # [B, H, blocks of Nq]
    k: Tensor  # [B, Hk, blocks of Nk]
    v: Tensor  # [B, Hk, 1]
    two_level: bool = True  # sums leave the tensor core after each tile: on Hopper it keeps 14 bits of a sum, or fewer

    @property
    def kernel_args(self):
        """The kernel arguments of the scales: each a tensor and its strides."""
        return tuple((x, *x.stride()) for x in self[:3])


@triton.jit
def scaled(x, scales, which: tl.constexpr, b, h, start):
    """Return x times the scale that token ``start`` has in head h of batch b; x itself if there are no scales.

    The result is NaN for a scale that is not above 0: on a GPU, the host does not check them.
    """
    if scales is None:
        return x
    else:
        of = scales[which]
        s = tl.load(of[0] + b * of[1] + h * of[2] + start // BLOCK * of[3])
        s = tl.where(s > 0, s, float("nan"))
        return tl.maximum(x * s, LEAST, propagate_nan=tl.PropagateNan.ALL)


@stepped_around("float8.quantise")
def quantise(x: Tensor, *, per: str = "block", signs: Tensor | None = None, transposed: bool = False) -> Quantised:
    """Return x in 8 bits, scaled such that the largest number of each block, or of each head, becomes 448 in size.

    Args:
        x: queries, keys or values [B, H, N, d] in float16, bfloat16 or float32; d is 1 to 256.
        per: "block", a scale for each 128 tokens of a head; or "head", for which x is read twice.
        signs: [d], each 1 or -1, as ``random_signs`` draws them: x is rotated first. Its columns are multiplied by the
            signs, and its rows by a Hadamard matrix, with entries ±1 / sqrt(d); d is a power of two from 16 on. Of 256
            columns, each half is rotated by itself. Queries and keys that are rotated alike keep their scores.
        transposed: in memory, the tokens of a column are side by side, as tensor cores need the values.

    Returns:
        ``Quantised``. Numbers are rounded to the nearest code, ties to even; 0 and NaN stay as they are. Infinity
        makes its block, or its head, NaN. On a GPU, where signs are not read on the host, a sign other than 1 and -1
        makes its rows NaN. No gradients.

    Raises:
        TypeError, ValueError: an argument is not as described, or the GPU has no float8.
        NotImplementedError: x requires a gradient.
    """
    check_flag("transposed", transposed)
    _check(x, per, signs)
    B, H, N, d = x.shape
    width, blocks = tiles.width_of(d), tiles.count(N, BLOCK.value)
    codes = _codes(B, H, d, N, x.device).mT if transposed else _codes(B, H, N, d, x.device)
    scale = torch.empty(B, H, blocks, dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return Quantised(codes, scale if per == "block" else scale.new_ones(B, H, 1))
    each = min(max(1, B * H * blocks // PROGRAMS), MOST)
    x = tiles.ready(tiles.pad_rows(x))
    ahead = tiles.has_copy_engine(x.device) and width * x.element_size() <= 512  # else shared memory would not suffice
    tensors, strides = tiles.arguments((x, codes), (BLOCK.value,) * 2, (1,) if transposed else ())
    for finds, stores in ((True, True),) if per == "block" else ((True, False), (False, True)):
        launch(
            quantise_blocks,
            (tiles.count(blocks, each), H, B),
            (*tensors, scale, signs),
            (strides, scale.expand(B, H, blocks).stride(), N, each)
            + (d, width, transposed, finds, stores, 3 if ahead else 1),
            warps=8,
        )
        scale = scale if per == "block" else scale.amax(-1, keepdim=True)  # [B, H, 1]
    return Quantised(codes, scale)


@check_arguments(seed=(0, 2**64 - 1))
def random_signs(d: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Return d signs at random, 1 or -1, in float32."""
    device = check_place(device)
    bits = torch.randint(2, (d,), generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return (1 - 2 * bits).to(device)


@triton.jit
def quantise_blocks(
    X, codes, scale, signs,  # X, codes [B, H, N, d]: descriptors or pointers; pointers scale [B, H, blocks], signs [d]
    strides, scale_strides, N, each, d: tl.constexpr, width: tl.constexpr,
    transposed: tl.constexpr, finds: tl.constexpr, stores: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Compute the scales of blocks of head h of batch b, or load them, and store the codes.

    Program (p, h, b) computes blocks p * each .. (p + 1) * each. The next blocks arrive while it computes.
    """
    p, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H, B = tl.num_programs(1), tl.num_programs(2)
    X = tiles.view(X, [B, H, N, d], strides[0], BLOCK, width)
    codes = tiles.view(codes, [B, H, N, d], strides[1], BLOCK, width, transposed)
    scale += b * scale_strides[0] + h * scale_strides[1]
    if signs is not None:
        matrix = hadamard(min(d, GROUP))
    for n in tl.range(p * each, tl.minimum((p + 1) * each, tl.cdiv(N, BLOCK)), num_stages=stages):
        x = tiles.load(X, b, h, n * BLOCK, BLOCK, width)  # [BLOCK, d]   zeros past N and d
        x = x.to(tl.float32) if signs is None else rotate(x, signs, matrix, d)  # [BLOCK, d]
        if finds:
            s = tl.maximum(tl.div_rn(tl.max(tl.abs(x)), LARGEST), LEAST)  # a plain / is not rounded to nearest on a GPU
            tl.store(scale + n * scale_strides[2], s)
        else:
            s = tl.load(scale + n * scale_strides[2])
        if stores:
            tiles.store(codes, b, h, n * BLOCK, divided(x, s), BLOCK, width, transposed)


@triton.jit
def divided(x, s):
    """Return x / s, rounded to nearest, for many x and one s: a product with 1 / s, and its error, make the quotient.

    Source: P. Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990.
    """
    inverse = tl.div_rn(1.0, s)
    quotient = x * inverse
    return tl.fma(tl.fma(-quotient, s, x), inverse, quotient)


@triton.jit
def hadamard(size: tl.constexpr):
    """Return the Hadamard matrix [size, size] with entries 1 and -1."""
    i, j = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    ones = i & j  # [size, size]   an entry is negative if these bits have an odd number of ones
    ones ^= ones >> 4
    ones ^= ones >> 2
    ones ^= ones >> 1
    return (1 - 2 * (ones & 1)).to(tl.bfloat16)


@triton.jit
def rotate(x, signs, matrix, d: tl.constexpr):
    """Return x [rows, d] with signs [d] on its columns, each group of ``GROUP`` times a Hadamard matrix, in float32."""
    rows: tl.constexpr = x.shape[0]
    group: tl.constexpr = matrix.shape[0]
    sign = tl.load(signs + tl.arange(0, d))  # [d]
    sign = tl.where(tl.abs(sign) == 1, sign, float("nan"))  # [d]   on a GPU, the host did not check them
    x = x * sign.to(x.dtype)  # [rows, d]
    x = tl.reshape(x, [rows * (d // group), group])  # [rows * d / group, group]
    if x.dtype == tl.float32:  # as two numbers with 8 bits of mantissa: their products with ±1 are exact
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
        y = tl.dot(low, matrix, tl.dot(high, matrix))  # [rows * d / group, group]
    else:
        y = tl.dot(x, matrix.to(x.dtype))  # [rows * d / group, group]
    return tl.reshape(y, [rows, d]) * group**-0.5


def _codes(*shape_and_device):
    """Return a tensor for codes with rows that are multiples of 16 bytes in memory, as descriptors require."""
    *shape, columns, device = shape_and_device
    padded = tiles.count(columns, 16) * 16
    return torch.empty(*shape, padded, dtype=E4M3, device=device)[..., :columns]


@functools.cache
def supported(device) -> bool:
    """Return whether a device can multiply and convert float8: compute capability 8.9 and later, or the interpreter."""
    device = check_place(device)
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


def check_supported(device):
    """Raise ValueError if a GPU has no float8."""
    if not supported(device):
        raise ValueError("this GPU has no float8: it needs compute capability 8.9 or later")


def _check(x, per, signs):
    tensors = {"x": x} if signs is None else {"x": x, "signs": signs}
    check_dense(**tensors)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"x must be a tensor of float16, bfloat16 or float32, got {x.dtype}")
    if x.ndim != 4 or not 1 <= x.shape[3] <= 256:
        raise ValueError(f"x must be [batch, heads, length, width] with a width from 1 to 256, got {list(x.shape)}")
    check_device(**tensors)
    check_supported(x.device)
    check_memory("quantise", **tensors)
    check_no_gradient("quantise", **tensors)
    if max(x.shape[:2]) > 65535:
        raise ValueError(f"batches and heads are at most 65535 each, got {x.shape[0]} and {x.shape[1]}")
    if per not in ("block", "head"):
        raise ValueError(f'per must be "block" or "head", got {shown(per)}')
    if signs is None:
        return
    d = x.shape[3]
    if d < 16 or d & (d - 1):
        raise ValueError(f"a rotation takes heads of 16, 32, 64, 128 or 256 columns, got {d}: append zeros")
    if signs.shape != (d,) or not (signs.is_floating_point() and signs.is_contiguous()):
        found = f"{signs.dtype} {list(signs.shape)}"
        raise ValueError(f"signs must be [d] = [{d}] contiguous floating-point numbers, got {found}")
    if signs.device.type == "cpu" and not bool((signs.abs() == 1).all()):
        raise ValueError(f"signs must be 1 or -1 each, got {signs[signs.abs() != 1][0]:g}")
