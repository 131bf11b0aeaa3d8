"""The kernels of decoding compiled for GPUs that are not here: they fit, and few registers spill."""

import pytest

from tests.kernels.compiled import compiled

SET_ASIDE = 8  # bytes: with eight warps the assembler spills two registers, which lets three programs fit an SM


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0"])
def test_every_launch_fits_and_few_registers_spill(capability, stack_at_most):
    kernels = compiled("compile_decode", capability)
    assert {k["kernel"] for k in kernels} == {"attention_split", "attention_combine", "attention_merge"}
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
        assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        assert k["stack"] <= max(stack_at_most, SET_ASIDE), f"registers spill: {k}"


@pytest.mark.exhaustive
def test_the_kernel_for_latents_fits_and_few_registers_spill():
    """Sums of 64 x 256 numbers leave few registers: some spill, once per block of keys."""
    for k in compiled("compile_decode", "latent"):
        assert k["shared"] <= 227 * 1024
        assert k["stack"] <= 96, f"registers spill: {k['stack']} bytes"
        assert not k["warnings"]  # of products that the assembler serializes
        assert [loop["HGMMA"] for loop in k["loops"]] == 2 * [9 * 4 + 4]  # 576 columns of a score, 64 keys of a sum
