"""How an attempt in Triton is launched: no stub, and on outputs that show what it stored."""

import inspect

import torch

from flashlab.course.judge import NEVER
from flashlab.kernels import DEVICE

MARGIN = 8  # elements around each output that a kernel must leave as they are


def attempted(kernel):
    """Return a learner's kernel, or function for kernels. Raises NotImplementedError for a stub."""
    if not hasattr(kernel, "fn"):
        raise TypeError("expected a Triton kernel: put @triton.jit above the def")
    if "raise NotImplementedError" in inspect.getsource(kernel.fn):
        raise NotImplementedError
    return kernel


def launched(kernel, grid, *args):
    """Launch a learner's kernel."""
    attempted(kernel)[grid](*args)


def inside_margins(rows, N, name="the output"):
    """Return an output [rows, N] of NEVER within a tensor of sevens, and a function that takes it off the device.

    Raises IndexError if any seven was stored over, and ValueError if nothing was stored in the output.
    """
    whole = torch.full((rows + 2, N + MARGIN), 7.0, dtype=torch.float32, device=DEVICE)  # [rows + 2, N + MARGIN]
    part = whole[1:-1, :N]  # [rows, N]
    part.view(torch.int32).fill_(NEVER)

    def stored():
        kept = whole.clone()
        kept[1:-1, :N] = 7.0
        if not (kept == 7.0).all():
            raise IndexError(
                "it stored outside the output: is the store masked, and are its rows where the output has them?"
            )
        if part.numel() and (part.view(torch.int32) == NEVER).all():
            raise ValueError(f"nothing was stored in {name}")
        return part.cpu().numpy()

    return part, stored
