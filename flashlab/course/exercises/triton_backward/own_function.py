"""The learner's own kernels under autograd: ``function``, a ``torch.autograd.Function`` of one head."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from flashlab.course.exercises.triton_backward.keys_and_values import loop_over_queries
from flashlab.grading.draws import lengths
from flashlab.grading.exercise import Case, Exercise, Mistake, edited
from flashlab.kernels import DEVICE, triton
from flashlab.reference import masks, recomputation
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.rules import Rules


class Kernels(NamedTuple):
    """Launches of the kernels of one head, on contiguous tensors of float32."""

    forward: Callable  # (Q, K, V, causal) -> O [Nq, d], lse [Nq]
    delta: Callable  # (O, dO) -> delta [Nq]
    query_gradients: Callable  # (Q, K, V, dO, lse, delta, causal) -> dQ [Nq, d]
    key_value_gradients: Callable  # (Q, K, V, dO, lse, delta, causal) -> dK [Nk, d], dV [Nk, d]


class AttentionOfOneHead(torch.autograd.Function):
    """Attention of one head, Q [Nq, d], K and V [Nk, d], by the launches in ``kernels``."""

    @staticmethod
    def forward(ctx, Q, K, V, causal, kernels):
        """Return O [Nq, d]."""
        Q, K, V = Q.contiguous(), K.contiguous(), V.contiguous()
        O, lse = kernels.forward(Q, K, V, causal)
        ctx.save_for_backward(Q, K, V, O, lse)
        ctx.causal, ctx.kernels = causal, kernels
        return O

    @staticmethod
    def backward(ctx, dO):
        """Return a gradient per argument of ``forward``; None for what is no tensor."""
        Q, K, V, O, lse = ctx.saved_tensors
        dO = dO.contiguous()  # the gradient of a sum is one number, expanded
        delta = ctx.kernels.delta(O, dO)  # [Nq]
        dQ = ctx.kernels.query_gradients(Q, K, V, dO, lse, delta, ctx.causal)
        dK, dV = ctx.kernels.key_value_gradients(Q, K, V, dO, lse, delta, ctx.causal)
        return dQ, dK, dV, None, None


def kernels_of_one_head(launch, forward, delta, dQ, add_rows, tile=128):
    """Return the ``Kernels`` that launch a learner's kernels.

    launch, forward: the wrapper and the kernel of the forward pass, which multiplies float16: inputs are rounded to it.
    delta, dQ, add_rows: of the backward pass. tile: rows of queries, and of keys.
    """

    def empty(N, *shape):
        return torch.empty(N, *shape, dtype=torch.float32, device=DEVICE)

    def run_forward(Q, K, V, causal):
        return launch(forward, Q.half(), K.half(), V.half(), causal)

    def run_delta(O, dO):
        (N, dv), found = O.shape, empty(len(O))
        delta[(triton.cdiv(N, tile),)](O, dO, found, N, dv, tile, triton.next_power_of_2(dv))
        return found

    def run_query_gradients(Q, K, V, dO, lse, delta, causal):
        (Nq, d), found = Q.shape, empty(*Q.shape)
        dQ[(triton.cdiv(Nq, tile),)](Q, K, V, dO, lse, delta, found, Nq, len(K), d**-0.5, d, tile, tile, causal)
        return found

    def run_key_value_gradients(Q, K, V, dO, lse, delta, causal):
        (Nk, d), dK, dV = K.shape, empty(*K.shape), empty(*V.shape)
        tensors, sizes = (Q, K, V, dO, lse, delta, dK, dV), (len(Q), Nk, d**-0.5, tile, tile, d)
        loop_over_queries[(triton.cdiv(Nk, tile),)](add_rows, *tensors, *sizes, causal)
        return dK, dV

    return Kernels(run_forward, run_delta, run_query_gradients, run_key_value_gradients)


def of_all_heads(function, kernels):
    """Return an attention (Q, K, V, *, causal) -> O on [B, H, N, d] that applies a ``Function`` of one head to each."""

    def attend(Q, K, V, *, causal):
        heads = [
            function.apply(*(X[b, h].half().float() for X in (Q, K, V)), causal, kernels)
            for b in range(Q.shape[0])
            for h in range(Q.shape[1])
        ]
        return torch.stack(heads).view(Q.shape)

    return attend


# The check: launches of the same names, in numpy


def _arrays(*tensors):
    """Return contiguous tensors as arrays in float64. Raises ValueError if one is not contiguous."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("a tensor is not contiguous: its method contiguous() returns a copy that is")
    return [tensor.detach().cpu().double().numpy() for tensor in tensors]


