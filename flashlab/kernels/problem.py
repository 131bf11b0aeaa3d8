"""The ``Problem``: one call of attention without its tensors, for tables, schedules and kernels."""

import math
import numbers
from typing import Any, NamedTuple

import torch
import triton.language as tl

from flashlab.kernels import float8, masks, tiles
from flashlab.kernels.checks import check_dense, check_device, check_values, kind_of
from flashlab.kernels.masks import questions
from flashlab.machine.arguments import shown

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256  # columns of a head
LONGEST = 65535  # programs of a grid along y or z
SCALES = 2.0**-126, 2.0**126  # scale * log2(e) must be a normal number of float32
LOG2_E = tl.constexpr(math.log2(math.e))  # e^x = 2^(LOG2_E * x)


class Problem(NamedTuple):
    """Sizes, dtype, device and options of one call, from checked arguments. They never change."""

    B: int  # batches
    H: int  # query heads
    Hk: int  # key/value heads
    Nq: int  # queries
    Nk: int  # keys
    d: int  # columns of Q and K, padded to rows of 16 bytes
    dv: int  # columns of V and O, padded likewise
    dtype: torch.dtype
    device: torch.device
    mask: masks.Window | masks.Rule
    scale: float  # factor on the scores, above 0
    precision: str  # of float32 products: "ieee", or "tf32"
    score: Any = None  # a ``scores.Chain``
    sinks: torch.Tensor | None = None  # [H]
    dropout: object = None  # a ``dropout.Dropout``
    texts: object = None  # of a packed call, ``packed.Texts``; then B is 1, and Nq and Nk count the tokens of all
    scales: float8.Scales | None = None  # of q, k and v in float8
    batch_invariant: bool = False  # the forward kernel and its tiles depend on no other text

    @classmethod
    def of(cls, q, k, v, mask, scale, **options):
        """Describe attention over q [B, H, Nq, d], k [B, Hk, Nk, d] and v [B, Hk, Nk, dv]."""
        B, H, Nq, d = q.shape
        _, Hk, Nk, dv = v.shape
        return cls(B, H, Hk, Nq, Nk, d, dv, q.dtype, q.device, mask, scale, tiles.precision_of(q), **options)

    @property
    def group(self):
        """Query heads per key/value head."""
        return self.H // self.Hk

    @property
    def scale_log2(self):
        """Factor that turns scores into powers of two: e^(scale * x) = 2^(scale_log2 * x)."""
        return self.scale * LOG2_E.value

    @property
    def natural(self):
        """Return whether kernels keep scores in natural units, and not in those of log2.

        Units of log2 save one instruction per score. But then no product of a score and its factor may overflow: none
        does if scale_log2 is at most 1 or a soft cap comes last. Natural units serve every finite score. Inputs in
        float32 need them, because their gradients need more digits of lse than a product with log2(e) keeps. Scores of
        float8 are always in units of log2.
        """
        if self.scales is not None:
            return False
        bounded = self.scale_log2 <= 1 if self.score is None else self.score.bounded
        return self.dtype == torch.float32 or not bounded

    @property
    def unit(self):
        """Return the factor from the units of the kernels' scores to those of log2: log2(e), or 1."""
        return LOG2_E.value if self.natural else 1

    @property
    def factor(self):
        """Return the factor from products of Q and K, or from results of score functions, to the units of scores."""
        scale = self.scale if self.score is None else 1.0
        return scale if self.natural else scale * LOG2_E.value

    @property
    def widths(self):
        """Columns of tiles of Q and K, and of tiles of V and O."""
        return tiles.width_of(self.d), tiles.width_of(self.dv)

    @property
    def widths_in_pieces(self):
        """The same for tiles in ``pieces``."""
        return tiles.width_in_pieces(self.d), tiles.width_in_pieces(self.dv)

    @property
    def pairs(self):
        """The shape that tensors of score functions broadcast to: batches or texts, heads, queries, keys."""
        if self.texts is None:
            return self.B, self.H, self.Nq, self.Nk
        return self.texts.count, self.H, *self.texts.longest

    @property
    def plain(self):
        """Whether there is a window at most, and nothing else that changes scores or weights."""
        others = self.score, self.sinks, self.dropout, self.texts, self.scales
        return isinstance(self.mask, masks.Window) and all(x is None for x in others)

    @property
    def kind(self):
        """The problem without its tensors: all that tables and ``limits`` read, except ``limits.against_tensors``."""
        mask = self.mask if isinstance(self.mask, masks.Window) else "rule"
        names = "score", "sinks", "dropout", "texts", "scales"
        present = {name: None if getattr(self, name) is None else name for name in names}
        return self._replace(mask=mask, **present)

    def kernel_args(self, c, transposed=False, sums=(), in_pieces=False):
        """Return the kernel arguments of the problem: ``KernelArgs`` and the compile-time ``Tile``.

        c: a ``Configuration``. transposed: for a kernel with keys in its outer loop. sums: as for
        ``Chain.kernel_args``. in_pieces: for tiles in ``pieces``.
        """
        score = None if self.score is None else self.score.kernel_args(self, sums)
        args = KernelArgs(
            self.group // c.parts, c.parts, self.Nq, self.Nk, self.d, self.dv, self.scale, self.factor,
            self.mask.kernel_args(self, c.Br, c.Bc, transposed),
            score, self.sinks, None if self.dropout is None else self.dropout.kernel_args,
            self.texts and self.texts.kernel_args, self.scales and self.scales.kernel_args,
        )  # fmt: skip
        unseen = self.mask.hides_keys(self)
        eight = () if self.scales is None else (True, float8.OFFSET, c.Bc if self.scales.two_level else None)
        widths = self.widths_in_pieces if in_pieces else self.widths
        return args, Tile(c.Br, c.Bc, *widths, self.Nk % c.Bc != 0, unseen, self.precision, self.unit, *eight)


