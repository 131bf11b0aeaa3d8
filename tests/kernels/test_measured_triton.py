"""The kernels also compile with the Triton of the measurements in ``hopper.json``, older than the installed one."""

from pathlib import Path

import pytest

from flashlab.kernels.tables import ON_HOPPER
from tests.kernels.compiled import compiled

PACKAGES = Path(__file__).parents[2] / f".venv/triton-{ON_HOPPER.triton}"
TOOLS = (
    ("compile_for", "9.0", "8"),
    ("compile_decode", "9.0"),
    ("compile_float8", "9.0", "2"),
    ("compile_linear", "9.0"),
)


@pytest.mark.exhaustive
@pytest.mark.skipif(not PACKAGES.exists(), reason="make test-all installs it")
@pytest.mark.parametrize("tool", TOOLS, ids=[name for name, *_ in TOOLS])
def test_kernels_compile(tool):
    """An older compiler refuses some code that a newer one takes, such as a function that returns None."""
    assert compiled(*tool, packages=PACKAGES)
