"""``flash_attention``: the kernels as one differentiable torch operator."""

import functools
import itertools
import math

import torch
from torch import Tensor

from flashlab.kernels import dropout as dropping
from flashlab.kernels import masks, portable, scores, tiles
from flashlab.kernels import plan as plans
from flashlab.kernels.checks import (
    check_gradient,
    check_local,
    computes_operators,
    differentiate_once,
    differentiated,
    refuse,
    transformed,
)
from flashlab.kernels.configurations import check_kernel
from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.operator import Step
from flashlab.kernels.decode.operator import run as run_decode
from flashlab.kernels.device import DEVICE, stepped_around
from flashlab.kernels.plan import Plan
from flashlab.kernels.problem import (
    DTYPES,
    LONGEST,
    Problem,
    check,
    check_sink_values,
    check_sinks,
    scale_above_zero,
    scale_of,
)
from flashlab.machine.arguments import check_flag


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: masks.Window | masks.Rule | None = None,
    score: scores.Score | tuple[scores.Score, ...] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention, softmax(scale * Q K^T) V, exactly, without a tensor of size Nq x Nk in either pass.

    Args:
        q: queries [B, H, Nq, d].
        k: keys [B, Hk, Nk, d].
        v: values [B, Hk, Nk, dv]. All three have one dtype (float16, bfloat16 or float32) and one device; d and dv are
            1 to 256; H is a multiple of Hk, and query head h uses key/value head h // (H // Hk). Any strides are
            accepted; inputs are copied if rows do not start at multiples of 16 bytes, or the last stride is not 1.
        causal: query i sees the keys j <= i + Nk - Nq, aligned at the lower right: the queries are the last ones. This
            is short for mask=masks.causal().
        mask: a mask of ``flashlab.kernels.masks``, such as ``masks.window(left, right)``, or for a boolean tensor,
            ``masks.dense(seen)``. None: ``causal`` decides.
        score: a function of the scaled scores, from ``flashlab.kernels.scores``, such as ``scores.softcap(30)``, or a
            tuple of such functions, applied in its order. Slopes and biases get gradients.
        dropout: the probability, rounded to a multiple of 2^-16, with which each weight becomes 0. The others are
            scaled up.
        seed: 0 to 2^64 - 1; the same seed drops the same weights in every kernel. None: torch's generator draws one.
        sinks: [H], one extra score per head, which is added to the denominator of each row like the score of a key
            whose value is 0. It is finite, or -inf for a head without a sink. On a GPU, the host does not read sinks:
            NaN and +inf make the rows of their head NaN. Sinks get a gradient.
        scale: factor on the scores, 1/sqrt(d) if None. A number, without a gradient of its own.
        return_lse: also return the log-sum-exp of each row of scores, in natural logarithms. It is differentiable too.
        batch_invariant: O and lse of a text have the same bits whatever else is in the batch, since kernel and tiles
            are always those for a large batch. Gradients may differ; dropout is refused. ``decode`` does so with
            ``fixed_split``.
        kernel: "portable" for the kernels in Triton; "hopper" for those in Gluon, on compute capability 9.0; "decode"
            for few queries, whose keys are divided among programs; None for the fastest by measurement:
            ``configuration("forward", q, k, v, causal=causal)`` returns this choice and its reason.

    Returns:
        O [B, H, Nq, dv] in the dtype of q, or (O, lse) with lse [B, H, Nq] in float32. A row that sees no key has
        O = 0, lse = -inf (its sink, if there is one) and no gradient. Under a window, the query of such a row must be
        finite too: a NaN would reach the gradients of the keys in its tile. The same inputs give the same bits,
        gradients included, except for two sums, whose order varies: dQ in the Hopper kernels for up to 128 columns,
        and in all kernels the gradient of a broadcast bias. With ``torch.use_deterministic_algorithms(True)``
        other kernels compute this dQ, and the gradient of a bias takes the memory of [B, H, Nq, Nk] numbers.

    Only -inf hides a key: every other float32 number is a score. In 16 bits, without a score function and with a scale
    up to ln 2, a backward pass rebuilds the weights from lse in float32: scores of 1e5 give weights an error of up to
    1 %.

    Sums are kept in float32. Products of float32 inputs are true float32 products if
    ``torch.get_float32_matmul_precision()`` is "highest" (torch's default), and TF32 products otherwise.
    Under autocast, q, k and v are first cast to autocast's dtype.

    ``torch.compile`` keeps a call with a window at most (``causal``, ``masks.window``) in one graph. Calls with other
    masks, scores, sinks, dropout or batch_invariant interrupt the graph, so they fail with fullgraph=True.
    ``torch.func`` supports calls with a window at most.

    A mask remembers its lists of tiles. torch counts changes of the mask's tensors in place. After such a change the
    mask makes new lists, and the backward pass of an earlier call raises an error. torch does not count changes through
    NumPy, ``.data``, a kernel of your own or a CUDA graph: after one of these, create the mask again.

    Raises:
        TypeError, ValueError: an argument is not as described.
        NotImplementedError: a second derivative, a forward-mode derivative or ``torch.func.vmap``.

    Source: FlashAttention-2, Algorithms 1 and 2.
    """
    plain = batch_invariant is False and _at_most_a_window(mask, dropout, seed, score, sinks)
    return (attend if plain else _attend_outside_graphs)(
        q, k, v, causal=causal, mask=mask, score=score, dropout=dropout, seed=seed, sinks=sinks, scale=scale,
        return_lse=return_lse, batch_invariant=batch_invariant, kernel=kernel,
    )  # fmt: skip


def _at_most_a_window(mask, dropout, seed, *others):
    """Return whether a call has a window or no mask, and no other option: then it can be an operator of torch's."""
    window = mask is None or isinstance(mask, masks.Window)
    return window and _has_no_dropout(dropout, seed) and all(x is None for x in others)


def _has_no_dropout(dropout, seed):
    return type(dropout) in (int, float) and dropout == 0 and seed is None  # all else is checked in ``_plan_of``


def attend(
    q, k, v, *, causal=False, mask=None, score=None, dropout=0.0, seed=None, sinks=None, scale=None, return_lse=False,
    batch_invariant=False, kernel=None, texts=None,
):  # fmt: skip
    """Compute ``flash_attention``. texts: ``packed.Texts``, if q, k and v are one row of them."""
    if torch.is_autocast_enabled(DEVICE.type):  # dtypes may differ before this cast, not after; float64 stays
        narrow = torch.get_autocast_dtype(DEVICE.type)
        q, k, v = (x.to(narrow) if getattr(x, "dtype", None) in DTYPES else x for x in (q, k, v))
    check_flag("return_lse", return_lse)
    check_flag("batch_invariant", batch_invariant)
    compiling = torch.compiler.is_compiling() or torch.jit.is_tracing()
    kind = None
    if not compiling and _has_no_dropout(dropout, seed) and texts is None and not transformed():
        kind = plans.kind_of(q, k, v, causal, mask, score, sinks, scale, kernel, batch_invariant)
    if kind is not None and (plan := plans.find(kind, mask, q.device)) is not None:
        check_sink_values(sinks)  # a parameter may have changed since
        o, lse, _ = _run(q, k, v, plan)
        return (o, lse) if return_lse else o
    check(q, k, v)
    check_kernel(kernel)
    a_window = not batch_invariant and _at_most_a_window(mask, dropout, seed, score, sinks, texts)
    mask = masks.either(causal, mask)
    scale = scale_of(scale, q.shape[-1])
    inputs = q, k, v
    if scale <= 0:  # the kernels take the maximum before they scale, so their scale is positive
        q, scale = (-q, -scale) if scale < 0 else (q * 0, 1.0)
    dv = v.shape[-1]
    q, k, v = (tiles.pad_rows(x) for x in (q, k, v))
    if a_window and (compiling or any(map(computes_operators, (q, k, v)))):
        o, lse, _ = torch.ops.flashlab.attention(q, k, v, mask.left, mask.right, scale, kernel)
    else:
        plan = _plan_of(q, k, v, mask, scale, score, sinks, dropout, seed, kernel, texts, batch_invariant)
        if kind is not None and plan.problem.sinks is sinks and _as_passed(inputs, (q, k, v)):
            plans.keep(kind, plan)
        o, lse, _ = _run(q, k, v, plan)
    o = o if o.shape[-1] == dv else o[..., :dv]
    return (o, lse) if return_lse else o


def _as_passed(inputs, tensors):
    """Return whether the kernels take the inputs themselves, and no copies."""
    return all(x is y and tiles.ready(x) is x for x, y in zip(inputs, tensors, strict=True))


_attend_outside_graphs = stepped_around(
    "flash_attention with masks other than windows, scores, sinks, dropout, packed texts or batch_invariant"
)(attend)


def _plan_of(q, k, v, mask, scale, score, sinks, dropout, seed, kernel, texts, batch_invariant):
    """Return the ``Plan`` of a call, or raise."""
    if batch_invariant and not _has_no_dropout(dropout, seed):
        raise ValueError("batch_invariant=True takes no dropout: which weights drop depends on the place in the batch")
    drop, score = dropping.dropout(dropout, seed, q.device), scores.chain(score)
    mask = mask if texts is None else texts.apart(mask)
    sinks = check_sinks(sinks, q.shape[1], q.device)
    problem = Problem.of(q, k, v, mask, scale, score=score, sinks=sinks, dropout=drop, texts=texts)
    problem = problem._replace(batch_invariant=batch_invariant)
    if batch_invariant or not problem.plain:
        _check_more_than_a_window(problem, q, k, v)
    check_sink_values(sinks)
    mask.check(problem)
    if score is not None:
        scores.check(score, problem, any(map(differentiated, (q, k, v))))
    return Plan(problem, kernel)


def _run(q, k, v, plan):
    """Run a call as one step of autograd. Returns what ``_forward`` does."""
    score, sinks = plan.problem.score, plan.problem.sinks
    inputs = (q, k, v, sinks) if score is None else (q, k, v, sinks, *score.tensors)
    training = any(map(differentiated, inputs))
    if transformed():
        return _Transformed.apply(*inputs, plan, training)
    if training:
        return _Recorded.apply(*inputs, plan, training)
    return _forward(q, k, v, plan, training)  # without autograd, which takes a third of the host time


def _check_more_than_a_window(problem, q, k, v):
    """Raise where only windows are supported: the operator has no inputs for the tensors of masks and scores."""
    learned = [] if problem.score is None else problem.score.tensors
    others = [*problem.mask.tensors, *learned, *([] if problem.sinks is None else [problem.sinks])]
    for x in others:
        check_local(**{"a tensor of mask, score or sinks": x})
    if transformed() or torch.jit.is_tracing() or any(map(computes_operators, (q, k, v, *others))):
        where = "torch.func, torch.jit.trace and tensors that compute operators themselves (fake ones) support"
        without = "no other masks, scores, sinks, dropout, packed texts or batch_invariant"
        raise NotImplementedError(f"{where} windows at most: {without}")
    if max(problem.B, problem.H) > LONGEST:
        limit = f"with masks other than windows, scores, sinks or dropout, B and H are at most {LONGEST}"
        raise ValueError(f"{limit}, got {problem.B} and {problem.H}")


def _forward(q, k, v, plan, training=True):
    """Run the forward pass: return O, lse, and the rest of lse, None unless training needs it.

    The backward pass rebuilds the weights from lse. If lse were rounded to float32, all weights of a row would be wrong
    by the same factor. The rest is the part that this rounding loses.
    """
    problem = plan.problem
    o = q.new_empty(problem.B, problem.H, problem.Nq, problem.dv)
    lse = q.new_empty(problem.B, problem.H, problem.Nq, dtype=torch.float32)
    rest = torch.empty_like(lse) if training and problem.natural else None
    if o.numel() == 0 or problem.Nk == 0:
        lse.copy_(-math.inf if problem.sinks is None else problem.sinks[:, None])
        return o.zero_(), lse, rest if rest is None else rest.zero_()
    if (dim := _too_long(problem)) is not None:
        parts = zip(*(_split(x, problem, dim) for x in (q, k, v)), strict=True)
        results = [_forward(*x, _plan_of_part(x, plan), training) for x in parts]
        return tuple(None if x[0] is None else torch.cat(x, dim) for x in zip(*results, strict=True))
    q, k, v = (tiles.ready(x) for x in (q, k, v))
    choice = plan.choice("forward")
    if choice.implementation == "decode":
        cache, launched = Cache(k, v), plan.launched("decode", training)
        step = launched.get("step") or launched.setdefault("step", Step.of(q, cache, problem))
        run_decode(q, cache, step, out=(o, lse, rest))
    else:
        run, c = _kernels(choice.implementation).forward.run, choice.launches["forward"]
        run(o, lse, q, k, v, problem, c, rest=rest, launched=plan.launched("forward", training))
    return o, lse, rest


def gradients_of(do, dlse, q, k, v, o, lse, rest, plan, sums=()):
    """Run the backward pass. Return dQ, dK, dV and, with sinks, delta [B, H, Nq] or longer, else None.

    rest: the part of lse beyond float32, or None. sums: as for ``portable.backward.run``.
    """
    gradients, problem = _new_gradients(q, k, v), plan.problem
    if o.numel() == 0 or problem.Nk == 0:
        return *(x.zero_() for x in gradients), torch.zeros_like(lse) - (0 if dlse is None else dlse)
    if (dim := _too_long(problem)) is not None:
        parts = zip(*(_split(x, problem, dim) for x in (do, dlse, q, k, v, o, lse, rest)), strict=False)
        results = [gradients_of(*x, _plan_of_part(x[2:5], plan))[:3] for x in parts]
        return *(torch.cat(x, dim) for x in zip(*results, strict=True)), None
    q, k, v, o, do, lse = (tiles.ready(x) for x in (q, k, v, o, do, lse))
    dlse, rest = (None if x is None else tiles.ready(x) for x in (dlse, rest))
    learning = any(total is not None for total in sums)  # the sums are new in each pass, so no launch is kept
    choice = plan.choice("backward", learning)
    kernels = choice.implementation, *choice.launches
    kind = *kernels, dlse is None, rest is None, *(x.stride() for x in (q, k, v, o, do))
    options = {"rest": rest, "launched": {} if learning else plan.launched(*kind)}
    if choice.implementation == "portable":
        options["sums"] = sums
    run = _kernels(choice.implementation).backward.run
    return *gradients, run(gradients, (do, dlse), (q, k, v, o, lse), problem, choice.launches, **options)


def _plan_of_part(tensors, plan):
    """Return the ``Plan`` of some of the batches or heads of a call with a window at most."""
    mask, scale, invariant = plan.problem.mask, plan.problem.scale, plan.problem.batch_invariant
    return Plan(Problem.of(*tensors, mask, scale, batch_invariant=invariant), plan.kernel)


def _new_gradients(q, k, v):
    """Allocate dQ, dK and dV."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]


@functools.cache
def _kernels(implementation):
    """Return the package of an implementation."""
    if implementation == "portable":
        return portable
    from flashlab.kernels import hopper  # late: Gluon is slow to import, and only Hopper needs it

    return hopper


def _too_long(problem):
    """Return the dimension (0: batches, 1: heads) that exceeds a grid along y or z, or None."""
    if problem.B > LONGEST:
        return 0
    return 1 if problem.H > LONGEST else None


def _split(x, problem, dim):
    """Split x along batches or heads into parts of whole groups with at most LONGEST query heads."""
    if x is None:
        return itertools.repeat(None)
    group = problem.group if dim == 1 else 1
    per_key_head = group if x.shape[dim] == problem.H else 1
    return x.split(LONGEST // group * per_key_head if dim == 1 else LONGEST, dim)


class _Recorded(torch.autograd.Function):
    """A call as one step of autograd. torch needs a third of the time that it needs for ``_Transformed``."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, plan, training = inputs
        output = _forward(*tensors[:3], plan, training)
        _Recorded.save(ctx, inputs, output)
        return output

    @staticmethod
    def save(ctx, inputs, output):
        *tensors, ctx.plan, _ = inputs
        # Masks and score functions read their tensors again in the backward pass; autograd raises if they changed.
        ctx.save_for_backward(*output, *tensors, *ctx.plan.problem.mask.tensors)
        if output[2] is not None:
            ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)  # None instead of zeros where an output is not used

    @staticmethod
    def backward(ctx, do, dlse, _):
        return differentiate_once(_gradients, ctx, do, dlse)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError("flash_attention has no forward-mode derivative: use torch.func.grad or autograd")


