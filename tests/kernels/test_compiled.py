"""The kernels compiled for GPUs that are not here: their shared memory, registers and stack."""

import pytest

from flashlab.kernels.tables import HALVES, PORTABLE
from tests.kernels.compiled import compiled

WAITING = 16  # bytes of stack, written once per head, while the loops of dK and dV need the registers


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "9.0"])
def test_every_launch_fits_and_few_registers_spill(capability, stack_at_most):
    kernels = compiled("compile_for", capability)
    names = {"forward", "row_constants", *PORTABLE, *(HALVES if capability == "9.0" else ())}
    names |= {"add_parts"} if capability in ("8.0", "9.0") else set()
    assert {k["kernel"] for k in kernels} == names
    for k in kernels:
        assert k["shared"] <= k["available"], f"does not fit: {k}"
        if k["plain"]:  # the bound leaves out what threads exchange for scores and masks
            assert k["shared"] <= k["bound"], f"the bound is too low: {k}"
        if capability >= "8.0":  # 7.5 has no matrix unit that Triton uses, and spills
            waits = capability == "9.0" and k["kernel"] == "key_value_gradients" and k["configuration"][:2] == [128, 64]
            assert k["stack"] <= max(stack_at_most, WAITING if waits else 0), f"registers spill: {k}"
