"""Reasons against the kernels of decoding and the Hopper kernels, as lists of (reason, test of a problem)."""

import functools
import warnings
from typing import NamedTuple

import triton

from flashlab.kernels import masks, scores
from flashlab.kernels.masks import kinds
from flashlab.kernels.problem import Problem
from flashlab.kernels.tables import ON_HOPPER

FEW, MANY = 16, 512  # at most FEW queries and at least MANY keys: then programs divide the keys


class Card(NamedTuple):
    """The properties of a GPU that determine its configurations."""

    capability: tuple[int, int]
    shared_bytes: int  # the most that one program may have
    multiprocessors: int = 132


DECODING = (
    ("the kernels of decoding have no dropout", lambda p: p.dropout is not None),
    ("the kernels of decoding have no packed texts", lambda p: p.texts is not None),
    ("the kernels of decoding have no queries in float8", lambda p: p.scales is not None),
    ("the kernels of decoding are batch-invariant in decode(..., fixed_split=...)", lambda p: p.batch_invariant),
)
FEW_QUERIES = (  # these do not count if the call has kernel="decode"
    ("the kernels of decoding skip no tiles of a mask that is no window", lambda p: p.mask == "rule"),
    (
        f"the kernels of decoding are for up to {FEW} queries and at least {MANY} keys",
        lambda p: p.Nq > FEW or p.Nk < MANY,
    ),
)
FLOAT8 = (  # on Hopper
    (
        "the Hopper kernel in float8 has no mask but causal, got {p.mask}",
        lambda p: p.mask not in (masks.full(), masks.causal()),
    ),
    (
        "the Hopper kernel in float8 has no scores, sinks, dropout or packed texts",
        lambda p: not p._replace(scales=None).plain,
    ),
)
SIXTEEN_BITS = (  # float16 and bfloat16, on Hopper
    (
        "the Hopper kernels multiply float16 and bfloat16, got {p.dtype}",
        lambda p: str(p.dtype) not in ON_HOPPER.dtypes,
    ),
    ("the Hopper kernels have no dropout", lambda p: p.dropout is not None),
)
FORWARD = (
    (
        "the Hopper forward kernel has packed texts, but not with score functions",
        lambda p: None not in (p.texts, p.score),
    ),
    (
        "the Hopper forward kernel has no windows with a left end and without a right one",
        lambda p: p.mask != "rule" and endless(p.mask),
    ),
)
OF_TENSORS = (  # reasons that depend on tensors and functions
    ("the Hopper kernels call no functions of your own", lambda p: any(map(is_custom, (*steps(p), *p.mask.parts)))),
    (
        "the Hopper kernels need a query for every key, and there may be keys that no query sees",
        lambda p: (is_rule(p) or p.score is not None) and p.mask.hides_keys(p),
    ),
)
OF_TENSORS_FORWARD = (
    ("the Hopper forward kernel has soft caps and ALiBi, and no biases", lambda p: any(map(is_bias, steps(p)))),
    (
        "the Hopper forward kernel has masks by which each query sees one interval of keys",
        lambda p: is_rule(p) and p.mask.keys(p) is None,
    ),
)


def endless(window):
    """Return whether a window has a left end, and no right one."""
    return window.left is not None and window.right is None


def is_rule(problem):
    """Return whether the mask of a problem is a ``Rule``, not a window."""
    return isinstance(problem.mask, masks.Rule)


def is_custom(part):
    """Return whether a part of a mask, or a score function, is a function of the user's."""
    return isinstance(part, (kinds.Custom, scores.Custom))


def is_bias(step):
    """Return whether a score function adds a bias."""
    return isinstance(step, scores.Bias)


def steps(problem):
    """Return the score functions."""
    return () if problem.score is None else problem.score.steps


def reason(limits, problem: Problem) -> str | None:
    """Return the first reason with a test that holds for a problem, or None."""
    return next((text.format(p=problem) for text, test in limits if test(problem)), None)


def against_decoding(card: Card | None, problem: Problem, requested: bool) -> str | None:
    """Return why ``kernels.decode``, which divides the keys among programs, does not compute a problem, or None."""
    against = reason(DECODING, problem)
    if against or requested:
        return against
    return "in the interpreter one program runs after the other" if card is None else reason(FEW_QUERIES, problem)


def against_hopper(card: Card | None, problem: Problem, direction: str = "forward") -> str | None:
    """Return why the Hopper kernels cannot compute one direction of a ``Problem.kind``, or None if they can."""
    if card is None or card.capability != ON_HOPPER.capability:
        return "the Hopper kernels need a GPU of compute capability 9.0"
    if not any(triton.__version__.startswith(f"{version}.") for version in ON_HOPPER.compilers):
        return left_out_with(triton.__version__)
    limits = SIXTEEN_BITS if problem.scales is None else FLOAT8
    return reason(limits + (FORWARD if direction == "forward" else ()), problem)


@functools.cache
def left_out_with(compiler: str) -> str:
    """Return why this version of Triton leaves out the Hopper kernels, and warn once: the portable ones are slower."""
    versions = " and ".join(ON_HOPPER.compilers)
    why = f"the Hopper kernels were compiled with Triton {versions}, this is {compiler}"
    warnings.warn(f"flashlab computes with the portable kernels: {why}", stacklevel=2)
    return why


def against_tensors(direction: str, problem: Problem, learning: bool) -> str | None:
    """Return why the Hopper kernels cannot compute a problem, for reasons that are not in ``Problem.kind``."""
    if problem.plain:
        return None
    if learning:
        return "the Hopper kernels compute no gradients of slopes and biases"
    return reason(OF_TENSORS + (OF_TENSORS_FORWARD if direction == "forward" else ()), problem)
