"""Checks that all operators share: dense tensors, the device of the kernels, no gradients, no second derivatives."""

import importlib
import inspect
import itertools
import math
import numbers
import pickle
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashlab.kernels.device import DEVICE
from flashlab.machine.arguments import shown

LARGEST = torch.finfo(torch.float32).max

TWICE = "attention has first derivatives only: the gradients of flash_attention cannot be differentiated again"


class RefusedInKernel(TypeError):
    """An error inside a kernel, with a sentence for the caller: the interpreter raises it as a plain TypeError."""


def place_of(function) -> str:
    """Return the name of a function in Triton and the line of its ``def``."""
    plain = getattr(function, "fn", function)
    lines, first = inspect.getsourcelines(plain)
    skipped = itertools.takewhile(lambda line: not line.lstrip().startswith("def "), lines)  # the decorators
    return f"{plain.__name__}, line {first + len(list(skipped))}"


def address_of(function) -> tuple[str, str]:
    """Return the module and the name of a function in Triton, by which a pickle finds it again.

    Raises:
        PicklingError: it is not at the top level of a module.
    """
    address = function.fn.__module__, function.fn.__name__
    if function_at(*address) is not function:
        found = f"{address[1]} is not at the top level of {address[0]}"
        raise pickle.PicklingError(f"copies and pickles find a function of your own by its name, and {found}")
    return address


def function_at(module: str, name: str):
    """Return the function at an address, None if there is none."""
    return getattr(importlib.import_module(module), name, None)


def kind_of(x) -> str:
    """Return the kind of a wrong argument: the dtype of a tensor, the type of others."""
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


