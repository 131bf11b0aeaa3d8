"""Score functions, which change a score before the mask. Scale, then score, then mask; in natural units.

A score function is a function in Triton, its derivative, and the arguments of both: ``softcap``, ``alibi``, ``bias``,
or your own. A tuple is applied in its order: ``(bias(b), softcap(30))`` caps the sum.

Source: soft caps, Gemma 2; ALiBi, Press et al. 2022.
"""

import itertools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flashlab.kernels.checks import (
    RefusedInKernel,
    address_of,
    check_dense,
    check_function,
    check_values,
    function_at,
    kind_of,
    place_of,
)
from flashlab.kernels.device import stepped_around
from flashlab.kernels.problem import LOG2_E, Problem
from flashlab.machine.arguments import check_number, shown
from flashlab.machine.truth import NoTruth

STEEPEST = 1e36  # slope: its products with all distances are finite

outside_graphs = stepped_around("a score function")


class Score(NoTruth):
    """One score function: ``function``, its ``derivative`` (None: 1), and the tensors among the arguments of both."""

    combine = "combine score functions in a tuple"
    tensors = ()

    def __reduce__(self):
        return type(self), self.arguments  # a pickle has no functions in Triton


class Chain(NamedTuple):
    """Score functions, one after another."""

    steps: tuple[Score, ...]

    @property
    def bounded(self):
        """Return whether the last step is a soft cap of usual size: then scores are small enough for lse in float32."""
        last = self.steps[-1]
        return isinstance(last, Softcap) and last.cap <= 1e4

    @property
    def tensors(self):
        """The tensors that the steps read."""
        return [x for step in self.steps for x in step.tensors]

    def kernel_args(self, problem, sums=()):
        """Return, per step, a function, its arguments, its derivative, and the arguments of the derivative.

        sums: per step the sum to which the gradient of its tensor is added, or None. If there is a sum, the function
        that adds to it and its arguments follow.
        """
        args = []
        for step, total in itertools.zip_longest(self.steps, sums):
            arguments = step.kernel_args(problem)
            derivative = (constant, (1,)) if step.derivative is None else (step.derivative, arguments)
            learn = () if total is None else (step.learn, step.where(total))
            args.append((step.function, arguments, *derivative, *learn))
        return tuple(args)


def chain(score: Score | tuple[Score, ...] | None) -> Chain | None:
    """Return the argument ``score`` of a call, a score function or a tuple of them, as a ``Chain``; None for None.

    Raises:
        TypeError: it is not of this module.
    """
    if score is None:
        return None
    steps = score if isinstance(score, tuple) else (score,)
    if not all(isinstance(step, Score) for step in steps):
        expected = "made by flashlab.kernels.scores, such as softcap(30), or bias(added) for a tensor to add"
        raise TypeError(f"score must be {expected}, or a tuple of these, got {shown(score)}")
    return Chain(steps) if steps else None


@outside_graphs
def softcap(cap: float) -> Score:
    """Return the score function s -> cap * tanh(s / cap), which keeps scores between -cap and cap.

    It has the relative precision of float32; in the Hopper kernels, whose inputs have 16 bits, that of float16.

    Raises:
        TypeError, ValueError: cap is no number from 1e-30 to 1e30.
    """
    return Softcap(float(check_number("cap", cap, 1e-30, 1e30)))


@outside_graphs
def alibi(slopes: torch.Tensor) -> Score:
    """Return the score function s -> s - slope * |i + Nk - Nq - j|: a penalty per key of distance.

    slopes: [H] or [B, H], floating point, at most 1e36 in size; they may be learned. A call on the CPU raises
    ValueError for other slopes. A call on a GPU does not read slopes before it starts: there, others make rows NaN.
    """
    return Alibi(_numbers(slopes, "slopes", (1, 2)))


@outside_graphs
def bias(added: torch.Tensor) -> Score:
    """Return the score function s -> s + added: floating point, broadcastable to [B, H, Nq, Nk]; it may be learned.

    An element of -inf hides a key. A mask of ``masks`` does so, too, and lets kernels skip hidden tiles. A call on the
    CPU raises ValueError for NaN and +inf. A call on a GPU does not read a bias first: there, both make rows NaN.
    """
    return Bias(_numbers(added, "a bias", (0, 1, 2, 3, 4)))


