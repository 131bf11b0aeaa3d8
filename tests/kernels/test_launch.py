"""A repeated launch passes the arguments that a first launch passes."""

import pytest
import torch

from flashlab.kernels import masks
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.hopper import backward, forward
from flashlab.kernels.launch import Launch
from flashlab.kernels.problem import Problem
from tests.tools.launches import launches_of


def tensors_of(d):
    """Return new Q, K, V, O, dO [B, H, N, d] and their gradients dQ, dK, dV, and lse [B, H, N]."""
    return [torch.zeros(2, H, 200, d, dtype=torch.bfloat16) for H in (4, 2, 2, 4, 4, 4, 2, 2)], torch.zeros(2, 4, 200)


def start_forward(problem, tensors, lse, launched):
    q, k, v, o = tensors[:4]
    forward.run(o, lse, q, k, v, problem, Configuration(128, 128, 12, 2), launched=launched)


def start_backward(problem, tensors, lse, launched):
    q, k, v, o, do, *gradients = tensors
    backward.run(gradients, (do, None), (q, k, v, o, lse), problem, launches_of(problem.d), launched=launched)


def shown(argument, tensors):
    """Return the form of an argument, and its place among the tensors in place of its address."""
    if isinstance(argument, tuple):
        return [shown(x, tensors) for x in argument]
    if hasattr(argument, "base"):
        rest = {name: x for name, x in vars(argument).items() if name != "base"}
        return type(argument), str(rest), shown(argument.base, tensors)
    if not isinstance(argument, torch.Tensor):
        return argument
    places = [place for place, x in enumerate(tensors) if x.data_ptr() == argument.data_ptr()]
    return argument.shape, argument.stride(), argument.dtype, places


@pytest.mark.parametrize(
    "start, d", [(start_forward, 128), (start_backward, 64), (start_backward, 128), (start_backward, 256)]
)
def test_a_repeated_launch_passes_what_a_first_one_passes(start, d, monkeypatch):
    starts = []
    monkeypatch.setattr(Launch, "start", lambda self, arguments: starts.append((self.kernel, arguments)))
    earlier, (tensors, lse) = tensors_of(d), tensors_of(d)
    problem = Problem.of(*tensors[:3], masks.causal(), 0.1)
    launched = {}
    start(problem, *earlier, launched)
    starts.clear()
    start(problem, tensors, lse, launched)
    repeated = list(starts)
    starts.clear()
    start(problem, tensors, lse, {})
    assert len(repeated) == len(starts) > 0
    for (kernel, ours), (expected_kernel, expected) in zip(repeated, starts, strict=True):
        assert kernel is expected_kernel
        assert shown(tuple(ours), [*tensors, lse]) == shown(tuple(expected), [*tensors, lse])
