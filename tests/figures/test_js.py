"""The scripts of the page: node runs the tests of their pure functions."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.drawn import NODE

TESTS = Path(__file__).parent / "js" / "page.test.mjs"


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_pure_functions_of_the_page():
    run = subprocess.run([NODE, "--test", str(TESTS)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "# fail 0" in run.stdout