@outside_graphs
def custom(
    function: triton.JITFunction, *arguments: torch.Tensor | float, derivative: triton.JITFunction | None = None
) -> Score:
    """Return a score function of your own.

    function: a ``@triton.jit`` function (s, b, h, i, j, Nq, Nk, *arguments) that returns the new score; s is a tile of
        scores, i and j are blocks of places that broadcast to it, always below Nq and Nk; b is a number, and so is h,
        but in ``decode`` h is a block as i is. The result is float32 and has the shape of s; others raise TypeError.
    derivative: another one, with the same parameters, that returns d function / d s. Without one there is no training.
    arguments: tensors, which both receive as pointers, and numbers. They get no gradient.
    """
    for one in (function,) if derivative is None else (function, derivative):
        check_function(one, arguments, ("s", "b", "h", "i", "j", "Nq", "Nk"))
    return Custom(function, derivative, arguments)


def check(score: Chain, problem: Problem, training: bool) -> None:
    """Raise if a step does not fit the problem.

    Raises:
        ValueError: a tensor has the wrong shape or device, or there is no derivative in training.
    """
    for step in score.steps:
        step.check(problem)
        if training and isinstance(step, Custom) and step.derivative is None:
            name = step.functions[0].fn.__name__
            raise ValueError(f"the score function {name} has no derivative, so it cannot be used in training")


def _numbers(x, name, dims):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {kind_of(x)}")
    check_dense(**{name: x})
    if x.dim() not in dims:
        raise ValueError(f"{name} must have {dims[0]} to {dims[-1]} dimensions, got shape {list(x.shape)}")
    return x


def _expanded(x, shape, device, name):
    """Return x broadcast to a shape, or raise ValueError."""
    fits = all(size in (1, whole) for size, whole in zip(x.shape[::-1], shape[::-1], strict=False))
    if not fits or x.device != device:
        raise ValueError(
            f"{name} must be broadcastable to {list(shape)} on {device}, got {list(x.shape)} on {x.device}"
        )
    return x.expand(shape)


# The kinds


class Softcap(Score):
    """Keep scores between -cap and cap."""

    def __init__(self, cap):
        self.cap, self.function, self.derivative = cap, capped, slope_of_cap
        self.arguments = (cap,)

    def __eq__(self, other):
        return type(other) is Softcap and other.cap == self.cap

    def __hash__(self):
        return hash(self.cap)

    def check(self, problem):
        """Accept every problem: every cap fits."""

    def kernel_args(self, problem):
        return (self.cap,)


class Alibi(Score):
    """Lower the score of a key with its distance."""

    def __init__(self, slopes):
        self.tensors, self.function, self.derivative, self.learn = (slopes,), lowered, None, learn_slope
        self.arguments = self.tensors

    def check(self, problem):
        _expanded(self.tensors[0], problem.pairs[:2], problem.device, "slopes")
        check_values("slopes must be finite numbers of at most 1e36 in size", self.tensors[0], -STEEPEST, STEEPEST)

    def kernel_args(self, problem):
        slopes = self.tensors[0].expand(problem.pairs[:2])
        return slopes, *slopes.stride()

    def sums(self, problem):
        """Return zeros for the gradient of each row."""
        return self.tensors[0].new_zeros(problem.pairs[:3], dtype=torch.float32)

    def where(self, sums):
        return sums, *sums.stride()

    def gradient(self, sums):
        return sums.sum(-1).sum_to_size(self.tensors[0].shape)


class Bias(Score):
    """Add a number to each score."""

    def __init__(self, added):
        self.tensors, self.function, self.derivative, self.learn = (added,), shifted, None, learn_bias
        self.arguments = self.tensors

    def check(self, problem):
        _expanded(self.tensors[0], problem.pairs, problem.device, "a bias")
        check_values("a bias must hold finite numbers of float32, or -inf", self.tensors[0])

    def kernel_args(self, problem):
        added = self.tensors[0].expand(problem.pairs)
        return added, *added.stride()

    def sums(self, problem):
        """Return zeros for the gradient, broadcast as the bias is; with deterministic algorithms, of full size."""
        shape = problem.pairs if torch.are_deterministic_algorithms_enabled() else self.tensors[0].shape
        return self.tensors[0].new_zeros(shape, dtype=torch.float32).expand(problem.pairs)

    def where(self, sums):
        return sums, *sums.stride()

    def gradient(self, sums):
        one_each = tuple(slice(None) if step else slice(1) for step in sums.stride())
        return sums[one_each].sum_to_size(self.tensors[0].shape)


