"""Run the tools that compile for a GPU that is not here and read what they print; read the version of a package."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def compiled(tool: str, *arguments: str, packages: Path | None = None) -> list[dict]:
    """Run ``tests.tools.TOOL`` in a process with TRITON_INTERPRET=0, and return what it prints: a dict per line.

    packages: a folder with packages that the process imports in place of the installed ones.
    """
    command = [sys.executable, "-m", f"tests.tools.{tool}", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    if packages:
        environment["PYTHONPATH"] = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def release(name: str) -> tuple[int, ...]:
    """Return the first two numbers of a package's version."""
    return tuple(map(int, version(name).split(".")[:2]))
