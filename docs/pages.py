"""The pages that are no lessons: the front page, the figures, the measurements, the wrong answers, the interface."""

import base64
import html
import importlib
import pkgutil
from itertools import groupby
from pathlib import Path

import flashlab
from docs import drawn
from docs.lessons import REPOSITORY
from figures import page
from flashlab.course import data
from flashlab.course.lessons import LESSONS, notebook

ROOT = Path(__file__).resolve().parents[1]
WINGS = {
    "machine": "What a GPU is, and what it charges",
    "reference": "One idea per module, in numpy",
    "kernels": "Kernels in Triton and Gluon",
    "models": "Modules for torch",
    "distributed": "One sequence on several GPUs",
    "course": "What makes it a course",
    "bench": "Measurements",
}
OURS = ("hopper", "portable", "flashlab")


def write(folder: Path):
    """Write the sources of all pages into ``folder``."""
    for name, text in {
        "index.md": front(),
        "figures.md": gallery(),
        "measurements.md": measurements(),
        "wrong_answers.md": (ROOT / "tests/mutants/README.md").read_text(encoding="utf-8"),
        "interface.rst": interface(),
        **{f"interface/{wing}.rst": members(wing) for wing in _wings()},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def front() -> str:
    """Return the front page: what the course is, one figure that moves, and the map."""
    toctree = "\n".join(f"lessons/{notebook(lesson)}" for lesson in LESSONS)
    return f"""# How FlashAttention works

A course that you can read here and run anywhere: {len(LESSONS)} lessons from one softmax to kernels that run at the
speed of the production ones. Bytes are counted in the code that runs. Every printed number is executed again by a test.
Every figure replays a recorded run: play it, step through it, point at a tile.

{_raw(drawn.alive("tiling", "figures"))}

**To read**: begin with [lesson 00](lessons/{notebook(LESSONS[0])}). **To run**: each lesson has a link to Google Colab;
on your own machine, `git clone {REPOSITORY}`, then `make lab`. A GPU is not needed.

{_map()}

```{{toctree}}
:hidden:
:caption: Lessons
{toctree}
lessons/notation.ipynb
```

```{{toctree}}
:hidden:
:caption: Beside the lessons
figures
measurements
wrong_answers
interface
```
"""


def gallery() -> str:
    """Return the page of all figures, each with a picture and a link to its own page."""
    cards = "\n".join(_card(name) for name in drawn.names())
    return f"""# Figures

Each has a page of its own, which needs no kernel and no network. Set the controls, take the link, and all who open it
see what you see. In a page of yours: `<iframe src="…/figures/tiling.html" width="100%" height="760"></iframe>`.

{_raw(f'<div class="cards">{cards}</div>')}
"""


def _card(name):
    figure = drawn.figure(name)
    source = f"data:image/png;base64,{base64.b64encode(page.still(figure, figure.State())).decode()}"
    title = next((lesson.title for lesson in LESSONS if lesson.name == name), name.replace("_", " ").capitalize())
    return f'<a href="figures/{name}.html"><img alt="" loading="lazy" src="{source}"><br>{title}</a>'


def measurements() -> str:
    """Return the page of stored measurements of speed, as bars, each with its device, date and command."""
    files = [path.stem for path in sorted(data.DATA.glob("h200_*.json"))]
    parts = [_measured(name, data.measured(name)) for name in files]
    return "# Measurements\n\nTFLOP/s of what is computed, longer is better. Ours are dark red.\n\n" + "\n\n".join(
        filter(None, parts)
    )


def _measured(name, stored):
    rows = [row for row in stored.get("rows", ()) if {"impl", "tflops", "pass", "d", "causal", "N"} <= row.keys()]
    if not rows:
        return None
    versions = ", ".join(f"{package} {version}" for package, version in stored["versions"].items())
    cell = lambda row: (row["pass"], row["d"], row["causal"], row["N"])  # noqa: E731
    tables = [_bars(*of, list(group)) for of, group in groupby(sorted(rows, key=cell), cell)]
    return f"## {name}\n\n{stored['device']}, {stored['date']}; {versions}. `{stored['command']}`\n\n" + _raw(
        f'<div class="cells">{"".join(tables)}</div>'
    )


def _bars(which, d, causal, N, rows):
    """Return a small table: a bar for each implementation."""
    most = max(row["tflops"] for row in rows)
    lines = "".join(
        f'<tr class="{"ours" if row["impl"] in OURS else "theirs"}"><th scope="row">{html.escape(row["impl"])}</th>'
        f'<td class="bar"><span style="width: {100 * row["tflops"] / most:.1f}%"></span></td>'
        f'<td class="number">{row["tflops"]:.0f}</td></tr>'
        for row in sorted(rows, key=lambda row: -row["tflops"])
    )
    words = f"{which}, d = {d}, {'causal' if causal else 'no mask'}, N = {N:,}"
    return f"<table><caption>{words}</caption>{lines}</table>"


def interface() -> str:
    """Return the page that links to the interface of each wing."""
    entries = "\n   ".join(f"interface/{wing}" for wing in _wings())
    return f"Interface\n=========\n\n.. toctree::\n   :maxdepth: 2\n\n   {entries}\n"


def members(wing: str) -> str:
    """Return the page of one wing: every public function and class of its modules, from their docstrings."""
    title = _headed(f"{wing}: {WINGS[wing][0].lower()}{WINGS[wing][1:]}", "=")
    modules = (f"{_headed(module, '-')}\n\n{_documented(module)}" for module in _modules(wing))
    return "\n\n".join([title, _documented(wing), *modules])


def _documented(module):
    return f".. automodule:: flashlab.{module}\n   :members:\n"


def _headed(words, line):
    return f"{words}\n{line * len(words)}"


def _modules(wing):
    package = importlib.import_module(f"flashlab.{wing}")
    found = pkgutil.walk_packages(package.__path__, f"{wing}.")
    return [it.name for it in found if "exercises" not in it.name and not it.name.endswith("__main__")]


def _wings():
    present = {it.name for it in pkgutil.iter_modules(flashlab.__path__)}
    return [wing for wing in WINGS if wing in present]


def _map():
    """Return the lessons by part, as lists."""
    parts = []
    for part, lessons in groupby(LESSONS, key=lambda lesson: lesson.part):
        lines = "\n".join(f"- [{it.title}](lessons/{notebook(it)}): {it.proves}" for it in lessons)
        parts.append(f"## {part}\n\n{lines}")
    return "\n\n".join(parts)


def _raw(text):
    return f"```{{raw}} html\n{text}\n```"
