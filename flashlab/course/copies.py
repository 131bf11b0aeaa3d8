"""Keep the learner's copies of the lessons in ``notebooks/mine``, which git ignores, so that ``git pull`` works.

``make lab`` calls ``python -m flashlab.course.copies``. It makes the copies that are missing and updates those without
a changed cell. Where both sides changed, it says so and leaves the copy as it is; ``--take 06_tiling`` then writes the
newest version with the learner's cells in it, and keeps the old copy under another name. Cells are compared by their
ids and sources. ``versions.json`` stores the digests of the cells that a copy was made from. If a lesson
gets another number, its copy is renamed.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from uuid import uuid4

from flashlab.course.data import NOTEBOOKS

COMMAND = ".venv/bin/python -m flashlab.course.copies"
VERSIONS = "versions.json"
DEEPER = re.compile(r"\]\((?=\.\./|data/)")  # the start of links that need one ../ more in a copy


def refresh(notebooks: Path = NOTEBOOKS) -> list[str]:
    """Make missing copies and update those without a changed cell. Return messages to the learner, a sentence each.

    Raises OSError if a copy cannot be written.
    """
    mine, edited, sentences = notebooks / "mine", _edited(notebooks), []
    if not mine.exists():
        mine.mkdir()
        sentences.append(f"Your copies of the lessons are in {_short(mine)}: git pull leaves them as they are.")
    versions = _versions(mine)
    for lesson in sorted(notebooks.glob("*.ipynb")):
        try:
            sentences += _refreshed(lesson, versions, edited)
        except ValueError as error:
            sentences.append(f"{error}, so it was left alone.")
    _write(mine / VERSIONS, versions)
    return sentences


def take(name: str, notebooks: Path = NOTEBOOKS) -> str:
    """Write the newest version of a lesson with the learner's cells; return a sentence on it.

    name: such as "06_tiling" or "06". The old copy stays beside the new one. Raises ValueError for an unknown
    lesson, a lesson without a copy and a file that is no notebook, OSError if a file cannot be written.
    """
    lessons = {path.stem: path for path in sorted(notebooks.glob("*.ipynb"))}
    found = [stem for stem in lessons if name in (stem, f"{stem}.ipynb", stem.partition("_")[0])]
    if not found:
        raise ValueError(f"expected one of {', '.join(lessons)}, got {name!r}")
    lesson = lessons[found[0]]
    copy = _copy(lesson)
    if not copy.exists():
        raise ValueError(f"there is no {_short(copy)} yet: make lab makes it")
    versions, newest = _versions(copy.parent), _published(lesson, _edited(notebooks))
    result, cells = merged(versions.get(_title(copy), {}), _read(copy), newest)
    saved = _unused(copy)
    copy.rename(saved)
    _write(copy, result)
    _write(copy.parent / VERSIONS, versions | {_title(copy): digests(newest)})
    return f"{_short(copy)} is the newest version, with {cells} of your cells; {saved.name} is your copy as it was."


def merged(base: dict[str, str], mine: dict, newest: dict) -> tuple[dict, int]:
    """Return the newest version of a notebook with the cells that the learner changed or added, and their number.

    base: the digests of the version that ``mine`` was copied from. A cell that the learner changed replaces the cell of
    the newest version if that one is as in ``base``, and otherwise follows it. An added cell follows the cell that it
    followed in ``mine``.
    """
    current, present = digests(newest), digests(mine)
    replaced, added, after = {}, defaultdict(list), ""
    for cell in mine["cells"]:
        name = cell["id"]
        if name in current:
            after = name
        if present[name] in (base.get(name), current.get(name)):
            continue
        if name not in current:
            added[after].append(cell)
        elif current[name] == base.get(name):
            replaced[name] = cell
        else:
            added[after].append(cell | {"id": uuid4().hex[:8]})
    cells = added[""].copy()
    for cell in newest["cells"]:
        cells += [replaced.get(cell["id"], cell), *added[cell["id"]]]
    return newest | {"cells": cells}, len(replaced) + sum(map(len, added.values()))


def digests(notebook: dict) -> dict[str, str]:
    """Return a digest of the kind and source of each cell, by the cell's id."""
    texts = {cell["id"]: f"{cell['cell_type']} {''.join(cell['source'])}" for cell in notebook["cells"]}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def _refreshed(lesson, versions, edited):
    """Bring the copy of a lesson up to date, and return the sentences on it."""
    newest, copy, title = _published(lesson, edited), _copy(lesson), _title(lesson)
    version, before = digests(newest), versions.get(title)
    if not copy.exists():
        _write(copy, _read(lesson))  # with the answers that it already contains
        versions[title] = version
        path = _short(lesson)
        moved = f"What you changed in {path} is in your copy now; git restore {path} undoes it there."
        return [moved] if lesson.name in (edited or ()) else []
    if before == version:
        return []
    present = digests(_read(copy))
    if present == version:  # versions.json was lost, or is older than the copy
        versions[title] = version
        return []
    if present != before or edited is None:
        take_it = f"{COMMAND} --take {lesson.stem}"
        return [f"{lesson.stem} has a newer version. Your copy stays; to bring your cells into the new one: {take_it}"]
    _write(copy, newest)
    versions[title] = version
    return [f"{lesson.stem} is updated."]