class Custom(Score):
    """A function of the user."""

    def __init__(self, function, derivative, arguments):
        self.functions, self.arguments = (function, derivative), arguments
        self.function, self.derivative = of_user, None if derivative is None else slope_of_user
        self.tensors = tuple(x for x in arguments if isinstance(x, torch.Tensor))

    def __reduce__(self):
        return found_again, ([f and address_of(f) for f in self.functions], self.arguments)

    def check(self, problem):
        for x in self.tensors:
            if x.device != problem.device:
                raise ValueError(f"tensors of a score function must be on {problem.device}, got {x.device}")
        if any(x.requires_grad for x in self.tensors):
            raise ValueError("tensors of your own score function get no gradient: detach them")

    def kernel_args(self, problem):
        return ((*self.functions, *self.arguments),)


def found_again(addresses: tuple, arguments: tuple) -> Score:
    """Return the score function of the functions at these addresses."""
    function, derivative = (address and function_at(*address) for address in addresses)
    return Custom(function, derivative, arguments)


@triton.jit
def of_user(s, b, h, i, j, Nq, Nk, custom):
    """Return the score of a function of the user's. custom: the function, its derivative, and their arguments."""
    score = custom[0](s, b, h, i, j, Nq, Nk, *custom[2:])
    return score if is_score(custom[0], s, score) else s


@triton.jit
def slope_of_user(s, b, h, i, j, Nq, Nk, custom):
    """Return the derivative of ``of_user``."""
    slope = custom[1](s, b, h, i, j, Nq, Nk, *custom[2:])
    return slope if is_slope(custom[1], s, slope) else s


@triton.constexpr_function
def is_score(function, s, score):
    """Return True, or raise."""
    return Returned(function, s, score).fits  # a class: functions in Triton may not call Python's


@triton.constexpr_function
def is_slope(function, s, slope):
    """Return True, or raise."""
    return ReturnedSlope(function, s, slope).fits


class Returned:
    """The return value of a score function of the user.

    Raises:
        RefusedInKernel: it has another type than the scores, or another shape.
    """

    def __init__(self, function, s, score):
        self.fits = getattr(score, "type", None) == s.type
        if not self.fits:
            expected = f"a score function returns {self.kind(s)}, as s is"
            raise RefusedInKernel(f"{place_of(function)}: {expected}, got {self.kind(score)}")

    @staticmethod
    def kind(x):
        """Return the dtype and the shape of a value in a kernel, or the type of another value."""
        return f"{x.dtype} {[int(n) for n in x.shape]}" if hasattr(x, "shape") else type(x).__name__


class ReturnedSlope(Returned):
    """The return value of a derivative of the user's: like a score, or one number for all scores."""

    def __init__(self, function, s, slope):
        dtype = getattr(slope, "dtype", None)  # Python's own numbers have none
        self.fits = type(slope) in (int, float) if dtype is None else dtype == s.dtype
        if not self.fits:
            expected = f"a derivative returns {s.dtype}, as s is"
            raise RefusedInKernel(f"{place_of(function)}: {expected}, got {self.kind(slope)}")


@triton.jit
def capped(s, b, h, i, j, Nq, Nk, cap):
    """Return the score s, kept between -cap and cap.

    Where x = s / cap is small, cap * tanh(x) is s times a polynomial in x^2, so that no digit of s is lost: the formula
    with e^-2|x| would subtract numbers that are nearly equal.
    """
    x = s * (1 / cap)
    power, root = of_tanh(x)
    far = cap * ((1 - power) * (root * root))
    y = x * x
    near = s + s * (y * (-0.33332768 + y * (0.13315298 + y * (-0.052303962 + y * 0.015739680))))
    return tl.where(tl.abs(x) < 0.55, near, tl.where(s < 0, -far, far))


@triton.jit
def slope_of_cap(s, b, h, i, j, Nq, Nk, cap):
    """Return the derivative of ``capped`` at the score s: 1 - tanh(s / cap)^2, without a difference."""
    power, root = of_tanh(s * (1 / cap))
    return 4 * power * (root * root) * (root * root)


@triton.jit
def of_tanh(x):
    """Return p = e^-2|x| and 1 / sqrt(1 + p), two special instructions: tanh |x| is (1 - p) / (1 + p)."""
    power = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    return power, tl.rsqrt(1 + power)


