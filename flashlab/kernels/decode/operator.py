"""``decode``: attention of new tokens to a cache, in parts that are merged."""

import math

import torch
import triton.language as tl
from torch import Tensor

from flashlab.kernels import dependent_launch, float8, masks, scores, tiles
from flashlab.kernels import plan as plans
from flashlab.kernels.checks import (
    check_dense,
    check_device,
    check_memory,
    check_no_gradient,
    differentiated,
    transformed,
)
from flashlab.kernels.configurations import card
from flashlab.kernels.decode.cache import Cache, check_widths
from flashlab.kernels.decode.combine import attention_combine
from flashlab.kernels.decode.request import hides_what_is_read, reach, request_of
from flashlab.kernels.decode.split import attention_split
from flashlab.kernels.decode.tiles import LATENT, SHORT, Launch, Tile, launch_for, sms_of, splits_for
from flashlab.kernels.device import stepped_around
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.masks.part import FARTHEST
from flashlab.kernels.problem import DTYPES, Problem, check_sink_values, check_sinks, scale_above_zero
from flashlab.kernels.tables import ON_HOPPER
from flashlab.machine.arguments import check_flag, shown
from flashlab.machine.numbers import whole_number

EIGHT_BITS = {torch.float8_e4m3fn: tl.float8e4nv, torch.int8: tl.int8}


