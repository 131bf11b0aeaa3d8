"""The two passes of a call by its plan: the launches, in parts where batch or heads are longer than a grid."""

import functools
import itertools
import math

import torch

from flashlab.kernels import portable, tiles
from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.operator import Step
from flashlab.kernels.decode.operator import run as run_decode
from flashlab.kernels.plan import Plan
from flashlab.kernels.problem import LONGEST, Problem


def forward(q, k, v, plan, training=True):
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
        results = [forward(*x, _plan_of_part(x, plan), training) for x in parts]
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
