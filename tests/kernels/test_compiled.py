"""The kernels compiled for GPUs that are not here: what they take of shared memory and registers."""

import pytest

from flashlab.kernels.configurations import HALVES, PORTABLE
from tests.kernels.compiled import compiled


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "9.0"])
def test_every_launch_fits_and_no_register_spills(capability, stack_at_most):
    kernels = compiled("compile_for", capability)
    names = {"forward", "row_constants", *PORTABLE, *(HALVES if capability == "9.0" else ())}
    names |= {"add_parts"} if capability in ("8.0", "9.0") else set()
    assert {k["kernel"] for k in kernels} == names
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
        if k["plain"]:  # what scores and masks exchange between threads is not in the bound
            assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        if capability >= "8.0":  # 7.5 has no matrix unit that Triton uses, and spills
            assert k["stack"] <= stack_at_most, f"registers spill: {k}"
