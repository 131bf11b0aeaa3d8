"""The machine that runs the course: its processor, memory, GPU and package versions, and two measured speeds."""

import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from flashlab.machine.arguments import check_arguments

PACKAGES = ("numpy", "torch", "triton", "matplotlib", "ipywidgets", "jupyterlab")


@dataclass(frozen=True)
class Machine:
    """What the lessons need to know about a machine."""

    system: str  # operating system and architecture, such as "Linux x86_64"
    python: str  # version
    cpu: str  # name of the processor
    cores: int
    ram_bytes: int | None  # None if unknown
    gpu: str | None  # name of the GPU that torch can use
    capability: tuple[int, int] | None  # compute capability of that GPU
    versions: dict[str, str]  # by package; a package that is not installed is absent


def this_machine() -> Machine:
    """Describe the machine that runs this program."""
    installed = versions(PACKAGES)
    gpu = capability = None
    if "torch" in installed:
        import torch

        if torch.cuda.is_available():
            gpu, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    system = f"{platform.system()} {platform.machine()}"
    return Machine(system, platform.python_version(), _cpu(), os.cpu_count() or 1, _ram(), gpu, capability, installed)


@check_arguments()
def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each of these packages that is installed."""
    installed = {}
    for package in packages:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


@check_arguments(nbytes=8)
def copy_rate(nbytes: int, repeats: int = 5) -> float:
    """Measure how fast one thread copies an array of ``nbytes`` bytes.

    Returns bytes per second, read and written bytes added up, of the fastest of ``repeats`` attempts. Raises ValueError
    if nbytes < 8 or repeats < 1.
    """
    source = np.ones(nbytes // 8)
    target = np.empty_like(source)
    inner = max(1, 4_000_000 // nbytes)  # copies per reading of the clock: one short copy lasts few ticks

    def copies() -> None:
        for _ in range(inner):
            np.copyto(target, source)

    return 2 * source.nbytes * inner / _shortest(copies, repeats)


@check_arguments()
def matmul_rate(n: int, repeats: int = 5) -> float:
    """Measure how fast numpy multiplies two n x n matrices in float32.

    Returns FLOPs per second of the fastest of ``repeats`` attempts. Raises ValueError if n < 1 or repeats < 1.
    """
    A = np.ones((n, n), np.float32)
    return 2 * n**3 / _shortest(lambda: A @ A, repeats)


def _shortest(work: Callable[[], object], repeats: int) -> float:
    """Return the seconds of the fastest of ``repeats`` calls, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _ram() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