def _tensors(*arrays):
    return tuple(torch.tensor(array, dtype=torch.float32, device=DEVICE) for array in arrays)


def _dense_forward(Q, K, V, causal):
    return _tensors(*attention(*_arrays(Q, K, V), mask=_mask(causal), return_lse=True))


def _dense_delta(O, dO):
    O, dO = _arrays(O, dO)
    return _tensors(recomputation.delta(dO, O))[0]


def _dense_gradients(Q, K, V, dO, lse, delta, causal):
    Q, K, V, dO, lse, delta = _arrays(Q, K, V, dO, lse, delta)
    rows, cols, shape = slice(0, len(Q)), slice(0, len(K)), (len(Q), len(K))
    rules = Rules(_mask(causal))
    P = recomputation.rebuild(rules.scores(Q, K, rows, cols, shape), lse)  # [Nq, Nk]
    return _tensors(*recomputation.gradients(Q, K, V, dO, P, delta, rules.scale_for(Q)))


def _mask(causal):
    return masks.causal() if causal else None


DENSE = Kernels(
    _dense_forward, _dense_delta, lambda *args: _dense_gradients(*args)[0], lambda *args: _dense_gradients(*args)[1:]
)


class Both(NamedTuple):
    """The results of both passes."""

    O: np.ndarray  # [Nq, d]
    dQ: np.ndarray  # [Nq, d]
    dK: np.ndarray  # [Nk, d]
    dV: np.ndarray  # [Nk, d]


def _leaves(gap, *arrays):
    """Return arrays [N, d] as tensors that require gradients, with rows d + ``gap`` elements apart."""
    padded = (torch.tensor(np.pad(X, ((0, 0), (0, gap))), device=DEVICE)[:, : X.shape[1]] for X in arrays)
    return [X.requires_grad_() for X in padded]


def _launch(attempt, Q, K, V, dO, causal, gap):
    if not (isinstance(attempt, type) and issubclass(attempt, torch.autograd.Function)):
        raise TypeError("expected a class that inherits from torch.autograd.Function")
    leaves = _leaves(gap, Q, K, V)
    O = attempt.apply(*leaves, causal, DENSE)
    dO = torch.tensor(dO, device=DEVICE).expand(O.shape)  # the gradient of a sum is one number
    gradients = torch.autograd.grad(O, leaves, dO)
    return Both(*(X.detach().cpu().numpy() for X in (O, *gradients)))


def _exact(Q, K, V, dO, causal, gap, backward=attention_backward):
    dO = np.broadcast_to(dO, (len(Q), V.shape[1]))
    return Both(attention(Q, K, V, mask=_mask(causal)), *backward(Q, K, V, dO, mask=_mask(causal)))


SUM = "(P * dP).sum(-1, keepdims=True)"  # delta
_delta_rounded = partial(  # float32 rounds delta, and where a query sees one key, dP − delta is that rounding
    _exact, backward=edited(attention_backward, SUM, f"{SUM} + 2.0**-23 * abs(P * dP).sum(-1, keepdims=True)")
)


IN_CTX = (
    "the numbers are right, but it keeps tensors that autograd does not watch: when one was changed in place before "
    "the backward pass, the gradient was wrong without an error. Keep tensors with ctx.save_for_backward."
)


def _watched(attempt, Q, K, V, dO, causal, gap):
    """Law: where an input is changed between the passes, the backward pass raises, or uses a copy."""
    kept, changed = (_query_gradients_after(attempt, factor, Q, K, V, dO, causal, gap) for factor in (1, 2))
    return None if changed is None or torch.equal(kept, changed) else IN_CTX


def _query_gradients_after(attempt, factor, Q, K, V, dO, causal, gap):
    """Return dQ where V was multiplied by a factor between the passes; None if that raises."""
    leaves = _leaves(gap, Q, K, V)
    O = attempt.apply(*leaves, causal, DENSE)
    if factor != 1:
        with torch.no_grad():
            leaves[2].mul_(factor)
    try:
        return torch.autograd.grad(O, leaves[0], torch.tensor(dO, device=DEVICE).expand(O.shape))[0]
    except RuntimeError:
        return None


IN_AN_ATTRIBUTE = (
    "the numbers are right, but a tensor is an attribute of ctx. Keep tensors with ctx.save_for_backward, which "
    "notices a change and frees them after the backward pass."
)


