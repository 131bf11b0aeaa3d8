"""The record of a measurement: where it comes from, and the file that keeps it."""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from flashlab.kernels import INTERPRETED
from flashlab.machine.host import this_machine, versions

NO_GPU = (
    "There is no GPU here for which kernels are compiled. Triton's interpreter shows what a kernel\n"
    "computes and moves; its times are not performance, so nothing is measured."
)
PACKAGES = (
    "numpy",
    "torch",
    "triton",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "transformers",
)  # all code that is ever compared


def has_gpu() -> bool:
    """Tell whether kernels are compiled for a GPU here; where they are not, say so on standard error."""
    if torch.cuda.is_available() and not INTERPRETED:
        return True
    print(NO_GPU, file=sys.stderr)
    return False


def origin(module: str, argv: Sequence[str]) -> dict:
    """Return device, driver, commit, versions, date and command of a measurement by ``python -m module argv``.

    Of absolute paths, which mean nothing elsewhere, the command has the last part.
    """
    driver = _answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    libraries = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else this_machine().cpu,
        "driver": driver,
        "commit": _answer("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "versions": {"python": platform.python_version()} | versions(PACKAGES) | libraries,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", "-m", module, *(Path(it).name if os.path.isabs(it) else it for it in argv)]),
    }


def _answer(*command):
    """Return what a command prints, or "unknown" where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def parser(module: str, doc: str) -> argparse.ArgumentParser:
    """Return the parser of ``python -m module``: described by the first paragraph of doc, with --json."""
    made = argparse.ArgumentParser(f"python -m {module}", description=doc.split("\n\n")[0])
    made.add_argument("--json", type=destination, help="file for the results and their origin")
    return made


def destination(name: str) -> Path:
    """Return the path of a file that can be written, for argparse: a mistake is found before anything is measured."""
    path = Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{name} is a folder: expected the name of a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: expected the name of a file in one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{name} cannot be written: expected a file that can")
    return path


def write(path: Path, report: dict) -> None:
    """Write the report as JSON. Raises OSError."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def keep(path: Path | None, report: dict) -> bool:
    """Write the report, or print it where that fails, so that it is never lost. Return whether it was written."""
    if path is None:
        return True
    try:
        write(path, report)
    except OSError as error:
        print(f"{path} could not be written: {error.strerror}. The report follows.", file=sys.stderr)
        print(json.dumps(report, indent=1))
        return False
    return True
