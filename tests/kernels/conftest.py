"""Tests of kernels import triton: flashlab.kernels must have chosen between compiler and interpreter before."""

import importlib.util

if importlib.util.find_spec("triton"):
    import flashlab.kernels  # noqa: F401
else:  # macOS, Windows
    collect_ignore_glob = ["test_*.py"]
