"""Tests of kernels import triton: flashlab.kernels must have chosen between compiler and interpreter before."""

import flashlab.kernels  # noqa: F401
