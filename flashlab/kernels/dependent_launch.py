"""Programmatic dependent launch: a kernel starts before the previous one has ended, and waits for it.

So the host's launch, and the work of a program before its first read, cost no time between two kernels. The previous
kernel must have triggered the launch in all of its programs, or ended. A kernel that waits may trigger the next one at
once: the next one waits until this one has ended, which is after the end of all kernels before.

Source: the CUDA C++ programming guide, "Programmatic Dependent Launch and Synchronization".
"""

import functools

import torch
import triton
import triton.language as tl

from flashlab.kernels.configurations import card


@functools.cache
def possible(device: torch.device) -> bool:
    """Return whether a device supports ``early=True`` of ``launch``."""
    here = card(device)
    return here is not None and here.capability >= (9, 0)


@triton.jit
def begin(early: tl.constexpr):
    """If launched early, wait for the end of the previous kernel, and trigger the next one."""
    if early:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
