"""Ask a process whose Triton compiles: the compiler and the interpreter cannot share one."""

import json
import os
import subprocess
import sys


def answer(module: str, name: str, names: tuple[str, ...]) -> dict:
    """Return what ``python -m module name`` prints last, as JSON.

    Raises:
        ValueError: a name that is not one of ``names``. subprocess.CalledProcessError: the process failed.
    """
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}, got {name!r}")
    command, environment = [sys.executable, "-m", module, name], os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])
