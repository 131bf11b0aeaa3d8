"""Read what learners handed in: notebooks, folders and zips.

Nothing is unpacked to the disk: notebooks in a zip are read in memory, so their paths cannot name files here.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

LIMIT = 50 * 2**20  # bytes of all notebooks in a zip; a notebook of the course with its outputs has less than 1 MiB
NUMBERED = re.compile(r"(.*?)_(\d+)_assignsubmission_[a-z]+_?(.*)")  # an entry of Moodle: learner, number, file
UNREADABLE = OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, NotImplementedError


class HandIn(NamedTuple):
    """The files of one learner."""

    learner: str
    notebooks: dict[str, dict]  # by path within the hand-in
    progress: list[dict]
    ignored: list[str]  # paths of other files, and of those that cannot be read
    number: str = ""  # from the entry's name; it tells learners of one name apart


def hand_ins(folder: Path) -> list[HandIn]:
    """Return the hand-in of each learner. A learner has the name of a folder, or of a file without its suffix."""
    paths: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.suffix != ".csv":  # .csv: grades, or the list of the class
            name = path.name if path.is_dir() else path.stem
            numbered = NUMBERED.fullmatch(name)
            paths.setdefault((numbered[1], numbered[2]) if numbered else (name, ""), []).append(path)
    return [_hand_in(learner, number, found) for (learner, number), found in sorted(paths.items())]


def _hand_in(learner, number, paths):
    result = HandIn(learner, {}, [], [], number)
    for name, data in (found for path in paths for found in _files(path)):
        content = _json(data)
        if name.endswith(".ipynb") and isinstance(content.get("cells"), list):
            result.notebooks[name] = content
        elif PurePosixPath(name).name == "progress.json" and content:
            result.progress.append(content)
        else:
            result.ignored.append(name)
    return result


def _files(path) -> Iterator[tuple[str, bytes]]:
    """Yield the path within a hand-in and the content of each file; no content if not needed or unreadable."""
    if not path.is_dir():
        yield from _of_a_file(path, NUMBERED.sub(r"\3", path.name))
        return
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and not file.is_symlink() and _counts(name):
            yield from _of_a_file(file, name)


def _of_a_file(file, name):
    try:
        if file.suffix.lower() == ".zip":
            yield from ((f"{name}/{member}", data) for member, data in _in_zip(file))
        elif _wanted(name):
            yield name, file.read_bytes()
        else:
            yield name, b""
    except UNREADABLE:
        yield name, b""


def _in_zip(file):
    """Return the files in a zip. Raises one of ``UNREADABLE`` if it is damaged, locked or larger than ``LIMIT``."""
    with zipfile.ZipFile(file) as archive:
        members = [it for it in archive.infolist() if not it.is_dir() and _counts(it.filename)]
        if sum(it.file_size for it in members if _wanted(it.filename)) > LIMIT:
            raise ValueError(f"its notebooks are larger than {LIMIT} bytes")
        return [(it.filename, archive.read(it) if _wanted(it.filename) else b"") for it in members]


def _counts(name):
    """Return whether a path is no hidden file, and not below a hidden folder or one that macOS adds to a zip."""
    return not any(part.startswith((".", "__MACOSX")) and part != ".." for part in PurePosixPath(name).parts)


def _wanted(name):
    return name.endswith(".ipynb") or PurePosixPath(name).name == "progress.json"


def _json(data):
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