def _saved(attempt, Q, K, V, dO, causal, gap):
    """Law: no attribute of ctx holds a tensor."""
    ctx = attempt.apply(*_leaves(gap, Q, K, V), causal, DENSE).grad_fn
    return IN_AN_ATTRIBUTE if _holds_a_tensor(list(vars(ctx).values())) else None


def _holds_a_tensor(value):
    if isinstance(value, list | tuple | dict):
        return any(map(_holds_a_tensor, value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.Tensor)


OUTSIDE_CTX = (
    "the numbers are right, but a second call before the backward pass changes the gradients of the first: a model "
    "calls the function once per layer. Keep all that backward needs in ctx, which belongs to one call."
)
WITHOUT_GRADIENTS = DENSE._replace(query_gradients=lambda Q, *others: 0 * Q,
                                   key_value_gradients=lambda Q, K, V, *others: (0 * K, 0 * V))  # fmt: skip


def _apart(attempt, Q, K, V, dO, causal, gap):
    """Law: a second call, with other tensors, mask and kernels, leaves the gradients of the first as they were."""
    leaves, dO = _leaves(gap, Q, K, V), torch.tensor(dO, device=DEVICE)
    first = attempt.apply(*leaves, causal, DENSE)
    attempt.apply(*_leaves(gap, Q + 1, K - 1, V + 1), not causal, WITHOUT_GRADIENTS)
    found = torch.autograd.grad(first, leaves, dO.expand(first.shape))
    alone = torch.autograd.grad(attempt.apply(*leaves, causal, DENSE), leaves, dO.expand(first.shape))
    return None if all(map(torch.allclose, found, alone)) else OUTSIDE_CTX


def _inputs(rng, Nq, Nk, d, causal, one_number=False, gap=0):
    Q, K, V = (rng.normal(size=(N, d)).astype(np.float32) for N in (Nq, Nk, Nk))
    return Q, K, V, np.array(rng.normal(size=() if one_number else (Nq, d)), np.float32), causal, gap


def _draw(rng, size):
    Nq, Nk, d = lengths(rng, size, 3)
    return _inputs(rng, Nq, Nk, d, bool(rng.integers(2)), rng.random() < 0.3, int(rng.choice([0, 0, 3])))


def _edge(property, *args):
    return Case(property, _inputs(np.random.default_rng(12), *args))


function = Exercise(
    reference=AttentionOfOneHead,
    launch=_launch,
    exact=_exact,
    edges=(
        _edge("two queries, two keys", 2, 2, 2, False),
        _edge("more keys than queries, and inputs that are not contiguous", 2, 4, 3, False, False, 1),
        _edge("a causal mask", 3, 3, 2, True),
        _edge("the gradient of a sum: dO is one number, expanded", 2, 3, 2, False, True),
        _edge("causal, with queries that see no key", 4, 2, 2, True),
    ),
    draw=_draw,
    draws=30,
    laws=(_watched, _apart, _saved),
    sways=True,
    rounded=(_delta_rounded,),
    mistakes=(
        Mistake("returned a gradient for tensors only.",
                "backward returns one per argument of forward: None for causal and for kernels.",
                "return dQ, dK, dV, None, None", "return dQ, dK, dV"),
        Mistake("exchanged dK and dV.", "Gradients come back in the order of forward's arguments.",
                "return dQ, dK, dV,", "return dQ, dV, dK,"),
        Mistake("passed dO as it came: if the loss is a sum, dO is one number, expanded, and not contiguous.",
                "Call dO.contiguous() first.", "dO = dO.contiguous()", "dO = dO"),
        Mistake("forgot the mask in backward.", "Keep causal in ctx, and pass it to both gradients.",
                "ctx.causal)\n        dK", "False)\n        dK"),
        Mistake("computed delta from O alone.", "delta is the row sum of dO ∘ O.", "delta(O, dO)", "delta(O, O)"),
        Mistake("left delta out.", "Both gradients take it.", "ctx.kernels.delta(O, dO)", "torch.zeros_like(lse)"),
    ),
    level=2,
    minutes=15,
    hints=(
        "What does backward need that is not in dO? forward saves it: tensors with ctx.save_for_backward, the rest "
        "as attributes of ctx.",
        "backward: take the five tensors from ctx.saved_tensors, then delta, then dQ, then dK and dV, each by one call "
        "of ctx.kernels.",
        "Return dQ, dK, dV, None, None: one per argument of forward. And dO.contiguous() before the first call.",
    ),
)  # fmt: skip
