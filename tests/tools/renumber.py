"""Number the lessons anew, after a line of ``flashlab.course.lessons`` was inserted or moved.

    python -m tests.tools.renumber

A new notebook has the path notebooks/NAME.ipynb at first. Notebooks get the file names of their places, and texts the
new numbers, in these forms: "lessons 06 (tiles), 08", [06 Tiling](06_tiling.ipynb), `--lessons 06 08`. Titles, links to
neighbours, the README's table and those of the map are written from the list. A range keeps its ends: only the author
knows whether a new lesson inside belongs to it.
"""

import re
from pathlib import Path

import nbformat

from flashlab.course.lessons import LESSONS, WAYS, notebook, number, rows, ways

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ".github", "docs", "figures", "flashlab", "notebooks", "tests"
SUFFIXES = ".ipynb", ".md", ".py"
COPIES = ROOT / "notebooks" / "mine"
NUMBERS = re.compile(
    r"\b[Ll]esson\s\d\d|\b[Ll]essons\s\d\d(?:(?:\s\([^()]*\))?(?:,|\s(?:and|to|or))\s\d\d\b)*|--lessons(?:\s\d\d\b)+"
    r"|\[(?:← )?\d\d(?=[^][]*\]\([./a-z]*\d\d_)"
)
LINKS = re.compile(r"^(?:\[← .*)?\[map\]\(00_start_here.*", re.MULTILINE)
TITLE = re.compile(r"# (?:\d\d · )?(.*)")


def changes():
    """Return what differs from the list: new paths of notebooks, and new texts of files, both by present path."""
    stems = {path.stem: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    now = {it: next(stem for stem in stems if re.fullmatch(rf"(\d\d_)?{it.name}", stem)) for it in LESSONS}
    lessons = {stems[stem]: it for it, stem in now.items()}
    candidates = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    paths = [ROOT / "README.md", *(path for path in candidates if COPIES not in path.parents)]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    new = {path: renumbered(text, now) for path, text in texts.items()}
    new[ROOT / "README.md"] = table(new[ROOT / "README.md"], r"\d\d", rows("notebooks/"))
    read = {it: nbformat.reads(new[path], as_version=4) for path, it in lessons.items()}
    titles = {it: TITLE.match(cells.cells[0].source)[1] for it, cells in read.items()}
    new |= {path: nbformat.writes(linked(read[it], it, titles)) + "\n" for path, it in lessons.items()}
    places = {path: path.with_name(notebook(it)) for path, it in lessons.items()}
    moved = {old: path for old, path in places.items() if old != path}
    return moved, {path: text for path, text in new.items() if text != texts[path]}


def renumbered(text, now):
    """Return a text with new numbers. now: the present stem of each lesson's notebook."""
    before = {stem: it for it, stem in now.items() if stem != it.name}
    numbers = {stem[:2]: f"{number(it):02}" for stem, it in before.items()}
    text = NUMBERS.sub(
        lambda match: re.sub(r"\b\d\d\b(?![^(]*\))", lambda it: numbers.get(it[0], it[0]), match[0]), text
    )
    return re.sub(rf"\b({'|'.join(before)})\b", lambda it: notebook(before[it[0]]).removesuffix(".ipynb"), text)


def linked(opened, lesson, titles):
    """Return a notebook with its title, its links to the neighbours, and the tables of the map."""
    first, *_, last = opened.cells
    first.source = TITLE.sub(f"# {number(lesson):02} · {titles[lesson]}", first.source, count=1)
    for cell in first, last:
        cell.source = one(LINKS, links(lesson, titles), cell.source)
    for cell in opened.cells:
        if cell.source.startswith("## The map\n"):
            cell.source = table(table(cell.source, r"\d\d", rows()), WAYS[0].name, ways())
    return opened


def links(lesson, titles):
    """Return the line of links with which a lesson opens and closes."""
    at = number(lesson)
    labels = {it: f"{number(it):02} {titles[it]}" for it in LESSONS}
    before = [f"[← {labels[it]}]({notebook(it)})" for it in LESSONS[max(at - 1, 0) : at]]
    after = [f"[{labels[it]} →]({notebook(it)})" for it in LESSONS[at + 1 : at + 2]]
    here = "[map](00_start_here.ipynb#The-map)", "[notation and glossary](notation.ipynb)"
    return " · ".join([*before, *here, *after])


def table(text, first, lines):
    """Return a text in which these lines replace the rows of a table, from the row that begins with ``first`` on."""
    return one(re.compile(rf"^\| {first} \|.*(?:\n\|.*)*", re.MULTILINE), "\n".join(lines), text)


def one(pattern, words, text):
    """Return a text in which these words replace the one match of the pattern."""
    result, places = pattern.subn(lambda _: words, text)
    if places != 1:
        raise ValueError(
            f"expected one place like {pattern.pattern} in the text that begins {text[:60]!r}, got {places}"
        )
    return result


def main():
    """Write what differs, and print it."""
    moved, texts = changes()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for old, path in moved.items():
        old.rename(path)
    print(*sorted(str(path.relative_to(ROOT)) for path in texts), sep="\n")


if __name__ == "__main__":
    main()
