"""Plans: what a kind of call needs that does not depend on addresses, worked out in its first call and kept.

A kind has the same shapes, strides, dtypes, devices and options. Its plan has the ``Problem``, the choices of kernels
and, once they have been started, the launches: later calls skip all checks, and only fill in addresses.
"""

from types import NoneType

import torch
from torch import Tensor

from flashlab.kernels import masks
from flashlab.kernels.configurations import Choice, choose
from flashlab.kernels.problem import Problem

MOST = 256  # plans; the first one more begins anew
PLAIN = Tensor, torch.nn.Parameter  # subclasses may compute operators themselves
kept: dict[tuple, "Plan"] = {}


class Plan:
    """A kind of call: its ``Problem``, and what its first calls worked out.

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
            self._choices[key] = choose(direction, self.problem, self.kernel, learning=learning)
        return self._choices[key]

    def launched(self, *kind) -> dict:
        """Return the launches of passes of this kind by name, for ``launch.repeat``.

        kind: all that may differ between passes of this plan, apart from addresses.
        """
        return self._launched.setdefault(kind, {})


def kind_of(q, k, v, causal, mask, scale, kernel) -> tuple | None:
    """Return the kind of a call with a window at most, as a key of ``kept``; None if its plan cannot be kept."""
    plain = type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and type(causal) is bool
    plain = plain and type(scale) in (NoneType, float) and type(mask) in (NoneType, masks.Window)
    if not plain or type(kernel) not in (NoneType, str):  # 1 is equal to True, but not as good
        return None
    try:
        layouts = _layout(q) + _layout(k) + _layout(v)
        one = k.data_ptr() == v.data_ptr()  # decoding reads it once
    except (RuntimeError, NotImplementedError):  # no strides, or no memory: the checks say so
        return None
    return causal, mask, scale, kernel, torch.get_float32_matmul_precision(), one, layouts


def kind_of_step(q, cache, mask, scale, fixed_split) -> tuple | None:
    """Return the same for a step of ``decode`` with a ``Cache`` that has its lengths."""
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


def keep(kind: tuple, plan: Plan) -> None:
    """Keep the plan for later calls of this kind."""
    if len(kept) >= MOST:
        kept.clear()
    kept[kind] = plan
