"""Hardware counters of a GPU, read by Nsight Compute (``ncu``) around each kernel of one marked run."""

import csv
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import torch


def marked(run: Callable[[], object]) -> None:
    """Call ``run`` twice: once to compile and warm up, then between the marks that ``count`` looks for."""
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def count(
    module: str, arguments: Sequence[str], counters: Mapping[str, str], *, options: Sequence[str] = ()
) -> list[dict]:
    """Run ``python -m module arguments``, which calls ``marked``, under ncu.

    Args:
        counters: ncu's names of the metrics, by our own. options: more options of ncu.

    Returns:
        One dict per kernel, in the order of the launches: its name as "kernel", and an integer per counter.

    Raises:
        RuntimeError: ncu is missing, takes longer than two minutes, or counts nothing.
    """
    command = ["ncu", "--clock-control", "none", *options, "--profile-from-start", "off", "--csv"]
    command += ["--print-units", "base", "--metrics", ",".join(counters.values())]
    command += [sys.executable, "-m", module, *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError as error:
        raise RuntimeError("ncu is not installed: it is a part of the CUDA toolkit") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError("ncu did not finish within two minutes") from error
    lines = run.stdout.splitlines()
    tables = [at for at, line in enumerate(lines) if line.startswith('"ID"')]
    if run.returncode or not tables:
        raise RuntimeError("ncu counted nothing: " + " ".join((run.stdout + run.stderr).split())[-400:])
    kernels = {}
    for row in csv.DictReader(lines[tables[0] :]):
        kernel = kernels.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        for name, metric in counters.items():
            if row["Metric Name"] == metric:
                kernel[name] = int(float(row["Metric Value"].replace(",", "")))
    return list(kernels.values())
