"""The kernel arguments of a step besides its tensors: scale, mask, score function and sinks."""

from typing import NamedTuple

import torch

from flashlab.kernels import masks
from flashlab.kernels.masks.kinds import First
from flashlab.kernels.problem import Problem


class Reach(NamedTuple):
    """The keys that are read: ``left`` before a token's own key to ``right`` after it, and the ``first`` keys."""

    left: int | None  # None: no end
    right: int | None
    first: int | None = None  # keys at the beginning that are read although they are farther than ``left``


class Request(NamedTuple):
    """The kernel arguments of a step that are not compile-time values."""

    scale: float
    factor: float  # as in ``Problem``
    reach: Reach
    rules: tuple | None  # of a ``masks.Rule``; None: the reach is the mask
    score: tuple | None  # as ``scores.Chain.kernel_args``
    sinks: torch.Tensor | None  # [H]


def request_of(problem: Problem) -> Request:
    """Return the kernel arguments of the ``Problem`` of a step."""
    mask, score = problem.mask, problem.score
    rules = mask.functions(problem) if isinstance(mask, masks.Rule) else None
    return Request(
        problem.scale, problem.factor, reach(mask), rules,
        None if score is None else score.kernel_args(problem), problem.sinks,
    )  # fmt: skip


def reach(mask: masks.Window | masks.Rule) -> Reach:
    """Return the keys that a mask may show: the hull of its windows, and the most first keys that a term shows.

    All keys in this reach are read, even hidden ones, so the host lists no tiles before a step.
    """
    if isinstance(mask, masks.Window):
        return Reach(*mask)
    first, windows = 0, []  # of the terms that show first keys, and of all others
    for term in mask.terms:
        pinned = [part.n for part in term if isinstance(part, First)]
        if pinned:
            first = max(first, min(pinned))
        else:
            windows.append(next((part for part in term if isinstance(part, masks.Window)), masks.full()))
    lefts, rights = ([getattr(window, end) for window in windows] for end in ("left", "right"))
    left = None if not lefts or None in lefts else max(lefts)
    if first:  # which may be after a token's own key
        return Reach(left, None, None if left is None else first)
    return Reach(left, None if None in rights else max(rights, default=None))


def hides_what_is_read(mask: masks.Window | masks.Rule) -> bool:
    """Return whether keys in the ``reach`` of a mask may be hidden from all tokens, or from those of other texts.

    Masks of windows alone hide no such key: a window shows each key in its reach to some token, and all tokens of a
    batch belong to one text. The same holds for masks of windows and first keys, if some term has no first keys, and
    no term has both first keys and a window with a left end.
    """
    if isinstance(mask, masks.Window):
        return False
    pinned, windows = [], []  # the terms that show first keys, and all others
    for term in mask.terms:
        (pinned if any(isinstance(part, First) for part in term) else windows).append(term)
    plain = all(isinstance(part, (First, masks.Window)) for term in mask.terms for part in term)
    endless = all(part.left is None for term in pinned for part in term if isinstance(part, masks.Window))
    return not (plain and windows and endless)
