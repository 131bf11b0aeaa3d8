"""Check whether .venv is whole, for the Makefile. It runs in .venv's Python and needs no package.

python tests/tools/environment.py check         exit 1 unless each set-up was finished here and nothing is damaged since
python tests/tools/environment.py broken        print the packages of which files are missing or truncated
python tests/tools/environment.py stamp FILE    record in this file that a set-up is finished
python tests/tools/environment.py install ...   run pip install with these arguments, and print how far it is
"""

import csv
import os
import re
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LOG = VENV / "pip.log"  # what pip printed last
PACE = 5.0  # seconds between two lines on how far pip is
MB = {"kB": 1e-3, "MB": 1, "GB": 1e3}
SITE = Path(sysconfig.get_path("purelib"))


def installed():
    """Return the names in site-packages, metadata without versions: an upgrade by hand is no damage."""
    names = {path.name for path in SITE.iterdir()} - {"__pycache__"}
    return {name.partition("-")[0] + ".dist-info" if name.endswith(".dist-info") else name for name in names}


def whole():
    """Return whether all stamps were written in this folder, all that they list exists, and no package is broken."""
    stamps = [file.read_text(encoding="utf-8").split("\n") for file in VENV.glob(".stamp*")]
    there = {str(ROOT), *installed()}
    return bool(stamps) and all(it[0] == str(ROOT) and set(it) <= there for it in stamps) and not broken()


def stamp(file):
    """Write the folder and what is installed, one a line: last in a set-up, so that an interrupted one goes on."""
    Path(file).write_text("\n".join([str(ROOT), *sorted(installed())]), encoding="utf-8")


def install(arguments):
    """Run ``pip install``, and print every few seconds how far it is. Return its exit status, once its reason is said.

    pip alone prints a page of lines per minute, and none at all while it unpacks, which is half of the time.
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
    """Return how far pip is, by what it has printed. new: packages that it has installed."""
    if found := re.findall("^Installing collected packages: (.*)", log, re.MULTILINE):
        return f"unpacked {new} of {found[-1].count(',') + 1} packages"
    if found := re.findall(r"^WARNING: (Retrying.{1,90})", log.splitlines()[-1] if log else ""):
        return found[0]
    files = re.findall(r"^ *(?:Downloading|Using cached) (\S+(?<!metadata)) \(([\d.]+) (\w+)\)", log, re.MULTILINE)
    if not files:
        return f"looked up {len(re.findall('^Collecting ', log, re.MULTILINE))} packages"
    name, size, unit = files[-1]
    total = sum(float(size) * MB.get(unit, 0) for _, size, unit in files)
    return f"package {len(files)}, {name.split('-')[0]} ({size} {unit}): {total:,.0f} MB with it"


def broken():
    """Return the packages of which a file is missing or shorter than when it was installed, as pinned requirements.

    The files and their sizes are those of RECORD; ``importlib.metadata`` leaves out missing files since Python 3.12.
    A longer file was edited. A package that came from a folder, as this course does, is skipped: another package of
    its name may be on the index.
    """
    folders = sorted(SITE.glob("[!~]*.dist-info"))  # pip renames to ~ what it is about to remove
    records = {folder.stem: recorded(folder) for folder in folders if not (folder / "direct_url.json").exists()}
    sizes = {}  # of a file that two packages bring, the smaller: the second installation wrote over the first
    for files in records.values():
        for name, size in files.items():
            sizes[name] = min(size, sizes.get(name, size))
    damaged = {name for name, size in sizes.items() if is_damaged(SITE / name, size)}
    return ["==".join(stem.split("-")) for stem, files in records.items() if not damaged.isdisjoint(files)]


def recorded(folder):
    """Return {path from site-packages: size in bytes, 0 where none is recorded} of the files of a package."""
    files = {}
    with suppress(OSError, ValueError), (folder / "RECORD").open(encoding="utf-8", newline="") as lines:
        files = {name: int(size or 0) for name, _, size in csv.reader(lines) if not name.endswith(".pyc")}
    return files or {f"{folder.name}/RECORD": sys.maxsize}  # a size that no file has: RECORD itself is damaged


def is_damaged(path, size):
    """Return whether the file is missing or has fewer bytes than ``size``."""
    try:
        return os.stat(path).st_size < size
    except OSError:
        return True


if __name__ == "__main__":
    task = sys.argv[1]
    if task == "check":
        sys.exit(0 if whole() else 1)
    elif task == "broken":
        print(*broken())
    elif task == "stamp":
        stamp(sys.argv[2])
    elif task == "install":
        sys.exit(install(sys.argv[2:]))
