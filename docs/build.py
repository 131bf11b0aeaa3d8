"""Build the site: `python -m docs.build [FOLDER]`."""

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from docs import drawn, lessons, pages, panels, sharing

HERE = Path(__file__).parent
ROOT = HERE.parent

# What the theme and its extensions lack for readers with a screen reader or without a mouse.
MENDED = {
    'class="caption" role="heading"': 'class="caption" role="heading" aria-level="2"',
    '<summary aria-label="Toggle hidden content">': "<summary>",
    '<div class="output text_html"><img': '<div tabindex="0" class="output text_html"><img',
    '<div class="output text_html"><figure': '<div tabindex="0" class="output text_html"><figure',
    'display="block"': 'display="block" tabindex="0"',  # wide formulas scroll, as charts do
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}

PUNCTUATED = re.compile(r'(<math[^>]*display="inline">(?:(?!</math>).)*</math>)([,.;:?!)]+)', re.DOTALL)


def main(target: Path) -> int:
    """Write the site into the folder ``target``, which is emptied first. Return the exit status of Sphinx."""
    if target.exists() and not (target / "index.html").exists() and any(target.iterdir()):
        sys.exit(f"{target} holds files that are no site: name another folder, or empty it.")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "source", Path(folder) / "site"
        lessons.write(source / "lessons")
        pages.write(source)
        status = build_main(
            ["-c", str(HERE), "-b", "html", "-j", "auto", "-W", "--keep-going", "-q", str(source), str(built)]
        )
        if status:
            return status
        mend(built)
        drawn.write(built / "figures")
        panels.write(built / "figures")
        lessons.write_for_colab(built / "colab")
        sharing.add(built)
        shutil.rmtree(built / ".doctrees", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(built, target)
    return 0


def mend(folder: Path):
    """Replace what ``MENDED`` lists in every page, and keep a formula and its punctuation on one line."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for found, better in MENDED.items():
            text = text.replace(found, better)
        text = PUNCTUATED.sub(r'<span class="kept">\1\2</span>', text)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.build", description="Build the site.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "_site", help="is emptied first; _site by default"
    )
    sys.exit(main(parser.parse_args().folder))