class _Transformed(_Recorded):
    """A call as one step of ``torch.func``."""

    setup_context = _Recorded.save

    @staticmethod
    def forward(*inputs):
        *tensors, plan, training = inputs
        return _forward(*tensors[:3], plan, training)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        raise NotImplementedError("flash_attention has no rule for torch.func.vmap: use its dimensions B and H instead")


@stepped_around("the backward pass of flash_attention, called from compiled code,")
def _gradients(ctx, do, dlse, o, lse, rest, q, k, v, sinks, *tensors):
    check_gradient(do)
    problem = ctx.plan.problem
    steps = [] if problem.score is None else problem.score.steps
    needs = iter(ctx.needs_input_grad[4:])
    learns = [any([next(needs) for _ in step.tensors]) for step in steps]
    sums = [step.sums(problem) if it else None for step, it in zip(steps, learns, strict=True)]
    *gradients, delta = gradients_of(do, dlse, q, k, v, o, lse, rest, ctx.plan, sums)
    dsinks = _gradient_of_sinks(sinks, lse, rest, delta) if ctx.needs_input_grad[3] else None
    others = [
        None if total is None else step.gradient(total).to(x.dtype)
        for step, total in zip(steps, sums, strict=True)
        for x in step.tensors
    ]
    return *gradients, dsinks, *others, None, None