def _copy(lesson):
    """Return the path of a lesson's copy. A copy under an earlier number of the lesson is renamed."""
    copy = lesson.parent / "mine" / lesson.name
    earlier = sorted(copy.parent.glob(f"[0-9][0-9]_{_title(lesson)}.ipynb"))
    if earlier and not copy.exists():
        earlier[0].rename(copy)
    return copy


def _title(lesson):
    """Return the name of a lesson without its number."""
    return lesson.stem.partition("_")[2] or lesson.stem


def _edited(notebooks):
    """Return the file names of lessons that differ from git's newest commit; None outside a checkout."""
    listed = _git(notebooks, "diff", "--name-only", "--relative", "HEAD", "--", ".")
    return None if listed is None else set(listed.splitlines())


def _published(lesson, edited):
    """Return a lesson as the course published it, with links from the folder of the copies."""
    committed = _git(lesson.parent, "show", f"HEAD:./{lesson.name}") if lesson.name in (edited or ()) else None
    return _parsed(committed, lesson) if committed else _read(lesson)


def _git(folder, *arguments):
    """Return the output of a git command; None if there is no git or the command fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode()


def _read(path):
    return _parsed(path.read_text(encoding="utf-8"), path)


def _parsed(text, path):
    """Return the notebook in a text: a lesson with the links that its copy needs, a copy as it is."""
    try:
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            deeper = cell["cell_type"] == "markdown" and path.parent.name != "mine"
            cell["source"] = (DEEPER.sub("](../", source) if deeper else source).splitlines(keepends=True)
        digests(notebook)  # raises KeyError where a cell lacks what every cell must have
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{_short(path)} is not a notebook that can be read") from None
    return notebook


def _versions(mine):
    try:
        return json.loads((mine / VERSIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # every cell counts as changed


def _write(path, content):
    """Replace a file; all or nothing."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _unused(copy):
    """Return the first of 06_tiling_before, 06_tiling_before2, … that does not exist."""
    paths = (copy.with_name(f"{copy.stem}_before{number}.ipynb") for number in ("", *range(2, 1000)))
    return next(path for path in paths if not path.exists())


def _short(path):
    return os.path.relpath(path)


def main(arguments: list[str]) -> str | None:
    """Bring the copies up to date, or take one lesson's newest version; return an error message or None."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n")[0])
    parser.add_argument("--take", metavar="06_tiling", help="the newest version of this lesson, with your cells in it")
    lesson = parser.parse_args(arguments).take
    try:
        for sentence in refresh() if lesson is None else [take(lesson)]:
            print(sentence)
    except OSError as error:
        return f"{error.filename} could not be written: {error.strerror}"
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
