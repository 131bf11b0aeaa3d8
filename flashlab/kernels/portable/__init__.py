"""Attention kernels in Triton: for every GPU that Triton compiles for, and for its interpreter."""

from flashlab.kernels.portable import backward, forward, forward_float8

__all__ = ["backward", "forward", "forward_float8"]
