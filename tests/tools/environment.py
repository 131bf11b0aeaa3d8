"""Check whether .venv is whole, for the Makefile. It runs in .venv's Python and needs no package.

python tests/tools/environment.py check    exit 1 unless the set-up was finished here and nothing is damaged since
python tests/tools/environment.py broken   print the packages of which files are missing or truncated
python tests/tools/environment.py stamp    record that the set-up is finished
"""

import csv
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAMP = ROOT / ".venv/.stamp"
SITE = Path(sysconfig.get_path("purelib"))


def installed():
    """Return the names in site-packages, metadata without versions: an upgrade by hand is no damage."""
    names = {path.name for path in SITE.iterdir()} - {"__pycache__"}
    return {name.partition("-")[0] + ".dist-info" if name.endswith(".dist-info") else name for name in names}


def whole():
    """Return whether the stamp was written in this folder, all that it lists exists, and no package is broken."""
    folder, *names = STAMP.read_text(encoding="utf-8").split("\n")
    return folder == str(ROOT) and set(names) <= installed() and not broken()


def stamp():
    """Write the folder and what is installed, one a line: last in the set-up, so that an interrupted one goes on."""
    STAMP.write_text("\n".join([str(ROOT), *sorted(installed())]), encoding="utf-8")


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
        stamp()