def _gradient_of_sinks(sinks, lse, rest, delta):
    """Return the gradient of the sinks [H]: -sum over rows of e^(s - lse) * delta, delta [B, H, Nq_padded]."""
    power = sinks.float()[:, None] - lse  # [B, H, Nq]
    share = torch.exp(power if rest is None else power - rest).nan_to_num(0)  # [B, H, Nq]      nan: -inf - (-inf)
    return -(share * delta[..., : lse.shape[-1]]).sum((0, 2)).to(sinks.dtype)


# Calls with a window at most, as operators of torch's library: torch.compile, traces and fake tensors take each as one
# step. torch.func refuses operators with a derivative, so it has ``_Transformed``.
_OPTIONS = "int? left, int? right, float scale, str? kernel"
torch.library.define("flashlab::attention", f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "flashlab::attention_backward",
    "(Tensor dO, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor rest, "
    f"{_OPTIONS}) -> (Tensor dQ, Tensor dK, Tensor dV)",
)


def _operator(q, k, v, left, right, scale, kernel):
    o, lse, rest = _forward(q, k, v, _plan(q, k, v, left, right, scale, kernel))
    return o, lse, lse.new_empty(0) if rest is None else rest  # an operator returns tensors


def _operator_backward(do, dlse, q, k, v, o, lse, rest, left, right, scale, kernel):
    rest = rest if rest.numel() else None
    return gradients_of(do, dlse, q, k, v, o, lse, rest, _plan(q, k, v, left, right, scale, kernel))[:3]


