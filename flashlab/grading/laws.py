"""Laws that several exercises share: properties of an attempt that its results do not show."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest import mock

import numpy as np

from flashlab.grading.exercise import Broken

HIDDEN = (
    "the numbers are right, but a NaN came up on the way and was replaced: that hides true mistakes as well. "
    "Prevent it: guard −∞, and the division by 0."
)

REPLACED = "the numbers are right, but a {} that is seen was replaced: only hidden scores become −∞."
STILL_THERE = "the numbers are right, but a hidden score that is {0} stays {0}. Put −∞ in its place, with np.where."

ADDED = (
    "a small number was added to the denominator or under the logarithm, it seems. float32 may hide its effect, but in "
    "exact arithmetic the result is off. Guard the one case in which the sum is 0 instead."
)


def no_nan_replaced(attempt: Callable, *args) -> str | None:
    """Law: no computation in numpy or torch gives a NaN, which something later must have replaced."""
    errstate = np.errstate

    def without_invalid(**kinds):  # an attempt may not silence what the law listens for
        return errstate(**{kind: what for kind, what in kinds.items() if kind not in ("all", "invalid")})

    try:
        with errstate(invalid="raise"), mock.patch.object(np, "errstate", without_invalid), _raising_in_torch():
            attempt(*args)
    except FloatingPointError as error:
        return None if "matmul" in str(error) else HIDDEN  # a BLAS may report one where there is none
    return None


def _raising_in_torch():
    """Return a context in which torch raises FloatingPointError where a function makes a NaN of numbers."""
    if "torch" not in sys.modules:
        return nullcontext()
    import torch
    from torch.overrides import TorchFunctionMode

    def floats(values):
        return [it for it in values if isinstance(it, torch.Tensor) and it.is_floating_point()]

    def has_nan(tensors):
        return any(bool(it.isnan().any()) for it in tensors)

    class Raising(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result, inputs = function(*args, **(kwargs or {})), floats(args)
            made = inputs and not has_nan(inputs) and "empty" not in function.__name__
            if made and has_nan(floats(result if isinstance(result, tuple | list) else [result])):
                raise FloatingPointError(f"NaN in {function.__name__}")
            return result

    return Raising()


def hidden_whatever_they_are(attempt: Callable, S_ij: np.ndarray, *others) -> str | None:
    """Law: −∞ takes the place of hidden scores, of NaN and ∞, too, and of no seen ones.

    ``attempt(S_ij, *others)`` returns scores, some hidden.
    """
    hidden = np.asarray(attempt(np.zeros_like(S_ij), *others)) == -np.inf  # [Br, Bc]
    for name, score in {"NaN": np.nan, "∞": np.inf}.items():
        found = np.asarray(attempt(np.full_like(S_ij, score), *others))  # [Br, Bc]
        if not (found[hidden] == -np.inf).all():
            return STILL_THERE.format(name)
        if (found[~hidden] == -np.inf).any() or (np.isnan(score) and not np.isnan(found[~hidden]).all()):
            return REPLACED.format(name)
    return None


def nothing_added(ones: Callable) -> Callable[..., Broken | None]:
    """Build a law: no small number is added to make a division or a logarithm safe.

    ``ones(attempt, *args)`` runs the attempt on inputs in float64 for which a right one returns ones, without any
    rounding: in float32 a denominator of at least 1 hides a number such as 1e-9. Results that fit into float32 may have
    been computed in it, and be a few roundings off.
    """

    def law(attempt, *args):
        found = np.float64(ones(attempt, *args))
        rounding = 8e-7 if np.array_equal(found, np.float32(found)) else 1e-12
        off = np.abs(found - 1).max(initial=0)
        return Broken("inputs in float64 for which the result is 1", ADDED) if rounding < off < 1e-3 else None

    return law


CLIPPED = "an exponent was clipped: a score far below the largest keeps a weight of its own, however small."
DROPPED = "a weight far below the largest was set to 0: it is small, but many of them, or a large value, make it count."
FALLING = np.array([0, -25, -50, -75, -87], np.float32)  # their exponentials are normal numbers of float32
NEAR = np.array([0, -13, -13, -13, -13], np.float32)  # the small exponentials have six bits in float16
FAR_BELOW = "scores of 0, −25, −50, −75 and −87"


def nothing_clipped(weights: Callable) -> Callable[[Callable], Broken | None]:
    """Build a law with its own inputs: a score far below the largest keeps its exponential as weight, neither limited
    nor set to 0.

    ``weights(attempt, x)`` returns the weights of scores x. All scores but the first are far below it: beside other
    weights near 1, an error of a small weight would not show. Other faults are left to the cases.
    """

    def law(attempt):
        found, expected = np.asarray(weights(attempt, FALLING)), np.exp(np.float64(FALLING))  # [5] each
        is_half, found = found.dtype == np.float16, np.float64(found)
        small = np.isclose(found[0], 1) and (found[1:] < 1e-6).all()
        if small and np.allclose(found, np.maximum(expected, found.min()), 0.01, 0) and (found > 2 * expected).any():
            return Broken(FAR_BELOW, CLIPPED)
        dropped = (found == 0) & (not is_half)
        only_dropped = small and dropped.any() and np.allclose(found[~dropped], expected[~dropped], 0.01, 0)
        return Broken(FAR_BELOW, DROPPED) if only_dropped and not _rounds(partial(weights, attempt)) else None

    return law


def _rounds(weights):
    """Return whether weights lose digits, as in float16, where e^−25 is rounded to 0, or are 0."""
    return not np.allclose(np.float64(weights(NEAR))[1:], np.exp(-13.0), 1e-4, 0)
