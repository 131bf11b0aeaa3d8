"""Run ``pip install`` with these arguments and print its progress, for the Makefile. Needs no package.

python tests/tools/install.py ...
"""

import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

LOG = Path(__file__).resolve().parents[2] / ".venv/pip.log"  # all that pip printed in its last run
PACE = 5.0  # seconds between two lines of progress
MB = {"kB": 1e-3, "MB": 1, "GB": 1e3}
SITE = Path(sysconfig.get_path("purelib"))


def install(arguments):
    """Run ``pip install``, print its progress every few seconds, and its errors if it fails. Return its exit status.

    pip alone prints a page of lines per minute, and no line while it unpacks, which is half of the time.
    """
    options = ["--disable-pip-version-check", "--no-compile", "--progress-bar", "off"]
    before, began, status = count(), time.monotonic(), None
    with LOG.open("w", encoding="utf-8") as log:
        pip = subprocess.Popen([sys.executable, "-m", "pip", "install", *options, *arguments], stdout=log, stderr=log)
    while status is None:
        try:
            status = pip.wait(PACE)
        except subprocess.TimeoutExpired:
            minutes, seconds = divmod(round(time.monotonic() - began), 60)
            print(f"  {minutes}:{seconds:02}  {progress(printed(), count() - before)}", flush=True)
        except KeyboardInterrupt:  # pip gets it, too
            status = pip.wait() or 130
    if status:
        lines = printed().splitlines()
        errors = [at for at, line in enumerate(lines) if line.startswith(("ERROR", "Traceback"))]
        print(*lines[errors[0] if errors else -10 :], f"All that pip printed is in {LOG}", sep="\n", flush=True)
    return status


def printed():
    """Return what pip has printed."""
    return LOG.read_text(encoding="utf-8", errors="replace")


def count():
    """Return the number of packages that are installed."""
    return len(list(SITE.glob("[!~]*.dist-info")))


def progress(log, new):
    """Return the progress that pip's log shows. new: the number of packages that it has installed."""
    if lists := re.findall("^Installing collected packages: (.*)", log, re.MULTILINE):
        return f"unpacked {new} of {lists[-1].count(',') + 1} packages"
    if retries := re.findall(r"^WARNING: (Retrying.{1,90})", log.splitlines()[-1] if log else ""):
        return retries[0]
    files = re.findall(r"^ *(?:Downloading|Using cached) (\S+(?<!metadata)) \(([\d.]+) (\w+)\)", log, re.MULTILINE)
    if not files:
        return f"looked up {len(re.findall('^Collecting ', log, re.MULTILINE))} packages"
    name, size, unit = files[-1]
    total = sum(float(size) * MB.get(unit, 0) for _, size, unit in files)
    return f"package {len(files)}, {name.split('-')[0]} ({size} {unit}): {total:,.0f} MB with it"


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