class KernelArgs(NamedTuple):
    """The kernel arguments of a problem: numbers, functions, and the tensors that these read."""

    group: int  # query heads per key/value head, or per part of its group
    parts: int  # of a group
    Nq: int
    Nk: int
    d: int
    dv: int
    scale: float
    factor: float  # as in ``Problem``
    mask: questions.KernelArgs
    score: tuple | None  # as ``scores.Chain.kernel_args``
    sinks: torch.Tensor | None  # [H]
    dropout: tuple | None  # as ``dropout.Dropout.kernel_args``
    texts: tuple | None  # as ``packed.Texts.kernel_args``
    scales: tuple | None  # as ``float8.Scales.kernel_args``


class Tile(NamedTuple):
    """The compile-time part of a launch."""

    Br: int
    Bc: int
    width: int  # columns of tiles of Q and K
    width_v: int  # of V and O
    ragged: bool  # Bc does not divide Nk
    unseen: bool  # there may be keys that no query sees; they must not matter, even if they are NaN
    precision: str  # of float32 products
    unit: float  # as in ``Problem``
    transposed: bool = False  # in memory, the keys of V are side by side, as tensor cores need them in float8
    offset: int = 0  # the largest weight of a row so far is 2^offset
    flush: int | None = None  # after so many products of float8 a sum leaves the tensor core; None: after all
    apart: bool = False  # the gradient of a hidden score is 0, whatever its query and its key hold
    repair: bool = False  # compute again only the tiles of results with NaN or infinities, by ``questions.finite``


def check(q, k, v, dtypes=DTYPES, names=("q", "k", "v")):
    """Raise TypeError or ValueError if these cannot be queries, keys and values, in one of these dtypes.

    names: those of the three arguments.
    """
    named = dict(zip(names, (q, k, v), strict=True))
    check_dense(**named)
    for name, x in named.items():
        if x.ndim != 4:
            raise ValueError(f"{name} must have dimensions [batch, heads, length, width], got shape {list(x.shape)}")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in dtypes:
        found = ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        *others, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        expected = f"have one dtype out of {', '.join(others)} and {last}" if others else f"be {last}"
        raise TypeError(f"{names[0]}, {names[1]} and {names[2]} must {expected}, got {found}")
    check_device(**named)
    B, H, _, d = q.shape
    _, Hk, Nk, dv = v.shape
    if k.shape != (B, Hk, Nk, d) or v.shape[0] != B:
        raise ValueError(
            f"expected {names[0]} [B, H, Nq, d], {names[1]} [B, Hk, Nk, d] and {names[2]} [B, Hk, Nk, dv], "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    if not whole_groups(H, Hk):
        raise ValueError(
            f"the {H} query heads must be a multiple of the key/value heads, of which there are {Hk}: expected "
            f"{names[0]} [B, H, Nq, d] and {names[1]} [B, Hk, Nk, d], got {list(q.shape)} and {list(k.shape)}"
        )
    if Hk > 0 and H // Hk > LONGEST:
        raise ValueError(f"at most {LONGEST} query heads share a key/value head, got {H // Hk}")
    if not (1 <= d <= WIDEST and 1 <= dv <= WIDEST):
        raise ValueError(f"head dimensions must be between 1 and {WIDEST}, got d = {d} and dv = {dv}")


def whole_groups(H, Hk) -> bool:
    """Return whether H query heads can be divided evenly among Hk key/value heads."""
    return H % Hk == 0 if Hk > 0 else H == 0


def check_sink_values(sinks) -> None:
    """Raise ValueError if a sink on the CPU is neither finite nor -inf, which means that the head has none."""
    if sinks is not None:
        check_values("sinks must be finite numbers of float32, or -inf", sinks)


def check_sinks(sinks, H, device, name="sinks"):
    """Return the sinks [H] side by side in memory, as kernels read them, None if there are none, or raise.

    name: that of the argument.
    """
    if sinks is None:
        return None
    if not isinstance(sinks, torch.Tensor) or not sinks.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor [H], got {kind_of(sinks)}")
    check_dense(**{name: sinks})
    if sinks.shape != (H,) or sinks.device != device:
        raise ValueError(f"{name} must be [H] = [{H}] on {device}, got {list(sinks.shape)} on {sinks.device}")
    return sinks.contiguous()


def scale_of(scale, d, name="scale") -> float:
    """Return the factor on the scores of heads of d columns, 1/sqrt(d) if None. name: that of the argument.

    Raises:
        TypeError, ValueError: it is not 0 or a number from 2^-126 to 2^126 in size, or it requires a gradient.
    """
    if scale is None:
        return d**-0.5
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        raise ValueError(f"{name} is a number and gets no gradient: multiply q by the tensor instead")
    number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if isinstance(scale, torch.Tensor):
        number = scale.numel() == 1 and not (scale.dtype == torch.bool or scale.is_complex() or scale.is_meta)
    if not number:
        raise TypeError(f"{name} must be a number or None, got {shown(scale)}")
    if not (scale == 0 or SCALES[0] <= abs(scale) <= SCALES[1]):  # NaN is neither
        raise ValueError(f"{name} must be a finite number, 0 or from 2^-126 to 2^126 in size, got {scale!s:.40}")
    return float(scale)


def scale_above_zero(scale, d) -> float:
    """Return ``scale_of``, or raise ValueError unless it is above 0."""
    scale = scale_of(scale, d)
    if scale <= 0:
        raise ValueError(f"scale must be a number from 2^-126 to 2^126, got {scale}")
    return scale
