"""Launch a kernel, and remember the compiled kernel for calls with arguments of the same kinds.

Triton inspects every argument of every launch to find the compiled kernel that fits. The fit depends on everything but
the contents of the tensors and their addresses, apart from alignment.
"""

import contextlib

import torch

FORGET_AFTER = 4096  # compiled kernels
HERE = contextlib.nullcontext()  # on the current device
kept = {}  # everything that the fit depends on -> the compiled kernel; a benchmark reads it


def launch(kernel, grid, tensors, numbers, *, warps, stages=1, early=False):
    """Run a grid (x, y, z) of programs. The kernel's arguments are tensors, or descriptors of them, and then numbers.

    numbers: sizes, strides, constexprs, and the arguments of a problem, which may contain tensors. A tensor that a
    kernel can do without may be None. early: start before the previous kernel has ended; the kernel waits for it itself
    (compute capability 9.0).
    """
    bases = tuple(getattr(x, "base", x) for x in tensors)  # the tensors that descriptors describe
    device = bases[0].device
    if device.type != "cuda":
        if hasattr(kernel, "is_gluon") and kernel.is_gluon():  # Triton interprets no Gluon
            from flashlab.kernels.gluon_interpreter import interpret  # late: few launches need it

            interpret(kernel, grid, tensors, numbers)
        else:
            kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages)
        return
    key = (kernel, device, warps, stages, early, _fit(bases), _fit(numbers))
    compiled = kept.get(key)
    with _current(device):
        if compiled is None:
            options = {"launch_pdl": True} if early else {}
            compiled = kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages, **options)
            if len(kept) >= FORGET_AFTER:
                kept.clear()
            kept[key] = compiled
        else:
            compiled[grid](*tensors, *numbers)


def _current(device):
    """Return the context in which torch and Triton launch on this device."""
    return HERE if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _fit(x):
    """Return x with each tensor replaced by what the fit depends on: its dtype, and whether it is aligned."""
    if isinstance(x, tuple):
        return tuple(map(_fit, x))
    return (x.dtype, x.data_ptr() % 16 == 0) if isinstance(x, torch.Tensor) else x
