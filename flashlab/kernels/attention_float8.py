"""``flash_attention_float8``: the forward kernels on numbers of 8 bits."""

import math

import torch
from torch import Tensor

from flashlab.kernels import masks, portable, tiles
from flashlab.kernels.checks import check_memory, check_no_gradient
from flashlab.kernels.configurations import choose
from flashlab.kernels.device import stepped_around
from flashlab.kernels.float8 import BLOCK, E4M3, Scales, check_supported
from flashlab.kernels.problem import DTYPES, LONGEST, WIDEST, Problem, check, scale_above_zero
from flashlab.machine.arguments import check_flag, shown


@stepped_around("flash_attention_float8")
def flash_attention_float8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scales: tuple[Tensor, Tensor, Tensor],
    causal: bool = False,
    mask: masks.Window | masks.Rule | None = None,
    scale: float | None = None,
    dtype: torch.dtype = torch.bfloat16,
    kernel: str | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of queries, keys and values in float8, as ``float8.quantise`` makes them, forward only.

    The scores are sums of products of codes, times the scales. The weights, too, are rounded to float8 before they
    multiply the values. Before that they are scaled: the largest weight of a row so far becomes 2^8, and weights down
    to 2^-17 of it do not become 0. The sum of their products with the values leaves the tensor core after every tile of
    keys and is continued in float32. The row's sum l adds the weights before rounding, and their rounding errors do not
    quite cancel: with many values of one sign, O is off by about 0.1 %.

    Args:
        q: queries [B, H, Nq, d] in float8_e4m3fn.
        k: keys [B, Hk, Nk, d].
        v: values [B, Hk, Nk, dv]. They are fastest where the tokens of a column are side by side in memory, as
            ``quantise(v, per="head", transposed=True)`` leaves them; otherwise a copy is made.
        scales: factors of the codes of q, k and v in float32, each above 0 and broadcastable to a number
            per 128 tokens, [B, H, ceil(Nq / 128)] and [B, Hk, ceil(Nk / 128)]. That of v must be the same for all
            tokens of a head, [B, Hk, 1] or less: it multiplies O. A scale of NaN or infinity, which ``quantise``
            returns for such numbers, raises no error: results that depend on it become NaN.
        causal, mask, return_lse: as for ``flash_attention``.
        scale: factor on the scores beside those of the codes, above 0; 1/sqrt(d) if None.
        dtype: of O: bfloat16, float16 or float32.
        kernel: "portable" for the kernel in Triton; "hopper" for the one in Gluon, on compute capability 9.0. None:
            the choice of ``kernels.configurations``.

    Returns:
        O [B, H, Nq, dv], or (O, lse) with lse [B, H, Nq] in float32. A row that sees no key has O = 0 and lse = -inf.
        On a GPU, where the host does not read scales, a scale of 0 or below makes the rows that depend on it NaN.

    Raises:
        TypeError, ValueError: an argument is not as described, or the GPU has no float8.
        NotImplementedError: an argument requires a gradient: there is no backward pass in float8.

    Source: FlashAttention-3, section 3.3; DeepSeek-V3, section 3.3.2, for sums that leave the tensor core.
    """
    check_flag("return_lse", return_lse)
    check(q, k, v, dtypes=(E4M3,))
    check_supported(q.device)
    mask = masks.either(causal, mask)
    scale = scale_above_zero(scale, q.shape[3])
    if dtype not in DTYPES:
        raise TypeError(f"dtype, that of O, must be bfloat16, float16 or float32, got {shown(dtype)}")
    if max(q.shape[:2]) > LONGEST:
        raise ValueError(f"B and H are at most {LONGEST} in float8, got {q.shape[0]} and {q.shape[1]}")
    problem = Problem.of(q, k, v, mask, scale, scales=_scales(scales, q, k, v))
    mask.check(problem)
    scale_q, scale_k, scale_v = problem.scales[:3]
    tensors = {"q": q, "k": k, "v": v, "scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v}
    check_memory("flash_attention_float8", **tensors)
    check_no_gradient("flash_attention_float8", **tensors)
    o, lse = run(q, k, v, problem, dtype, kernel)
    return (o, lse) if return_lse else o


def run(q, k, v, problem, dtype, kernel=None, c=None):
    """Compute O and lse of checked arguments. c: a ``Configuration`` in place of the table's."""
    columns = tiles.count(v.shape[3] * dtype.itemsize, 16) * 16 // dtype.itemsize  # rows of whole 16 bytes
    o = torch.empty(*q.shape[:3], columns, dtype=dtype, device=q.device)[..., : v.shape[3]]
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    too_wide = dtype == torch.float32 and max(problem.widths) == WIDEST
    if too_wide and kernel == "hopper":
        raise ValueError(f"the Hopper kernel has no room for O in float32 with more than {WIDEST // 2} columns")
    choice = choose("forward", problem, "portable" if too_wide else kernel)
    if o.numel() == 0 or problem.Nk == 0:
        return o.zero_(), lse.fill_(-math.inf)
    q, k, v = _ready(q), _ready(k), _ready(v.mT).mT
    _kernel(choice).run(o, lse, q, k, v, problem, choice.launches["forward"] if c is None else c)
    return o, lse


def _kernel(choice):
    """Return the module of the kernel in a ``Choice``."""
    if choice.implementation == "portable":
        return portable.forward_float8
    from flashlab.kernels import hopper  # late: Gluon is slow to import, and only Hopper needs it

    return hopper.forward_float8


def _ready(x):
    """Return x if its layout suits the kernels, otherwise a copy whose rows begin at multiples of 16 bytes."""
    if tiles.suits(x):
        return x
    return tiles.ready(tiles.pad_rows(x.view(torch.uint8))).view(E4M3)[..., : x.shape[3]]  # torch pads no float8


def _scales(scales, q, k, v):
    """Return the ``Scales`` of an argument, or raise TypeError or ValueError."""
    if not isinstance(scales, (tuple, list)) or len(scales) != 3:
        found = len(scales) if isinstance(scales, (tuple, list)) else type(scales).__name__
        raise TypeError(f"scales must be three tensors, those of q, k and v, got {found}")
    whole = []
    for name, scale, x in zip("qkv", scales, (q, k, v), strict=True):
        if not isinstance(scale, Tensor) or scale.dtype != torch.float32 or scale.device != x.device:
            found = f"{scale.dtype} on {scale.device}" if isinstance(scale, Tensor) else type(scale).__name__
            raise TypeError(f"the scale of {name} must be a float32 tensor on {x.device}, got {found}")
        if scale.device.type == "cpu" and bool((scale <= 0).any()):  # NaN, infinity pass: ``quantise`` returns them
            raise ValueError(f"the scales of {name} must be above 0, got {scale.min():g}")
        shape = *x.shape[:2], 1 if name == "v" else tiles.count(x.shape[2], BLOCK.value)
        try:
            whole.append(scale.expand(shape))
        except RuntimeError:
            raise ValueError(
                f"the scale of {name} must be broadcastable to {list(shape)}, got {list(scale.shape)}"
            ) from None
    return Scales(*whole)
