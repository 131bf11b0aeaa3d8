"""The pages that are no lessons: front page, figures, measurements, interface, Markdown."""

import importlib
import pkgutil
import re
from itertools import groupby
from pathlib import Path

import flashlab
from docs import front, gallery, measurements
from docs.lessons import COURSE, REPOSITORY
from flashlab.course.lessons import LESSONS, notebook

HERE = Path(__file__).parent
# The Markdown files of this folder that become pages.
WRITTEN = ("set_up", "teach", "flash_attention", "accessibility", "about")
WINGS = {
    "machine": "What a GPU is, and what it charges",
    "reference": "One idea per module, in numpy",
    "kernels": "Kernels in Triton and Gluon",
    "models": "Modules for torch",
    "distributed": "One sequence on several GPUs",
    "course": "What makes it a course",
    "bench": "Measurements",
}


def write(folder: Path):
    """Write the sources of all pages into ``folder``."""
    for name, text in {
        "index.md": index(),
        "figures.md": gallery.page(),
        "embed.md": gallery.embed(),
        "measurements.md": measurements.page(),
        "interface.rst": interface(),
        **{f"{name}.md": written(name) for name in WRITTEN},
        **{f"interface/{package}.rst": members(package) for package in _packages()},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def index() -> str:
    """Return the front page with the tables of contents that the sidebar shows."""
    parts = "\n".join(_part(part, list(some)) for part, some in groupby(LESSONS, key=lambda lesson: lesson.part))
    return f"""{front.page()}
{parts}
```{{toctree}}
:hidden:
:caption: Beside the lessons
lessons/notation.ipynb
figures
embed
measurements
flash_attention
interface
set_up
teach
accessibility
about
```
"""


def _part(part, some):
    toctree = "\n".join(f"lessons/{notebook(lesson)}" for lesson in some)
    return f"```{{toctree}}\n:hidden:\n:caption: {part}\n{toctree}\n```\n"


def written(name: str) -> str:
    """Return a page of this folder. Its links to lessons lead to the site, those to other files to the repository."""
    text = (HERE / f"{name}.md").read_text(encoding="utf-8").replace(f"git clone {COURSE}", f"git clone {REPOSITORY}")
    text = re.sub(r"\]\(\.\./notebooks/(?=\w+\.ipynb)", "](lessons/", text)
    return text.replace("](../", f"]({REPOSITORY}/blob/main/")


def interface() -> str:
    """Return the page that links to the interface of each package."""
    entries = "\n   ".join(f"interface/{package}" for package in _packages())
    return f"Interface\n=========\n\n.. toctree::\n   :maxdepth: 2\n\n   {entries}\n"


def members(package: str) -> str:
    """Return the page of a wing, or of a package in it: the public functions and classes of its own modules."""
    words = WINGS.get(package)
    title = _headed(f"{package}: {words[0].lower()}{words[1:]}" if words else package, "=")
    modules = [name for name, is_package in _inside(package) if not is_package and not name.endswith("__main__")]
    return "\n\n".join([title, _documented(package), *(f"{_headed(it, '-')}\n\n{_documented(it)}" for it in modules)])


def _documented(module):
    """Return the directive for a module. For a package, add links to the names that it exports from its own modules."""
    whole = importlib.import_module(f"flashlab.{module}")
    offered = [(name, getattr(whole, name)) for name in getattr(whole, "__all__", ()) if hasattr(whole, "__path__")]
    links = [
        f":py:obj:`{name} <{it.__module__}.{name}>`"
        for name, it in offered
        if getattr(it, "__module__", "").startswith(f"{whole.__name__}.")
    ]
    names = f"\nTo be imported from here: {', '.join(links)}.\n" if links else ""
    return f".. automodule:: flashlab.{module}\n   :members:\n   :ignore-module-all:\n{names}"


def _headed(words, line):
    return f"{words}\n{line * len(words)}"


def _inside(package):
    """Return the dotted name of each module of a package, and whether it is a package itself."""
    path = importlib.import_module(f"flashlab.{package}").__path__
    return [(f"{package}.{it.name}", it.ispkg) for it in pkgutil.iter_modules(path)]


def _packages():
    """Return the wings, each before its packages. Exercises have no page: they contain the answers."""
    present = {it.name for it in pkgutil.iter_modules(flashlab.__path__)}
    for wing in (wing for wing in WINGS if wing in present):
        yield wing
        yield from (name for name, is_package in _inside(wing) if is_package and name != "course.exercises")
