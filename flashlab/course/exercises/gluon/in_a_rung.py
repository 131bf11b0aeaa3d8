"""Run a rung in the interpreter, with a learner's function in place of one of its own; and the cases for that."""

from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from flashlab.grading.exercise import Case
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels.launch import launch
from flashlab.reference import masks
from flashlab.reference.attention import attention

d = 64


class Attended(NamedTuple):
    """What a rung returns."""

    O: np.ndarray  # [Nq, d]
    lse: np.ndarray  # [Nq]


def attend(rung: ModuleType, name: str, function, Q, K, V, causal) -> Attended:
    """Run a rung on one head, with a learner's function in place of the rung's function ``name``."""
    q, k, v = (torch.from_numpy(X)[None, None] for X in (Q, K, V))  # [1, 1, N, d]
    with mock.patch.object(rung, name, attempted(function)):
        o, lse = rung.attend(q, k, v, causal, launch=launch)
    return Attended(o[0, 0].numpy(), lse[0, 0].numpy())


def exact(Q, K, V, causal) -> Attended:
    """Compute the results of ``attend`` in numpy."""
    return Attended(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def case(property: str, Nq: int, Nk: int, causal: bool = False) -> Case:
    """Return a case with queries, keys and values of these lengths."""
    return Case(property, (*_tensors(np.random.default_rng(Nk), Nq, Nk), causal))


def draw(rng, size):
    """Draw one head, of up to two tiles of queries and seven blocks of keys, and a mask."""
    Nq, Nk = rng.integers(1, 25 * size + 1), rng.integers(1, 88 * size + 1)
    return *_tensors(rng, Nq, Nk), bool(rng.integers(2))


def _tensors(rng, Nq, Nk):
    return tuple(rng.normal(size=(N, d)).astype(np.float16) for N in (Nq, Nk, Nk))