@stepped_around("decode")
def decode(
    q: Tensor,
    cache: Cache | tuple[Tensor, Tensor],
    *,
    lengths: Tensor | None = None,
    mask: masks.Window | masks.Rule | None = None,
    score: scores.Score | tuple[scores.Score, ...] | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    fixed_split: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of n new tokens per text to the keys and values of a cache, including their own.

    It is fast for few tokens: the rows of one tile are their queries in all heads that share keys. It takes any number
    of tokens, so that a prompt, too, can read its keys from pages.

    Args:
        q: queries of the new tokens [B, H, n, d] in float16, bfloat16 or float32.
        cache: a ``Cache``, or (K [B, Hk, N, d], V [B, Hk, N, dv]). The last n keys of each text are the new tokens'
            own. H is a multiple of Hk. K and V have q's dtype; with ``scales``, float8_e4m3fn or int8. d and dv are 1
            to 256; up to 576 and 512 where V is the first columns of K.
        lengths: keys of each text [B], int32, new ones included, from 0 to the keys that the cache or its table holds:
            on the CPU, other lengths raise ValueError. None: the lengths of the cache, or if it has none, all N.
        mask: what the tokens see, from ``kernels.masks``; causal if None: a token sees the past, itself, and the new
            tokens before it. Keys outside of a window are not read, nor those between the first ones and a window in
            ``causal() & (sinks(4) | window(W - 1))``: their pages may be gone. Other masks do not save reads.
        score: a function of the scaled scores, from ``kernels.scores``, or a tuple of them. Tensors of masks and
            scores have places for the n new tokens and for all N keys of the cache.
        sinks: [H], one extra score per head in the denominator of each row, as for ``flash_attention``.
        scale: factor on the scores, above 0; 1/sqrt(d) if None.
        return_lse: also return the log-sum-exp of each row of scores, in natural logarithms.
        fixed_split: keys per part, a multiple of 128. A text's result then has the same bits whatever else is in the
            batch. None: the keys of each text are divided evenly into as many parts as keep the GPU busy.

    Returns:
        O [B, H, n, dv] in the dtype of q, or (O, lse) with lse [B, H, n] in float32. A row that sees no key has O = 0
        and lse = -inf (its sink, if there is one). On a GPU, a text whose length is negative or beyond the cache has
        NaN in both: lengths are not read on the host, which would wait for the GPU.

    No gradients: ``flash_attention`` has them. Sums and parts are in float32.

    Raises:
        TypeError, ValueError: an argument is not as described.
        NotImplementedError: an argument requires a gradient.
    """
    check_flag("return_lse", return_lse)
    cache, kind = Cache.of(cache, lengths), None
    plain = q is not None and score is None and sinks is None
    if plain and not any(map(differentiated, (q, *cache[:2]))) and not transformed():
        kind = plans.kind_of_step(q, cache, mask, scale, fixed_split)
    step = None if kind is None else plans.find(kind, mask, q.device)
    if step is None:
        problem = checked(q, cache, mask, scale, fixed_split, score, sinks)
        step = Step.of(q, cache, problem, fixed_split)
        if kind is not None:
            plans.keep(kind, step)
    elif q.device.type == "cpu":
        check_values(cache, step.problem.mask)
    O, lse = run(q, cache, step)
    return (O, lse) if return_lse else O


def checked(q, cache, mask, scale, fixed_split, score=None, sinks=None):
    """Return the ``Problem`` of the arguments of ``decode``, or raise. cache: a ``Cache`` with its lengths."""
    check_cache(q, cache)
    keys = whole_number(fixed_split)
    if fixed_split is not None and (keys is None or not 128 <= keys <= FARTHEST or keys % 128):
        raise ValueError(f"fixed_split must be a multiple of 128 up to {FARTHEST}, or None, got {shown(fixed_split)}")
    mask, score = masks.either(mask is None, mask), scores.chain(score)
    if q.device.type == "cpu":
        check_values(cache, mask)
    sinks = check_sinks(sinks, q.shape[1], q.device)
    problem = problem_of(q, cache, mask, scale_above_zero(scale, q.shape[3]), score=score, sinks=sinks)
    for x in mask.tensors:
        check_memory("decode", mask=x)
    mask.check(problem)
    check_memory("decode", sinks=sinks)
    check_no_gradient("decode", sinks=sinks)
    check_sink_values(sinks)
    if score is not None:
        for x in score.tensors:
            check_memory("decode", score=x)
            check_no_gradient("decode", score=x)
        scores.check(score, problem, training=False)
    return problem


def problem_of(q, cache, mask, scale, **options) -> Problem:
    """Describe attention of queries q [B, H, n, d] to all keys that a cache may hold."""
    B, H, n, d = q.shape
    sizes = B, H, cache.K.shape[1], n, cache.most, d, cache.V.shape[3]
    return Problem(*sizes, q.dtype, q.device, mask, scale, tiles.precision_of(q), **options)


class Step:
    """A kind of step: its ``Problem``, tiles and splits, and the launches of earlier steps, for ``launch.repeat``."""

    def __init__(self, problem, choice, splits, hopper, pairs):
        self.problem: Problem = problem
        self.choice: Launch = choice
        self.splits: tuple[int, int] = splits  # S, and the keys per part, or 0 to divide each text's own keys by S
        self.hopper: bool = hopper  # whether ``hopper.latent`` computes it
        self.pairs: tl.dtype | None = pairs  # as in ``Tile``
        self.launched: dict = {}

    @classmethod
    def of(cls, q, cache, problem, fixed_split=None, *, choice: Launch | None = None, S: int | None = None):
        """Return the step of a ``Problem``. choice, S: tiles and number of splits other than by the rule."""
        (B, H, n, d), Hk, dv = q.shape, cache.K.shape[1], cache.V.shape[3]
        width, width_v = tiles.width_of(dv if cache.latent else d), tiles.width_of(dv)
        fixed_split = whole_number(fixed_split)  # None if it is None
        short = fixed_split is not None or cache.most < SHORT  # with fixed splits, nothing depends on the other texts
        kind = cache.K.element_size(), cache.table is not None, short
        hopper = choice is None and for_hopper(q, cache, problem)
        if choice is None:
            choice = LATENT if hopper else launch_for(q.device, n * H // Hk, max(width, width_v), *kind)
        left, _, first = reach(problem.mask)
        seen = cache.most if left is None else min(cache.most, left + n + choice.Bc)
        if left is not None and first is not None:
            seen = min(cache.most, seen + first + choice.Bc)
        programs = max(1, B * Hk * tiles.count(n * H // Hk, choice.Br))
        if fixed_split is not None:
            splits = tiles.count(seen, fixed_split), fixed_split
        else:
            splits = splits_for(programs, seen, choice, sms_of(q.device)) if S is None else S, 0
        paired = cache.scales is not None and not cache.latent and min(width, width_v) >= 32
        paired = paired and in_pairs(cache.K) and in_pairs(cache.V)
        return cls(problem, choice, splits, hopper, EIGHT_BITS[cache.K.dtype] if paired else None)

    @property
    def early(self):
        """Return whether the kernel that merges the parts is launched before they are written, and waits for them."""
        return self.splits[0] > 1 and dependent_launch.possible(self.problem.device)


def run(q, cache, step, out=None):
    """Compute O and lse of a ``Step`` from checked arguments.

    out: O [B, H, n, dv] of any dtype, and lse and rest (as for ``log_sum_exp.store``) [B, H, n], all contiguous, to be
    filled; if None, new tensors, and no rest. Their dtypes and presence are the same for all calls of a step.
    """
    (B, H, n, _), dv, problem = q.shape, cache.V.shape[3], step.problem
    O, lse, rest = (q.new_empty(B, H, n, dv), q.new_empty(B, H, n, dtype=torch.float32), None) if out is None else out
    if O.numel() == 0 or cache.most == 0:
        lse.copy_(-math.inf if problem.sinks is None else problem.sinks[:, None])
        return O.zero_(), lse
    q = q if q.stride(3) == 1 and q.data_ptr() % 16 == 0 else q.clone(memory_format=torch.contiguous_format)
    S, _ = step.splits
    # One split is the result itself; several wait for ``combine`` in float32.
    parts = O, lse, rest
    if S > 1:
        O_s, lse_s = q.new_empty(S, B, H, n, dv, dtype=torch.float32), q.new_empty(S, B, H, n, dtype=torch.float32)
        parts = O_s, lse_s, torch.empty_like(lse_s) if problem.natural else None
    if step.hopper:
        from flashlab.kernels.hopper import latent  # late: Gluon is slow to import, and only Hopper needs it

        latent.run(q, cache, *parts[:2], step.splits, problem.scale_log2, step.launched)
    else:
        start_split(q, cache, parts, step)
    if S > 1:
        start_combine(parts, (O, lse, rest), cache.lengths, step)
    return O, lse


def start_split(q, cache, parts, step):
    """Launch the kernel of the parts: O, lse and rest, which may be None."""
    K, V, table, lengths, scales = cache
    if step.pairs is not None:
        K, V = K.view(torch.int16), V.view(torch.int16)

    def first():
        problem, choice = step.problem, step.choice
        B, H, Hk, n, most, d, dv = problem[:7]
        rope = d - dv if cache.latent else None
        strides = [(0, 0, 0) if x is None else x.stride()[:3] for x in (q, K, V, scales)]
        width, width_v = tiles.width_of(d if rope is None else dv), tiles.width_of(dv)
        page = None if table is None else K.shape[2]
        return launch(
            attention_split,
            (B * Hk * tiles.count(n * H // Hk, choice.Br), step.splits[0], 1),
            tensors,
            (
                sum(strides, ()),
                (B, H, Hk, n, most, 0 if table is None else table.stride(0)),
                step.splits, request_of(problem),
                Tile(
                    d, dv, page, choice.Br, choice.Bc, width, width_v, rope, problem.precision, step.early, step.pairs,
                    problem.unit, hides_what_is_read(problem.mask),
                ),
            ),
            warps=choice.warps,
            stages=choice.stages,
        )  # fmt: skip

    tensors = q, K, V, *parts, table, lengths, scales
    repeat(step.launched, "split", tensors, first)


def start_combine(parts, results, lengths, step):
    """Launch the kernel that merges the parts. Both: O, lse and rest, which may be None."""

    def first():
        B, H, _, n, most, _, dv = step.problem[:7]
        width = min(tiles.width_of(dv), 128)
        numbers = (B * H * n, H * n, n, most), step.splits, reach(step.problem.mask)
        return launch(
            attention_combine,
            (B * H * n, tiles.count(dv, 128), 1),
            tensors,
            (*numbers, dv, step.choice.Bc, 16, width, step.early),
            warps=4,
            early=step.early,
        )

    tensors = *parts, *results, lengths
    repeat(step.launched, "combine", tensors, first)


def for_hopper(q, cache, problem) -> bool:
    """Return whether ``hopper.latent`` can compute this step: 512 + 64 columns, one new token, nothing hidden."""
    here, page = card(q.device), cache.K.shape[2]
    fits = cache.latent and cache.K.shape[1] == 1 and (q.shape[2:], cache.V.shape[3]) == ((1, 576), 512)
    plain = problem.plain and problem.mask in (masks.full(), masks.causal()) and cache.scales is None
    plain = plain and not problem.natural
    copied = (cache.table is None or page % 64 == 0) and all(x.data_ptr() % 16 == 0 for x in (q, cache.K))
    copied = copied and all(stride % 8 == 0 for x in (q, cache.K) for stride in x.stride()[:3])
    measured = here is not None and here.capability == ON_HOPPER.capability and str(q.dtype) in ON_HOPPER.dtypes
    return measured and fits and plain and copied


def in_pairs(x) -> bool:
    """Return whether rows of 8-bit numbers can be read as rows of 16-bit ones."""
    return all(it % 2 == 0 for it in (*x.shape[3:], *x.stride()[:3], x.storage_offset()))


def check_cache(q: Tensor, cache: Cache, texts: int | None = None) -> None:
    """Raise if q [B, H, n, d] cannot be queries of this cache. texts: how many the cache has; B if None."""
    tensors = {"q": q} | {name: x for name, x in cache._asdict().items() if name in ("K", "V") or x is not None}
    check_dense(**tensors)
    check_device(**tensors)
    check_memory("decode", **tensors)
    check_no_gradient("decode", **tensors)
    if q.ndim != 4 or cache.K.ndim != 4 or cache.V.ndim != 4:
        raise ValueError(
            "q, K and V must have four dimensions, [B, H, n, d], [pages, Hk, page, d] and [pages, Hk, page, dv], "
            f"got {list(q.shape)}, {list(cache.K.shape)} and {list(cache.V.shape)}"
        )
    (B, H, _, d), (pages, Hk, page, dv) = q.shape, cache.V.shape
    if cache.K.shape != (pages, Hk, page, d) or Hk == 0 or H % Hk:
        raise ValueError(
            "expected q [B, H, n, d], K [pages, Hk, page, d] and V [pages, Hk, page, dv] with H a multiple of Hk, "
            f"got {list(q.shape)}, {list(cache.K.shape)} and {list(cache.V.shape)}"
        )
    check_widths(d, dv, cache.latent)
    _check_dtypes(q, cache)
    B = B if texts is None else texts
    if cache.table is None and pages != B:
        raise ValueError(f"without a table, K and V need a page for each of the {B} texts, got {pages}")
    for name, x, shape in (("table", cache.table, (B, None)), ("lengths", cache.lengths, (B,))):
        if x is None:
            continue
        if x.dtype != torch.int32 or x.ndim != len(shape) or len(x) != B:
            raise ValueError(
                f"{name} must be int32 with a row for each of the {B} texts, got {x.dtype} {list(x.shape)}"
            )
        _check_side_by_side(name, x)


def check_values(cache: Cache, mask=None) -> None:
    """Raise ValueError if lengths or a table on the CPU have wrong values; on a GPU, the host does not read them.

    mask: what tokens see; if it is neither full nor causal, pages outside of it may be gone, and are not checked.
    """
    lengths, table = cache.lengths, cache.table
    if lengths is not None and not ((lengths >= 0) & (lengths <= cache.most)).all():
        raise ValueError(f"lengths must be from 0 to {cache.most}, got {lengths.tolist()}")
    if table is None or mask not in (masks.full(), masks.causal()):
        return
    pages, page = len(cache.K), cache.K.shape[2]
    first = page * torch.arange(table.shape[1])  # [T], of each page
    used = table if lengths is None else table[first < lengths[:, None]]
    if ((used < 0) | (used >= pages)).any():
        raise ValueError(f"the table names pages from 0 to {pages - 1}, got {used.tolist()!s:.60}")


def _check_dtypes(q, cache):
    kv = cache.K.dtype
    if q.dtype not in DTYPES or cache.V.dtype != kv or kv not in (q.dtype, *EIGHT_BITS):
        raise TypeError(f"K and V must have q's dtype, or 8 bits both, got q {q.dtype}, K {kv}, V {cache.V.dtype}")
    _check_side_by_side("the columns of K", cache.K)
    _check_side_by_side("the columns of V", cache.V)
    if (kv in EIGHT_BITS) != (cache.scales is not None):
        found = "none" if cache.scales is None else list(cache.scales.shape)
        raise ValueError(f"a cache of 8 bits needs scales [2, pages, Hk, page], others need none, got {found} for {kv}")
    if kv in EIGHT_BITS:
        shape = (2, *cache.K.shape[:3])
        if cache.scales.shape != shape or cache.scales.dtype != torch.float32:
            raise ValueError(f"scales must be float32 of shape {list(shape)}, got {list(cache.scales.shape)}")
        _check_side_by_side("the scales of a page", cache.scales)
        if kv == torch.float8_e4m3fn and not float8.supported(q.device):
            raise ValueError("this GPU cannot convert float8 numbers: compute capability 8.9 can; use int8")


def _check_side_by_side(name, x):
    """Raise ValueError if numbers along the last dimension are apart in memory: kernels take their stride for 1."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ValueError(f"{name} must be side by side in memory, got strides {list(x.stride())}")
