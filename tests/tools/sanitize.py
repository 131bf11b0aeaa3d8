"""Run tests under compute-sanitizer's memcheck and racecheck: ``python -m tests.tools.sanitize PYTEST_ARGUMENTS``.

Each tool runs all tests, in parts. The parts run side by side, each in a pytest process. When a part ends, a line about
it is printed, and all its output if it failed. If any part failed, the exit status is 1. The sanitizer checks our
kernels only: it leaves out those whose names begin with _Z, which are C++ functions, such as the kernels of torch in
these tests.
"""

import itertools
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.tools import racecheck

TOOLS = {"memcheck": ["--error-exitcode", "1"], "racecheck": ["--print-limit", "1000"]}
SUMMARIES = {"memcheck": "ERROR", "racecheck": "RACECHECK"}
PARTS = 7  # per tool: two tools share 16 cores, and each process takes gigabytes of a GPU's memory
SECONDS = 400  # limit of a part, since a hung kernel never ends; under racecheck a test takes about 12 s
PORT, PORTS = 49152, 10  # the sanitizer's first port, and how many it tries: each process gets ports of its own


def collected(tests):
    """Return the names of these tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *tests]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.stdout)
    return [line for line in run.stdout.splitlines() if "::" in line]


def divided(names, parts):
    """Return lists of neighbours, of nearly equal length: neighbours share kernels, which a process compiles once."""
    ends = [len(names) * i // parts for i in range(parts + 1)]
    return [names[a:b] for a, b in itertools.pairwise(ends) if a < b]


def command_of(tool, names, place):
    """Return the command of a part."""
    sanitizer = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--kernel-name-exclude", "kns=_Z"]
    sanitizer += ["--port", str(PORT + PORTS * place), "--max-connections", str(PORTS)]
    return [*sanitizer, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *names]


def run(tool, command):
    """Run a part. Return its output if something is wrong, else "", and one line about it."""
    begin = time.monotonic()
    limited = ["timeout", "--kill-after", "5", str(SECONDS), *command]  # ends the processes of the command, too
    result = subprocess.run(limited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    status, output = result.returncode, result.stdout
    harmless, races = racecheck.judge(output)
    ended = f"{SUMMARIES[tool]} SUMMARY: " in output
    wrong = output if status or races or not ended else ""
    passed = f", {harmless} reports passed over" if harmless else ""
    return wrong, f"{tool}: {time.monotonic() - begin:.0f} s, status {status}, {len(races)} races{passed}"


def main(tests):
    """Run both tools over all parts; return whether one found something."""
    if not shutil.which("compute-sanitizer"):
        sys.exit("compute-sanitizer is missing: install the CUDA toolkit or put its bin on PATH.")
    parts = [(tool, names) for names in divided(collected(tests), PARTS) for tool in TOOLS]
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # so that each tensor is memory of its own
    failed = False
    with ThreadPoolExecutor(len(parts)) as threads:
        running = [threads.submit(run, tool, command_of(tool, names, i)) for i, (tool, names) in enumerate(parts)]
        for part in as_completed(running):
            wrong, line = part.result()
            failed |= bool(wrong)
            print(wrong, line, sep="\n" if wrong else "", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
