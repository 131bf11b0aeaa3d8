"""The figures of the site: one script each, which its own page and every lesson that shows it load."""

import importlib
import types
from functools import cache
from pathlib import Path

from figures import page
from flashlab.course.lessons import LESSONS

SCRIPT = '<script type="module">'


def names() -> list[str]:
    """Return the names of the figures, in the order of the course."""
    place = {lesson.name: number for number, lesson in enumerate(LESSONS)}
    return sorted(page.drawn(), key=lambda name: place.get(name, len(place)))


def figure(name: str) -> types.ModuleType:
    """Return the module of a figure."""
    return importlib.import_module(f"figures.{name}")


def alive(name: str, folder: str) -> str:
    """Return the HTML of a figure whose script is in ``folder``, an address."""
    return f'{_parts(name)[0]}<script defer src="{folder}/{name}.js"></script>\n'


def write(folder: Path):
    """Write each figure's script, and a page of its own for links and frames, into ``folder``."""
    folder.mkdir(exist_ok=True)
    for name in names():
        whole = page.page(figure(name), _parts(name)[0] + f'<script defer src="{name}.js"></script>\n')
        (folder / f"{name}.html").write_text(whole, encoding="utf-8")
        (folder / f"{name}.js").write_text(_parts(name)[1], encoding="utf-8")


@cache
def _parts(name):
    """Split a figure into its place on a page and its script. A file's page may load scripts, but no modules."""
    it = figure(name)
    html = page.fragment(it, it.State(), page.shipped(it), id=f"figure-{name}", page=True)
    place, _, script = html.partition(SCRIPT)
    return place, "{\n" + script.removesuffix("</script>\n") + "}\n"