@triton.jit
def lowered(s, b, h, i, j, Nq, Nk, slopes, batch, head):
    """Return the score s less the head's slope times the distance between query i and key j."""
    slope = tl.load(slopes + b * batch + h * head).to(tl.float32)
    return s - slope * tl.abs(i + Nk - Nq - j).to(tl.float32)


@triton.jit
def learn_slope(gradient, b, h, i, j, Nq, Nk, sums, batch, head, row):
    """Add the share of each query in the gradient of the slope to ``sums``: one number per query."""
    distance = tl.abs(i + Nk - Nq - j).to(tl.float32)
    tl.atomic_add(sums + b * batch + h * head + i, -tl.sum(gradient * distance, 1, keep_dims=True), mask=i < Nq)


@triton.jit
def shifted(s, b, h, i, j, Nq, Nk, added, batch, head, row, column):
    """Return the score s plus the bias of query i and key j."""
    added += tl.cast(b, tl.int64) * batch + tl.cast(h, tl.int64) * head
    return s + tl.load(added + i.to(tl.int64) * row + j.to(tl.int64) * column).to(tl.float32)


@triton.jit
def learn_bias(gradient, b, h, i, j, Nq, Nk, sums, batch, head, row, column):
    """Add the gradient of the scores to that of the bias, in ``sums``."""
    sums += tl.cast(b, tl.int64) * batch + tl.cast(h, tl.int64) * head
    at = sums + i.to(tl.int64) * row + j.to(tl.int64) * column  # [Br, Bc]
    tl.atomic_add(at, gradient, mask=(i < Nq) & (j < Nk))


@triton.jit
def constant(s, b, h, i, j, Nq, Nk, value):
    """Return ``value`` for every score."""
    return value


# In the kernels


@triton.jit
def apply(problem, S, b, h, i, j):
    """Return the tile of scaled scores S after all steps. i, j: places in the whole matrix that broadcast to S."""
    b, i, j, Nq, Nk = places(problem.texts, b, i, j, problem.Nq, problem.Nk)
    return after(problem.score, len(problem.score), S, b, h, i, j, Nq, Nk)


@triton.jit
def after(score, steps: tl.constexpr, S, b, h, i, j, Nq, Nk):
    """Return the tile of scores S after the first ``steps`` steps."""
    i, j = tl.minimum(i, Nq - 1), tl.maximum(tl.minimum(j, Nk - 1), 0)
    for k in tl.static_range(steps):
        S = score[k][0](S, b, h, i, j, Nq, Nk, *score[k][1])
    return S


@triton.jit
def differentiate(problem, S, dS, b, h, i, j, learning: tl.constexpr):
    """Return the gradient of the scaled scores S, given that of the scores after all steps.

    learning: also add up the gradients of slopes and biases.
    """
    b, i, j, Nq, Nk = places(problem.texts, b, i, j, problem.Nq, problem.Nk)
    return back(problem.score, S, dS, b, h, i, j, Nq, Nk, learning)


@triton.jit
def back(score, S, dS, b, h, i, j, Nq, Nk, learning: tl.constexpr):
    """Return the gradient of S, through the last step first."""
    steps: tl.constexpr = len(score)
    for k in tl.static_range(steps - 1, -1, -1):
        if learning and len(score[k]) > 4:
            score[k][4](dS, b, h, i, j, Nq, Nk, *score[k][5])
        before = after(score, k, S, b, h, i, j, Nq, Nk)
        inside_i, inside_j = tl.minimum(i, Nq - 1), tl.maximum(tl.minimum(j, Nk - 1), 0)
        dS = dS * score[k][2](before, b, h, inside_i, inside_j, Nq, Nk, *score[k][3])
    return dS


@triton.jit
def places(texts, b, i, j, Nq, Nk):
    """Return batch, query, key and lengths as masks and score functions expect them: inside the query's text."""
    if texts is None:
        return b, i, j, Nq, Nk
    else:
        t, u = tl.load(texts[0] + tl.minimum(i, Nq - 1)), tl.load(texts[1] + tl.minimum(j, Nk - 1))
        first_q, first_k = tl.load(texts[2] + t), tl.load(texts[3] + t)
        lengths = tl.load(texts[2] + t + 1) - first_q, tl.load(texts[3] + t + 1) - first_k
        return t, i - first_q, j - tl.load(texts[3] + u), lengths[0], lengths[1]
