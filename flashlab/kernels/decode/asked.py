"""What a step asks besides its tensors, as the kernels of decoding take it: mask, score function, sinks."""

from typing import NamedTuple

import torch

from flashlab.kernels import masks
from flashlab.kernels.problem import LOG2_E, Problem


class Reach(NamedTuple):
    """Which keys are read at all: ``left`` before a token's own key to ``right`` after it, and the ``first`` ones."""

    left: int | None  # None: no end
    right: int | None
    first: int | None = None  # keys at the beginning that are read although they are farther than ``left``


class Asked(NamedTuple):
    """A step's options as the kernels take them."""

    scale: float
    scale_log2: float  # e^(scale * x) = 2^(scale_log2 * x); where a score function has applied the scale, log2(e)
    reach: Reach
    rules: tuple | None  # of a ``masks.Rule``; None: the reach is the mask
    score: tuple | None  # as ``scores.Chain.told``
    sinks: torch.Tensor | None  # [H]


def asked(problem: Problem) -> Asked:
    """Return what the kernels are told of a step's ``Problem``."""
    mask, score = problem.mask, problem.score
    rules = None
    if isinstance(mask, masks.Rule):
        rules = tuple(tuple(part.told(problem) for part in term) for term in mask.terms)
    return Asked(
        problem.scale, problem.scale_log2 if score is None else LOG2_E.value, reach(mask), rules,
        None if score is None else score.told(problem), problem.sinks,
    )  # fmt: skip


def reach(mask: masks.Window | masks.Rule) -> Reach:
    """Return which keys a mask may show: the hull of its windows, and the most first keys that a term shows.

    Nothing else is skipped, so that nothing must be listed on the host before a step.
    """
    if isinstance(mask, masks.Window):
        return Reach(*mask)
    first, windows = 0, []
    for term in mask.terms:
        pinned = [part.n for part in term if isinstance(part, masks.First)]
        if pinned:
            first = max(first, min(pinned))
        else:
            windows.append(next((part for part in term if isinstance(part, masks.Window)), masks.full()))
    if not windows or any(window.left is None for window in windows):
        first = None  # all keys from the first one on are read anyway
        left = None
    else:
        left = max(window.left for window in windows)
    if first == 0:
        first = None
    ends = [window.right for window in windows] if len(windows) == len(mask.terms) else [None]
    return Reach(left, None if None in ends else max(ends), first)
