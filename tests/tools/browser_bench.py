"""Measure how fast figures answer a key and notebooks run on this machine: `make bench`. Not a test."""

import datetime
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from statistics import median, quantiles

from tests.browser.lab import ROOT, Lab, figures

PRESSES = 40
KEYS = {
    "slider": (["ArrowRight"], ["ArrowLeft"]),
    "menu": (["Space", "ArrowDown", "Enter"], ["Space", "ArrowUp", "Enter"]),
    "box": (["Space"], ["Space"]),
}


def main():
    print(f"{datetime.date.today()}, {platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with Lab() as lab:
        print(f"JupyterLab {version('jupyterlab')}, ipywidgets {version('ipywidgets')}, Chromium {lab.browser.version}")
        print(f"\nFrom key press to changed picture, {PRESSES} presses; limits: median 60 ms, 95th percentile 120 ms")
        print(f"{'figure':24}{'control':16}{'median':>10}{'95th':>10}")
        for name, notebook in figures().items():
            if notebook:
                field, times = latencies(lab.open(notebook).figure(name))
                p95 = quantiles(times, n=20, method="inclusive")[-1]
                print(f"{name:24}{field:16}{median(times):7.0f} ms{p95:7.0f} ms", flush=True)
    print("\nNotebooks under nbval, each with a pytest of its own; limits: 15 s, 400 kB")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        seconds, outcome = nbval(path)
        print(f"{path.stem:40}{seconds:7.1f} s{path.stat().st_size / 1000:7.0f} kB  {outcome}", flush=True)


def latencies(figure):
    """Return a control of the figure, a slider if it has one, and the ms of each press that changed the picture."""
    field = next((field for field in figure.fields if figure.kind(field) == "slider"), figure.fields[-1])
    there, back = KEYS[figure.kind(field)]
    times = []
    for _ in range(4 * PRESSES):  # not every step of a slider need change the picture
        before = figure.position(field)
        ms = figure.press(field, *there)
        if ms is not None:
            times.append(ms)
        elif figure.position(field) == before:
            there, back = back, there  # it was at the end
        if len(times) == PRESSES:
            break
    return field, times


def nbval(path):
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-sanitize-with",
               "tests/tools/sanitize.cfg", "--nbval-cell-timeout", "120", str(path)]  # fmt: skip
    begun = time.perf_counter()
    run = subprocess.run(command, cwd=ROOT, capture_output=True)
    return time.perf_counter() - begun, run.stdout.decode().strip().splitlines()[-1]


if __name__ == "__main__":
    main()