def _plan(q, k, v, left, right, scale, kernel):
    """Return the ``Plan`` of an operator's arguments, or raise: the operators can be called without ``attend``."""
    mask = masks.Window(left, right)
    kind = plans.kind_of(q, k, v, False, mask, None, None, scale, kernel)
    if kind is not None and (plan := plans.find(kind, mask, q.device)) is not None:
        return plan
    check(q, k, v)
    if any(tiles.pad_rows(x) is not x for x in (q, k, v)):
        sizes = f"d = {q.shape[-1]} and dv = {v.shape[-1]} in {q.dtype}"
        raise ValueError(f"the operator needs rows of whole 16 bytes, got {sizes}: call flash_attention, which pads")
    plan = Plan(Problem.of(q, k, v, mask, scale_above_zero(scale, q.shape[-1])), kernel)
    mask.check(plan.problem)
    if kind is not None and _as_passed((q, k, v), (q, k, v)):
        plans.keep(kind, plan)
    return plan


def _shapes(q, k, v, left, right, scale, kernel):
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    natural = Problem.of(q, k, v, masks.full(), scale).natural
    return q.new_empty(*q.shape[:3], v.shape[3]), lse, torch.empty_like(lse) if natural else lse.new_empty(0)


def _shapes_backward(do, dlse, q, k, v, *others):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output):
    *qkv, left, right, scale, kernel = inputs
    ctx.options = left, right, scale, kernel
    ctx.save_for_backward(*output, *qkv)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dlse, _):
    return differentiate_once(_gradients_of_operator, ctx, do, dlse)


def _gradients_of_operator(ctx, do, dlse, o, lse, rest, q, k, v):
    return *torch.ops.flashlab.attention_backward(do, dlse, q, k, v, o, lse, rest, *ctx.options), None, None, None, None


torch.library.impl("flashlab::attention", "default", _operator)
torch.library.impl("flashlab::attention_backward", "default", _operator_backward)
torch.library.register_fake("flashlab::attention", _shapes)
torch.library.register_fake("flashlab::attention_backward", _shapes_backward)
torch.library.register_autograd("flashlab::attention", _differentiate, setup_context=_save)
torch.library.register_autograd("flashlab::attention_backward", refuse)