def check_dense(**tensors: Tensor) -> None:
    """Raise TypeError if an argument, by its name, is not a dense torch tensor."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.layout != torch.strided or x.is_nested:
            raise TypeError(f"{name} must be a dense tensor, got {'a nested one' if x.is_nested else x.layout}")


def computes_operators(x: Tensor) -> bool:
    """Return whether x is of a subclass that computes operators itself, as fake and distributed tensors do."""
    return type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__


def transformed() -> bool:
    """Return whether ``torch.func`` transforms the running code; torch has no public function for it."""
    return torch._C._are_functorch_transforms_active()


def check_memory(function: str, **tensors: Tensor | None) -> None:
    """Raise NotImplementedError if an argument has no memory that a kernel can read."""
    for name, x in tensors.items():
        if isinstance(x, Tensor) and computes_operators(x):
            kind = type(x).__name__
            raise NotImplementedError(f"{function} reads memory, and {name} is a {kind}: pass an ordinary tensor")
    if transformed():
        raise NotImplementedError(f"{function} reads memory: torch.func and vectorised derivatives do not support it")


def check_gradient(do: Tensor) -> None:
    """Raise NotImplementedError if do is a batch of gradients of one output: torch gives such a batch no memory."""
    try:
        do.untyped_storage()
    except (NotImplementedError, RuntimeError):
        alternative = "without vectorize=True and is_grads_batched=True, or take torch.func.jacrev"
        raise NotImplementedError(f"attention has no vectorised gradients: call it {alternative}") from None


def check_local(**tensors: Tensor) -> None:
    """Raise TypeError if a tensor is distributed."""
    for name, x in tensors.items():
        if hasattr(x, "to_local"):
            raise TypeError(f"{name} must be on one process, got a {type(x).__name__}: pass its to_local()")


def check_device(**tensors: Tensor) -> None:
    """Raise if the tensors are not all on one device, if no kernels run there, or if one is distributed."""
    check_local(**tensors)
    devices = {x.device for x in tensors.values()}
    if len(devices) == 1 and devices.pop().type == DEVICE.type:
        return
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is no GPU and Triton's interpreter is off: set TRITON_INTERPRET=1, start again")
    *others, last = (f"{name} on {x.device}" for name, x in tensors.items())
    found = f"{', '.join(others)} and {last}" if others else last
    raise ValueError(f"the kernels run on {DEVICE.type} here, and all tensors must be on one such device, got {found}")


def check_values(name: str, x: Tensor, least: float = -math.inf, most: float = LARGEST) -> None:
    """Raise ValueError if an element is NaN or outside of these bounds. On a GPU nothing is checked: a read waits.

    name: the argument, and in words the numbers that it may hold.
    """
    if x.device.type != "cpu":
        return
    x = x.detach().float()  # as kernels read it
    inside = (x >= least) & (x <= most)  # NaN is not
    if not inside.all():
        raise ValueError(f"{name}, got {x[~inside][0]:g}")


def check_place(device: Any) -> torch.device:
    """Return a torch.device, or the one of this name, or raise TypeError or ValueError."""
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a torch.device or its name, got {shown(device)}")
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f'device must be a device of torch, such as "cpu" or "cuda:0", got {shown(device)}') from None


def check_function(function, arguments: tuple, parameters: tuple[str, ...]) -> None:
    """Raise TypeError if a kernel cannot call a function of the user with these parameters and arguments."""
    if not hasattr(function, "fn"):
        raise TypeError(f"expected a @triton.jit function, got {shown(function)}")
    for x in arguments:
        if not isinstance(x, (Tensor, numbers.Real)):
            raise TypeError(f"the arguments of a function in Triton are tensors and numbers, got {shown(x)}")
        if isinstance(x, Tensor):
            check_dense(**{"an argument of a function in Triton": x})
    signature = inspect.signature(function.fn)
    try:
        signature.bind(*parameters, *arguments)
    except TypeError:
        expected = f"({', '.join(parameters)}) and then {len(arguments)} arguments"
        raise TypeError(f"{function.fn.__name__}{signature} is called with {expected}, which do not fit") from None


def differentiated(x) -> bool:
    """Return whether a call needs a derivative with respect to x, backward or forward."""
    if not isinstance(x, Tensor):
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or forward_ad.unpack_dual(x).tangent is not None


def check_no_gradient(function: str, **tensors: Tensor | None) -> None:
    """Raise NotImplementedError if an argument needs a derivative, for a function without one."""
    for name, x in tensors.items():
        if differentiated(x):
            raise NotImplementedError(
                f"{function} has no backward pass, and {name} requires a gradient: call it under torch.no_grad()"
            )


def differentiate_once(gradients, ctx, do, dlse):
    """Return the gradients of an attention with outputs O and lse, for the ``backward`` of an autograd.Function.

    gradients: a function (ctx, dO, dlse, *saved) that returns one gradient per input.
    do, dlse: gradients of O [B, H, Nq, dv] and lse [B, H, Nq]; None where an output is not used.
    O is the first of the saved tensors.

    ``once_differentiable`` does not suffice: it refuses a second derivative with respect to dO and dlse only.
    """
    if do is None and dlse is None:
        return (None,) * len(ctx.needs_input_grad)
    saved = ctx.saved_tensors
    do = torch.zeros_like(saved[0]) if do is None else do
    if torch.is_grad_enabled():
        return _Gradients.apply(gradients, ctx, do, dlse, *saved)
    return gradients(ctx, do, dlse, *saved)


def refuse(ctx, *_):
    """Raise: the derivative of a backward pass, backward or forward."""
    raise NotImplementedError(TWICE)


class _Gradients(torch.autograd.Function):
    """A backward pass as one step for autograd. Its own derivative raises."""

    @staticmethod
    def forward(gradients, ctx, *tensors):
        return gradients(ctx, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save nothing."""

    @staticmethod
    def vmap(info, in_dims, gradients, ctx, *tensors):
        """Compute one output after another, for ``torch.func.jacrev``."""
        batched = list(zip(tensors, in_dims[2:], strict=True))
        results = [
            _Gradients.apply(gradients, ctx, *(x if dim is None else x.select(dim, n) for x, dim in batched))
            for n in range(info.batch_size)
        ]
        stacked = tuple(None if xs[0] is None else torch.stack(xs) for xs in zip(*results, strict=True))
        return stacked, tuple(None if x is None else 0 for x in stacked)

    backward = staticmethod(refuse)
    jvp = staticmethod(refuse)
