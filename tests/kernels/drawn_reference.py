"""A call of attention in numpy in float64, text by text, and the comparison of its results with the kernels'.

O, lse and every gradient may be off by twice the error of torch's plain computation in the same dtype, plus a rounding
of what is added up: where a sum is 0 by luck, or a single key has all the weight, the plain computation has no error.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from flashlab.kernels import masks, scores
from flashlab.reference.dropout import Dropout


class Mask(NamedTuple):
    """A mask for the kernels, and ``seen``, the same in numpy.

    seen: a function of a text b, queries i [Nq, 1], keys j [1, Nk], and the own key of each query [Nq, 1].
    """

    name: str
    kernels: masks.Window | masks.Rule
    seen: Callable

    def __and__(self, other):
        both = lambda *where: self.seen(*where) & other.seen(*where)  # noqa: E731
        return Mask(f"({self.name} & {other.name})", self.kernels & other.kernels, both)

    def __or__(self, other):
        either = lambda *where: self.seen(*where) | other.seen(*where)  # noqa: E731
        return Mask(f"({self.name} | {other.name})", self.kernels | other.kernels, either)


class Step(NamedTuple):
    """A score function for the kernels, its kind, and its number or tensor x, which broadcasts to [B, H, Nq, Nk]."""

    name: str
    kernels: scores.Score
    kind: str
    x: float | torch.Tensor
    leaf: torch.Tensor | None = None  # the tensor as the call takes it, if it may get a gradient


@dataclass
class Case:
    """A call, and the place of each of its texts in the arguments and results."""

    name: str
    run: Callable  # -> O, lse
    tensors: dict  # Q, and K and V unless the call decodes, as the call takes them
    places: list  # of each text: its batch, and slices of its queries and keys
    mask: Mask
    scale: float
    plain: torch.dtype  # of the plain computation, whose errors are compared
    of_lse: torch.dtype = torch.float32  # the same for lse
    packed: bool = False
    keys: Callable | None = None  # of a call that decodes: the number of a text -> its K and V, in float64
    steps: tuple = ()
    sinks: torch.Tensor | None = None
    dropout: float = 0.0
    seed: int = 0
    tile: tuple = ()  # in the interpreter
    loss: tuple = ("O", "lse")  # the results that the loss depends on
    out: torch.dtype | None = None  # of O, if not that of Q
    poison: tuple | None = None  # (tensor or "dO", text, head, place, value): what is not finite

    def learned(self):
        """Return the tensors that get a gradient, by name; those of steps by number."""
        tensors = {**self.tensors, "sinks": self.sinks, **{n: step.leaf for n, step in enumerate(self.steps)}}
        return {name: x for name, x in tensors.items() if x is not None and x.requires_grad}

    def part(self, x, name, t):
        """Return text t's part of x, [H, Nq, ..] or [Hk, Nk, ..]. x has the shape of the tensor called ``name``."""
        b, queries, keys = self.places[t]
        if isinstance(name, int):  # of a step
            return x[t % len(x)][:, : queries.stop - queries.start, : keys.stop - keys.start]
        if name == "sinks":
            return x
        if self.packed:
            return (x if name == "lse" else x.swapaxes(0, 1))[:, keys if name in "KV" else queries]
        return x[b]

    def pairs(self, t, H):
        """Return which keys the queries of text t see, and the factors of dropout: [H, Nq, Nk] each."""
        b, *spans = self.places[t]
        Nq, Nk = (x.stop - x.start for x in spans)
        seen, Z = np.zeros((H, Nq, Nk), bool), np.ones((H, Nq, Nk))
        if seen.size:
            i, j = np.ogrid[:Nq, :Nk]
            seen |= self.mask.seen(t, i, j, i + Nk - Nq)
        if seen.size and self.dropout:
            Z = np.stack([Dropout(self.dropout, self.seed, h, b).tile(*spans, np.float64) for h in range(H)])
        return seen, Z

    def spoiled(self, t, H, Hk):
        """Return which rows, and which keys, of text t may get NaN from ``poison``: [H, Nq], [Hk, Nk]."""
        seen = self.pairs(t, H)[0]  # [H, Nq, Nk]
        rows, keys = np.zeros(seen.shape[:2], bool), np.zeros((Hk, seen.shape[2]), bool)
        if self.poison and self.poison[1] == t:
            name, _, head, place, _ = self.poison
            (keys if name in "KV" else rows)[head, place] = True
            groups = keys.repeat(H // Hk, 0)[:, None]  # [H, 1, Nk]
            rows |= (seen & groups).any(-1)
            keys |= (seen & rows[..., None]).any(1).reshape(Hk, H // Hk, -1).any(1)
        return rows, keys

    def inputs(self, t, by_name):
        """Return Q, K, V, the steps as pairs, and the sinks of text t, from arrays or tensors by name."""
        Q = self.part(by_name["Q"], "Q", t)
        K, V = self.keys(t) if self.keys else (self.part(by_name[name], name, t) for name in "KV")
        parts = [self.part(by_name[n], n, t) if n in by_name else step.x for n, step in enumerate(self.steps)]
        steps = [(step.kind, x) for step, x in zip(self.steps, parts, strict=True)]
        return Q, K, V, steps, by_name.get("sinks", np.full(len(Q), -np.inf))


def apply(kind, S, x, distance):
    """Return scores after a step, in numpy or torch."""
    if kind == "softcap":
        return x * (np if isinstance(S, np.ndarray) else torch).tanh(S / x)
    return S - x * distance if kind == "alibi" else S + x if kind == "bias" else S * x


def slope(kind, S, x):
    """Return the derivative of ``apply`` by S."""
    return np.cosh(np.minimum(np.abs(S / x), 350)) ** -2 if kind == "softcap" else x if kind == "custom" else 1


def exact(Q, K, V, steps, sinks, dO, dlse, seen, Z, scale, eps):
    """Return O, lse and all gradients by name, and the sums of the absolute values of their terms.

    Q [H, Nq, d], K [Hk, Nk, d], V [Hk, Nk, dv], sinks [H], dO [H, Nq, dv], dlse [H, Nq], in float64; steps: kinds, and
    numbers or arrays that broadcast to [H, Nq, Nk]; seen, Z [H, Nq, Nk]. eps: that of float32 over that of the
    dtype. Scores and lse are in float32 for every dtype; the sums include the effect of their roundings on weights.
    """
    Hk, Nk, Nq = *K.shape[:2], Q.shape[1]
    distance = abs(np.arange(Nq)[:, None] + Nk - Nq - np.arange(Nk))  # [Nq, Nk]
    K, V = (np.repeat(x, len(Q) // Hk, 0) for x in (K, V))  # [H, Nk, d], [H, Nk, dv]
    S_of = [scale * Q @ K.mT]  # before and after each step, [H, Nq, Nk] each
    for kind, x in steps:
        S_of.append(apply(kind, S_of[-1], x, distance))
    S = np.where(seen, S_of[-1], -np.inf)  # [H, Nq, Nk]
    m = np.maximum(S.max(-1, initial=-np.inf), sinks[:, None])  # [H, Nq]
    m = np.where(m == -np.inf, 0, m)
    P, share = np.exp(S - m[..., None]), np.exp(sinks[:, None] - m)  # [H, Nq, Nk], [H, Nq]
    l = P.sum(-1) + share  # [H, Nq]
    lse, l = m + np.log(l), np.where(l == 0, 1, l)
    P, share = P / l[..., None], share / l
    O = P * Z @ V  # [H, Nq, dv]
    terms = abs(scale * Q) @ abs(K.mT)  # [H, Nq, Nk]
    lse_size = 1 + abs(m) + abs(np.log(l)) + terms.max(-1, initial=0)  # [H, Nq]
    P_size = P * (1 + 4 * eps * lse_size[..., None])  # [H, Nq, Nk]
    delta = (dO * O).sum(-1) - dlse  # [H, Nq]
    dS = P * (dO @ V.mT * Z - delta[..., None])  # [H, Nq, Nk]
    values = {"O": O, "lse": lse, "V": (P * Z).mT @ dO, "sinks": -(share * delta).sum(-1)}
    sizes = {"O": P_size * Z @ abs(V), "lse": 4 * lse_size, "V": (P_size * Z).mT @ abs(dO)}
    delta = (abs(dO) * sizes["O"]).sum(-1) + abs(dlse)
    sizes["sinks"] = (share * (1 + 4 * eps * lse_size) * delta).sum(-1)
    size = P_size * (abs(dO) @ abs(V.mT) * Z + delta[..., None])  # of dS, [H, Nq, Nk]
    for n, (kind, x) in reversed([*enumerate(steps)]):
        factor = -distance if kind == "alibi" else 1
        values[n], sizes[n] = dS * factor, size * abs(factor)
        dS, size = dS * slope(kind, S_of[n], x), size * abs(slope(kind, S_of[n], x))
    values |= {"Q": scale * dS @ K, "K": scale * dS.mT @ Q}
    sizes |= {"Q": abs(scale) * size @ abs(K), "K": abs(scale) * size.mT @ abs(Q)}
    for x in (values, sizes):
        x |= {name: x[name].reshape(Hk, len(Q) // Hk, *x[name].shape[1:]).sum(1) for name in "KV"}
    return values, sizes


def plain(Q, K, V, steps, sinks, seen, Z, scale):
    """Return O and lse as ``exact`` has them, computed by torch in the dtype of Q."""
    group, Nq, Nk = len(Q) // len(K), Q.shape[1], K.shape[1]
    distance = (torch.arange(Nq)[:, None] + Nk - Nq - torch.arange(Nk)).abs().to(Q)  # [Nq, Nk]
    S = scale * (Q @ K.repeat_interleave(group, 0).mT)  # [H, Nq, Nk]
    for kind, x in steps:
        S = apply(kind, S, x if kind == "softcap" else x.to(S), distance)
    sinks = torch.as_tensor(sinks).to(S)[:, None, None].expand(*S.shape[:2], 1)
    S = torch.cat([S.masked_fill(~seen, -math.inf), sinks], -1)  # [H, Nq, Nk + 1]
    m = S.detach().amax(-1, keepdim=True)  # [H, Nq, 1]
    m = m.masked_fill(m == -math.inf, 0)
    P = (S - m).exp()  # [H, Nq, Nk + 1]
    l = P.sum(-1, keepdim=True)  # [H, Nq, 1]
    lse = torch.where(l == 0, -math.inf, m + l.masked_fill(l == 0, 1).log())
    P = P / l.masked_fill(l == 0, 1)
    return P[..., :-1] * Z.to(P) @ V.repeat_interleave(group, 0), lse[..., 0]


def in_numpy(x):
    """Return a tensor in float64."""
    return x.detach().cpu().double().numpy()


def expected(case, results, dO, dlse):
    """Return both results of ``exact`` for all texts together, with the names and shapes of ``results``."""
    shapes = {name: (case.steps[name].x if isinstance(name, int) else x).shape for name, x in results.items()}
    totals = [{name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(2)]
    by_name, dO, dlse = {name: in_numpy(x) for name, x in tensors_by_name(case).items()}, in_numpy(dO), in_numpy(dlse)
    for t in range(len(case.places)):
        inputs = case.inputs(t, by_name)
        incoming = case.part(dO, "O", t), case.part(dlse, "lse", t)
        with np.errstate(all="ignore"):
            eps = torch.finfo(torch.float32).eps / torch.finfo(case.plain).eps
            of_text = exact(*inputs, *incoming, *case.pairs(t, len(inputs[0])), case.scale, eps)
        for total, x in zip(totals, of_text, strict=True):
            for name in total:
                there = case.part(total[name], name, t)
                there += x[name].sum(tuple(n for n, size in enumerate(there.shape) if size == 1), keepdims=True)
    return [{name: x.reshape(results[name].shape) for name, x in total.items()} for total in totals]


def tensors_by_name(case, leaves=None):
    """Return all tensors by name, those of steps as they broadcast. leaves replace tensors of the same names.

    Q, K and V have 0 in place of NaN and infinities.
    """
    tensors = {name: x.detach().nan_to_num(0.0, 0.0, 0.0) for name, x in case.tensors.items()} | (leaves or {})
    for n, step in enumerate(case.steps):
        if isinstance(step.x, torch.Tensor):
            tensors[n] = tensors[n].view(step.x.shape) if n in tensors else step.x.detach()
    return tensors if case.sinks is None else {"sinks": case.sinks.detach(), **tensors}


def in_torch(case, leaves, results, dtype):
    """Return O and lse as torch computes them in a dtype."""
    by_name, device = tensors_by_name(case, leaves), case.tensors["Q"].device
    whole = {name: torch.zeros_like(results[name], dtype=dtype) for name in ("O", "lse")}
    for t in range(len(case.places)):
        *tensors, steps, sinks = case.inputs(t, by_name)
        tensors = [torch.as_tensor(x).to(device, dtype) for x in tensors]
        pairs = (torch.as_tensor(x).to(device) for x in case.pairs(t, len(tensors[0])))
        for name, x in zip(whole, plain(*tensors, steps, sinks, *pairs, case.scale), strict=True):
            case.part(whole[name], name, t).copy_(x)
    return whole


def results_of(case, layouts=(lambda x: x,), seed=0):
    """Run a case. Return O, lse and the gradients by name, and the gradients of O and lse that the backward pass got.

    layouts: functions, one of which lays out the gradient of O in memory.
    """
    rng, learned = np.random.default_rng(seed), case.learned()
    O, lse = case.run()
    dO, dlse = (torch.as_tensor(rng.standard_normal(tuple(x.shape))).to(x) for x in (O, lse))
    dO = layouts[rng.integers(len(layouts))](dO)
    dlse = dlse.where(lse.isfinite(), 0.0) * int(rng.integers(2) or case.loss == ("lse",))
    if case.poison and case.poison[0] == "dO":
        _, t, head, place, value = case.poison
        dO = dO.clone()  # the clone is not expanded
        case.part(dO, "O", t)[head, place] = value
    every = {"O": (O, dO), "lse": (lse, dlse)}
    pairs = [every[name] for name in case.loss]
    gradients = ()
    if learned:
        gradients = torch.autograd.grad([x for x, _ in pairs], list(learned.values()), [x for _, x in pairs])
    dO, dlse = (x if name in case.loss else torch.zeros_like(x) for name, x in (("O", dO), ("lse", dlse)))
    return {"O": O, "lse": lse, **dict(zip(learned, gradients, strict=True))}, dO, dlse


def compare(case, results, dO, dlse):
    """Assert that the results of a case are right."""
    O, lse, Q = results["O"], results["lse"], case.tensors["Q"]
    assert O.dtype == (case.out or Q.dtype) and O.shape[:-1] == Q.shape[:-1] and lse.dtype == torch.float32
    dO = dO.nan_to_num(0.0, 0.0, 0.0)
    values, sizes = expected(case, results, dO, dlse)
    learned = case.learned().items()
    leaves = {n: (x.detach() if isinstance(n, int) else x.detach().nan_to_num(0.0, 0.0, 0.0)) for n, x in learned}
    leaves = {n: x.clone().requires_grad_() for n, x in leaves.items()}
    theirs = in_torch(case, leaves, results, case.plain)
    pairs = [(theirs[name], x.to(case.plain)) for name, x in (("O", dO), ("lse", dlse)) if theirs[name].requires_grad]
    gradients = [torch.zeros_like(x) for x in leaves.values()]
    if pairs and leaves:
        outputs, incoming = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(outputs, [*leaves.values()], incoming, materialize_grads=True)
    theirs |= dict(zip(leaves, gradients, strict=True))
    theirs["lse"] = in_torch(case, {}, results, case.of_lse)["lse"]
    for name, ours in results.items():
        eps = torch.finfo(case.of_lse if name == "lse" else case.plain).eps
        of_name = [in_numpy(ours), in_numpy(theirs[name]), values[name], sizes[name]]
        if case.poison:
            of_name = [x.copy() for x in of_name]
            leave_out(case, name, of_name)
        assert_right(name, *of_name, eps)


def leave_out(case, name, arrays):
    """Write 0 where ``poison`` may reach: rows and keys of its own text, and gradients of what all texts share."""
    t = case.poison[1]
    H, Hk = (case.part(case.tensors[of], of, t).shape[0] for of in "QK")
    rows, keys = case.spoiled(t, H, Hk)
    for x in arrays:
        if name == "sinks" or isinstance(name, int) and case.steps[name].x.shape[0] == 1:
            x[...] = 0
        elif isinstance(name, int):
            x[t] = 0
        else:
            case.part(x, name, t)[keys if name in ("K", "V") else rows] = 0


def assert_right(name, ours, theirs, exact, size, eps):
    """Assert that the error of ``ours`` is at most twice that of ``theirs``, plus eps of the sums' terms."""
    infinite = np.isinf(exact)
    assert (ours[infinite] == exact[infinite]).all(), f"{name}: finite where it should be infinite"
    ours, theirs, exact, size = (x[~infinite] for x in (ours, theirs, exact, size))
    assert (ours[size == 0] == 0).all(), f"{name}: not 0 where nothing is added up"
    error, limit = abs(ours - exact).max(initial=0), 2 * abs(theirs - exact).max(initial=0) + eps * size.max(initial=0)
    assert error <= limit, f"{name}: error {error:.3g} above the limit {limit:.3g}"  # NaN is not <= anything
