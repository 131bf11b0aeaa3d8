"""Launch a kernel with little work on the host.

Triton inspects every argument of every launch to find the compiled kernel that fits, which takes longer than a small
kernel runs. The fit depends on everything but the contents of the tensors, so this module remembers it.
"""

import contextlib

import torch

_compiled = {}  # what a launch depends on -> the compiled kernel
FORGET_AFTER = 4096  # launches of different shapes


def launch(kernel, grid, tensors, numbers, *, warps, stages=1):
    """Run a grid (x, y, z) of programs. The kernel's arguments are tensors, or descriptors of them, and then numbers.

    numbers: sizes, strides, constexprs, and what a problem tells, which may hold more tensors. Tensors must start at
    multiples of 16 bytes, as torch's own do; those inside numbers need not. One that a kernel can do without may be
    None.
    """
    bases = [getattr(x, "base", x) for x in tensors]  # the tensors that descriptors describe
    device = bases[0].device
    if device.type != "cuda":
        kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages)
        return
    key = (kernel, *(x if x is None else x.dtype for x in bases), device, warps, stages, _fit(numbers))
    with torch.cuda.device(device) if device.index != torch.cuda.current_device() else contextlib.nullcontext():
        if key in _compiled:
            _compiled[key][grid](*tensors, *numbers)
        else:
            if len(_compiled) == FORGET_AFTER:
                _compiled.clear()
            _compiled[key] = kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages)


def _fit(x):
    """Return x with each tensor replaced by what the fit depends on: its dtype, and whether it is aligned."""
    if isinstance(x, tuple):
        return tuple(map(_fit, x))
    return (x.dtype, x.data_ptr() % 16 == 0) if isinstance(x, torch.Tensor) else x
