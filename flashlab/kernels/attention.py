"""``flash_attention``: the kernels as one differentiable torch operator."""

import torch
from torch import Tensor

from flashlab.kernels import dropout as dropping
from flashlab.kernels import library, masks, scores, tiles
from flashlab.kernels import plan as plans
from flashlab.kernels.checks import (
    check_local,
    computes_operators,
    differentiated,
    transformed,
)
from flashlab.kernels.configurations import check_kernel
from flashlab.kernels.device import DEVICE, stepped_around
from flashlab.kernels.passes import forward
from flashlab.kernels.plan import Plan
from flashlab.kernels.problem import (
    DTYPES,
    LONGEST,
    Problem,
    check,
    check_sink_values,
    check_sinks,
    scale_of,
)
from flashlab.kernels.recorded import Recorded, Transformed
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
        o, lse, _ = library.attention(q, k, v, mask.left, mask.right, scale, kernel)
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
    """Run a call as one step of autograd. Returns what ``passes.forward`` does."""
    score, sinks = plan.problem.score, plan.problem.sinks
    inputs = (q, k, v, sinks) if score is None else (q, k, v, sinks, *score.tensors)
    training = any(map(differentiated, inputs))
    if transformed():
        return Transformed.apply(*inputs, plan, training)
    if training:
        return Recorded.apply(*inputs, plan, training)
    return forward(q, k, v, plan, training)  # without autograd, which takes a third of the host time


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
