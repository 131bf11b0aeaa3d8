"""Tell whether .venv is whole, for the Makefile. It runs in .venv's Python and needs no package.

python tests/tools/environment.py check    exit 1 unless the set-up was finished here and nothing is gone since
python tests/tools/environment.py broken   print the packages that pip believes installed and whose files are gone
python tests/tools/environment.py stamp    record that the set-up is finished
"""

import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAMP = ROOT / ".venv/.stamp"


def installed():
    """Return the names in site-packages, without versions: an upgrade by hand is no damage."""
    names = {path.name for path in Path(sysconfig.get_path("purelib")).iterdir()}
    return {name for name in names if not name.endswith(".dist-info")} - {"__pycache__"}


def whole():
    """Return whether the stamp was written in this folder and all that it lists is still there."""
    folder, *names = STAMP.read_text(encoding="utf-8").split("\n")
    return folder == str(ROOT) and set(names) <= installed()


def stamp():
    """Write the folder and what is installed, one a line: last in the set-up, so that an interrupted one goes on."""
    STAMP.write_text("\n".join([str(ROOT), *sorted(installed())]), encoding="utf-8")


def broken():
    """Return the packages of which a file is missing, as requirements with their versions."""
    return sorted(
        f"{distribution.name}=={distribution.version}"
        for distribution in distributions()
        if any(not file.locate().exists() for file in distribution.files or () if file.suffix != ".pyc")
    )


if __name__ == "__main__":
    task = sys.argv[1]
    if task == "check":
        sys.exit(0 if whole() else 1)
    elif task == "broken":
        print(*broken())
    elif task == "stamp":
        stamp()
