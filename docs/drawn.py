"""The figures of the site. Its own page, its module and every lesson that shows it load the one script of a figure."""

import html
import importlib
import json
import re
import types
from functools import cache
from importlib.metadata import version
from pathlib import Path

from docs import bare
from figures import page
from figures.figure import declared
from flashlab.course.data import NOTEBOOKS
from flashlab.course.lessons import LESSONS, Lesson, notebook

MODULES = "v1"  # the folder of the modules; a new one when arguments or result of ``render`` change
CHARTS = '<script defer src="../figures/charts.js"></script>'  # makes the charts of a lesson say their values
SCRIPT = '<script type="module">'
# Numbers, drawing and style stay in the script of a figure, which a page from a file can load, too.
RENDER = """(flashlab.renders ??= {}).NAME = (element, { state = {}, brief = false } = {}) => {
  if (brief) element.dataset.brief = "";
  const shown = mount.mount(element, ...figure);
  shown.set(state);
  return { get state() { return shown.state; }, set: (fields) => shown.set(fields) };
};
"""
MODULE = """// {title}, a figure of How FlashAttention works, version {version}, MIT licence
import "../{name}.js";

export const version = "{version}";
export const controls = {controls}; // the fields of a state, and their values
export const render = flashlab.renders.{name}; // (element, {{ state, brief }}) => {{ state, set(fields) }}
"""
FIGURE = re.compile(r"^(?:figures\.)?(\w+)\.explore\(\)$", re.M)  # the line of a notebook that shows a figure


def names() -> list[str]:
    """Return the names of the figures, in the order of the course; those that no lesson shows come last."""
    place = {lesson: number for number, lesson in enumerate(LESSONS)}
    return sorted(page.drawn(), key=lambda name: place.get(lesson_of(name), len(place)))


def figure(name: str) -> types.ModuleType:
    """Return the module of a figure."""
    return importlib.import_module(f"figures.{name}")


@cache
def shown_by(lesson: Lesson) -> list[str]:
    """Return the names of the figures that a lesson shows."""
    cells = json.loads((NOTEBOOKS / notebook(lesson)).read_text(encoding="utf-8"))["cells"]
    return [name for cell in cells if cell["cell_type"] == "code" for name in FIGURE.findall("".join(cell["source"]))]


@cache
def lesson_of(name: str) -> Lesson | None:
    """Return the lesson of a figure's name, or else the first that shows it; None if none does."""
    showing = [lesson for lesson in LESSONS if name in shown_by(lesson)]
    return next((lesson for lesson in showing if lesson.name == name), showing[0] if showing else None)


def title(name: str) -> str:
    """Return the title of a figure: that of the lesson with its name, or its name in words."""
    lesson = lesson_of(name)
    return lesson.title if lesson and lesson.name == name else page.title_of(figure(name))


def alive(name: str, folder: str, *, brief: bool = False) -> str:
    """Return the HTML of a figure. folder: the address of its script's folder; brief: whether it leaves out details."""
    place = _parts(name)[0]
    if brief:
        place = place.replace(" data-figure=", " data-brief data-figure=", 1)
    return f'{place}<script defer src="{folder}/{name}.js"></script>\n'


def write(folder: Path):
    """Write the script of charts, and each figure's script, module, picture and own page, into ``folder``."""
    (folder / MODULES).mkdir(parents=True)
    (folder / "charts.js").write_text("{\n" + page.chart_script() + "}\n", encoding="utf-8")
    for name in names():
        (folder / f"{name}.html").write_text(_page(name), encoding="utf-8")
        (folder / f"{name}.js").write_text(_parts(name)[1], encoding="utf-8")
        (folder / MODULES / f"{name}.js").write_text(module(name), encoding="utf-8")
        (folder / f"{name}.png").write_bytes(page.still(figure(name), figure(name).State()))


def module(name: str) -> str:
    """Return the ES module of a figure, for other people's pages. It exports ``render``, ``controls``, ``version``."""
    controls = json.dumps(declared(figure(name)), ensure_ascii=False)
    number = version("flashlab-course")
    return MODULE.format(title=title(name), version=number, name=name, controls=controls)


def sentence(name: str) -> str:
    """Return the sentence that says what a figure shows: the first line of its docstring."""
    return figure(name).__doc__.split("\n")[0]


def _page(name):
    """Return the page of one figure: its title, its sentence, the figure, and where it comes from."""
    top = f"<h1>{title(name)}</h1>\n<p>{html.escape(sentence(name))}</p>\n"
    whole = f"{top}{alive(name, '.')}{_home(name)}"
    return bare.page(f"{title(name)}, a figure - flashlab", whole, "../")


def _home(name):
    """Return links to the course for readers who come to a figure from elsewhere; they open outside of a frame."""
    words = f'<a href="../index.html" target="_top">{bare.TITLE}</a>'
    if lesson := lesson_of(name):
        address = f"../lessons/{notebook(lesson).removesuffix('.ipynb')}.html"
        words = f'<a href="{address}" target="_top">{lesson.title}</a>, a lesson of {words}'
    return f"<p>From {words}.</p>\n"


@cache
def _parts(name):
    """Return a figure's place on a page, and its script. A page opened as a file may load scripts, but no modules."""
    it = figure(name)
    whole = page.fragment(it, it.State(), page.shipped(it), id=f"figure-{name}", page=True)
    place, _, script = whole.partition(SCRIPT)
    return place, "{\n" + script.removesuffix("</script>\n") + RENDER.replace("NAME", name) + "}\n"
