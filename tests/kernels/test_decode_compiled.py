"""The kernels of decoding compiled for GPUs that are not here: they fit, and no register spills."""

import json
import os
import subprocess
import sys

import pytest


def compiled(*arguments):
    command = [sys.executable, "-m", "tests.tools.compile_decode", *arguments]
    run = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0"])
def test_every_launch_fits_and_no_register_spills(capability, stack_at_most):
    kernels = compiled(capability)
    assert {k["kernel"] for k in kernels} == {"attention_split", "attention_combine", "attention_merge"}
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
        assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        assert k["stack"] <= stack_at_most, f"registers spill: {k}"
