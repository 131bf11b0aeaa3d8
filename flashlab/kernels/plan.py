"""Plans: all results of a kind of call that do not depend on addresses, computed in its first call and cached.

Calls of a kind have the same shapes, strides, dtypes, devices and options. A plan has the ``Problem``, the choices of
kernels and, after the first call, the launches: later calls skip all checks, and only fill in addresses.
"""

from types import NoneType

import torch
from torch import Tensor

from flashlab.kernels import masks
from flashlab.kernels.configurations import Choice, choose
from flashlab.kernels.problem import Problem
from flashlab.kernels.scores import Softcap

MOST = 256  # plans; one more empties the cache
PLAIN = Tensor, torch.nn.Parameter  # subclasses may compute operators themselves
_cached: dict[tuple, "Plan"] = {}  # of calls with windows; a ``Rule`` keeps its own, until one of its tensors changes
_times_forgotten = 0


class Plan:
    """The plan of a kind of call: its ``Problem``, and the choices and launches of its first calls.

    problem, kernel: as for ``configurations.choose``.
    """

    def __init__(self, problem: Problem, kernel: str | None):
        self.problem, self.kernel = problem, kernel
        self._choices: dict[tuple, Choice] = {}
        self._launched: dict[tuple, dict] = {}

    def choice(self, direction: str, learning: bool = False) -> Choice:
        """Return the ``Choice`` of kernels for a direction; learning: as for ``choose``."""
        key = direction, learning, torch.are_deterministic_algorithms_enabled()
        if key not in self._choices:
            self._choices[key] = choose(direction, self.problem, self.kernel, learning)
        return self._choices[key]

    def launched(self, *kind) -> dict:
        """Return the launches of passes of this kind by name, for ``launch.repeat``.

        kind: all that may differ between passes of this plan, apart from addresses.
        """
        return self._launched.setdefault(kind, {})

    def under(self, mask):
        """Return the same plan with this mask in its problem."""
        other = Plan(self.problem._replace(mask=mask), self.kernel)
        other._choices, other._launched = self._choices, self._launched
        return other


def kind_of(q, k, v, causal, mask, score, sinks, scale, kernel, batch_invariant=False) -> tuple | None:
    """Return the kind of a call, as a key for ``find``; None if its plan cannot be cached.

    Among score functions, only soft caps can be part of a kind, by their value. Sinks can be part of it if they are a
    ``Parameter``: then the kind holds for this one parameter.
    """
    plain = type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and type(causal) is bool  # 1 is equal to True
    plain = plain and type(scale) in (NoneType, float) and type(mask) in (NoneType, masks.Window, masks.Rule)
    plain = plain and type(score) in (NoneType, Softcap) and type(sinks) in (NoneType, torch.nn.Parameter)
    if not plain or type(kernel) not in (NoneType, str):
        return None
    window = None if type(mask) is masks.Rule else mask
    try:
        layouts = _layout(q) + _layout(k) + _layout(v)
        one = k.data_ptr() == v.data_ptr()  # one tensor for both: decoding reads it once
        of_sinks = None if sinks is None else (id(sinks), _layout(sinks))
    except (RuntimeError, NotImplementedError):  # no strides, or no memory: the checks raise the error
        return None
    precision = torch.get_float32_matmul_precision()
    return causal, window, score, of_sinks, scale, kernel, batch_invariant, precision, one, layouts


def kind_of_step(q, cache, mask, scale, fixed_split) -> tuple | None:
    """Return the kind of a step of ``decode``, as ``kind_of`` does for a call. cache: a ``Cache`` with its lengths."""
    tensors = q, *cache
    plain = all(x is None or type(x) in PLAIN for x in tensors) and type(mask) in (NoneType, masks.Window)
    if not plain or type(scale) not in (NoneType, float) or type(fixed_split) not in (NoneType, int):
        return None
    try:
        layouts = tuple(None if x is None else _layout(x) for x in tensors)
        one = cache.K.data_ptr() == cache.V.data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError):  # as in ``kind_of``, or no tensor
        return None
    return "decode", mask, scale, fixed_split, torch.get_float32_matmul_precision(), one, layouts


def _layout(x):
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16


def find(kind: tuple, mask, device) -> Plan | None:
    """Return the plan of a kind of call with this mask, None if there is none."""
    if type(mask) is not masks.Rule:
        return _cached.get(kind)
    plan = _of_rule(mask, device).get(kind)
    return None if plan is None else plan.under(mask)


def keep(kind: tuple, plan: Plan) -> None:
    """Keep the plan for later calls of this kind."""
    plans, mask = _cached, plan.problem.mask
    if type(mask) is masks.Rule:  # a mask must not contain itself
        plans, plan = _of_rule(mask, plan.problem.device), plan.under(None)
    if len(plans) >= MOST:
        plans.clear()
    plans[kind] = plan


def forget() -> None:
    """Forget all plans, as if no call had been made."""
    global _times_forgotten
    _cached.clear()
    _times_forgotten += 1


def _of_rule(rule, device) -> dict:
    return rule.cached(device, ("plans", _times_forgotten), dict)
