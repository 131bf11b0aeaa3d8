"""The record of a measurement: its command, its origin, its jobs one after another, and the file that keeps it."""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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
    "xformers",  # has FlashAttention-3
    "transformers",
)  # all packages whose code is compared
INTERRUPTED = 130  # the exit status of a command that Ctrl-C ended


def origin(module: str, argv: Sequence[str]) -> dict:
    """Return device, driver, commit, versions, date and command of a measurement by ``python -m module argv``.

    The command has only the last part of absolute paths, which mean nothing elsewhere.
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
    command_line = argparse.ArgumentParser(f"python -m {module}", description=doc.split("\n\n")[0])
    command_line.add_argument("--json", type=destination, help="file for the results and their origin")
    return command_line


def need_gpu() -> None:
    """End the command with status 2 and a sentence where no kernel is compiled for a GPU."""
    if not torch.cuda.is_available() or INTERPRETED:
        print(NO_GPU, file=sys.stderr)
        raise SystemExit(2)


def whole(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def pause(text: str) -> float:
    """Return seconds, for argparse: 0 or more."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected 0 seconds or more, got {text}")
    return seconds


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


def run(jobs: Iterable[tuple[object, Callable[[], object]]], report: dict, path: Path | None, seconds=math.inf) -> None:
    """Run jobs, each of which adds its results to the report. After each, free its memory and write the report.

    Args:
        jobs: a name and a function each.
        report: "left_out" gets the reason why a job failed or did not begin, by its name; "seconds" is the time that
            all jobs took; "interrupted" is True after Ctrl-C.
        seconds: after which no job begins.
    """
    left_out, start = report.setdefault("left_out", {}), time.monotonic()
    try:
        for name, job in jobs:
            if time.monotonic() - start > seconds:
                left_out[str(name)] = f"not begun after {seconds:.0f} s"
                continue
            try:
                job()
            except Exception as failure:  # any exception: the other jobs still run
                left_out[str(name)] = reason(failure)
            torch.cuda.empty_cache()
            report["seconds"] = round(time.monotonic() - start)
            if path is not None:
                with contextlib.suppress(OSError):  # ``conclude`` says so
                    write(path, report)
    except KeyboardInterrupt:
        report["interrupted"] = True


def reason(failure: Exception) -> str:
    """Return the first line of an exception's message, or its kind if it has none."""
    return (str(failure).strip() or type(failure).__name__).split("\n")[0]


def conclude(report: dict, path: Path | None, *tables: str) -> int:
    """Print the tables and what was not timed, and store the report. Return the exit status of the command."""
    for table in tables:
        print(table)
    for what, why in report.get("left_out", {}).items():
        print(f"not timed: {what}: {why}")
    if report.get("interrupted"):
        print(f"interrupted: {len(report['rows'])} rows were measured", file=sys.stderr)
    is_stored = keep(path, report)
    return INTERRUPTED if report.get("interrupted") else 0 if is_stored else 1


def write(path: Path, report: dict) -> None:
    """Write the report as JSON. Raises OSError."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def keep(path: Path | None, report: dict) -> bool:
    """Write the report, or print it where that fails, so that it is never lost. Return False if writing failed."""
    if path is None:
        return True
    try:
        write(path, report)
    except OSError as error:
        print(f"{path} could not be written: {error.strerror}. The report follows.", file=sys.stderr)
        print(json.dumps(report, indent=1))
        return False
    return True
