"""The kernels of float8 compiled for GPUs that are not here: products of float8, sums in float32, and no spills."""

import json
import os
import subprocess
import sys

import pytest


def compiled(*arguments):
    command = [sys.executable, "-m", "tests.tools.compile_float8", *arguments]
    run = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability, product", [("9.0", "QGMMA"), ("8.9", "QMMA")])
def test_float8_is_multiplied_as_float8_and_nothing_spills(capability, product):
    kernels = compiled(capability)
    attention = [k for k in kernels if k["kernel"] == "attention_forward"]
    assert len(attention) == 18 and {k["kernel"] for k in kernels} == {"attention_forward", "quantise_block"}
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
    for k in attention:
        others = {name for name, n in k["products"].items() if n and name.endswith("MMA")} - {product, "FFMA"}
        assert k["products"][product] > 0 and not others, f"other products: {k}"
        assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        assert 128 % k["Br"] == 0 and 128 % k["Bc"] == 0, f"tiles of several blocks: {k}"
    for k in kernels if capability == "9.0" else attention:  # on 8.9, a rotation of 256 columns spills 16 bytes
        # At d = 256, tiles of 128 x 128 spill and are the fastest all the same: h200_float8.json.
        assert k["stack"] <= (144 if k["Br"] == k["Bc"] == 128 else 0), f"registers spill: {k}"


@pytest.mark.exhaustive
def test_two_levels_take_additions_for_multiplications():
    """Hopper: O is multiplied by alpha before a sum in the tensor core, and while the sum is added after one."""
    by_case = {k["case"]: k for k in compiled("9.0", "2")}
    one, two = by_case["d = 64, one level"], by_case["d = 64, full"]
    assert (one["flush"], two["flush"]) == (None, two["Bc"])
    loops = 2  # whole tiles, and one that reaches past the last key
    elements = loops * two["Br"] * 64 // (two["warps"] * 32)  # of O per thread
    assert two["products"]["FFMA"] - one["products"]["FFMA"] == elements
    assert one["products"]["FMUL"] - two["products"]["FMUL"] == elements
    assert two["products"]["QGMMA"] == one["products"]["QGMMA"]
