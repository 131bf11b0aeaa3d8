"""The stored notebooks as pages: their figures alive, their answers folded, and copies that install themselves."""

import json
import os
import re
import subprocess
from pathlib import Path

from docs.drawn import CHARTS, FIGURE, alive
from flashlab.course.data import NOTEBOOKS
from flashlab.course.lessons import LESSONS, Lesson, notebook, number

COURSE = "https://github.com/flashlab-course/flashlab"
REPOSITORY = os.environ.get("FLASHLAB_REPOSITORY") or COURSE  # the repository of the lessons; a fork sets its own
PROJECT = "/".join(REPOSITORY.split("/")[-2:])
SITE = "https://{}.github.io/{}".format(*PROJECT.split("/"))
COLAB = f"https://colab.research.google.com/github/{PROJECT}/blob/gh-pages/colab"
CODESPACE = f"https://codespaces.new/{PROJECT}"
# A line of links to the map and the neighbours of a lesson, which a page has elsewhere.
NEIGHBOURS = re.compile(r"^\[.*\]\(00_start_here\.ipynb#The-map\).*\n*", re.M)
# What a stored notebook prints for an unsolved exercise. ``links`` says so once, for the whole page.
UNTOUCHED = re.compile(r"^(?:○ \S+: not (?:answered|attempted) yet\b|\S+ is not solved yet:).*\n?", re.M)
NEEDED_LESSONS = re.compile(r"\blessons? (\d\d)(?: (to|and) (\d\d))?")
KEYS = "Press Shift+Enter in each code cell as you come to it."  # true in a notebook only
ALIGNED = re.compile(r"\S {2,}\S|^(?!  next: )[ \[]", re.M)  # columns, arrays and code, whose lines must not be broken
PREDICT = re.compile(r"\b(predict|guess|before you run|say before)\b", re.I)

TITLES = {notebook(it): f"{number(it):02} · {it.title}" for it in LESSONS}  # titles of the pages of lessons
ROOT = NOTEBOOKS.parent
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
# What a Colab machine may lack (Triton, without a GPU). Its own torch and Triton stay: they fit its driver.
NEEDED = {name: re.search(rf"^{name}==([\w.]+)", PINS, re.M)[1] for name in ("anywidget", "hypothesis", "triton")}


def install(commit: str) -> str:
    """Return the first cell of a copy for Colab: it fetches the course of this commit and installs what is missing."""
    return f"""# On Google Colab, run this cell first; elsewhere leave it out. A GPU is used if there is one.
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

course = pathlib.Path("/content/flashlab-{commit[:12]}")
if not course.exists():
    part = course.with_suffix(".part")  # renamed once all files are there
    shutil.rmtree(part, ignore_errors=True)
    subprocess.run(["git", "init", "--quiet", part], check=True)
    subprocess.run(["git", "fetch", "--quiet", "--depth=1", "{REPOSITORY}", "{commit}"], cwd=part, check=True)
    subprocess.run(["git", "checkout", "--quiet", "FETCH_HEAD"], cwd=part, check=True)
    part.rename(course)
needed = {json.dumps(NEEDED)}
missing = [f"{{name}}=={{version}}" for name, version in needed.items() if importlib.util.find_spec(name) is None]
if missing:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing], check=True)
sys.path.insert(0, str(course))
os.environ["PYTHONPATH"] = str(course)  # for the processes that a lesson starts
os.chdir(course / "notebooks")
os.environ["FLASHLAB_FIGURES"] = "whole"  # an output of Colab cannot ask its kernel for more numbers
"""


def this_commit() -> str:
    """Return the hash of this checkout's commit; in a copy without git return HEAD, the newest in the repository."""
    if not (ROOT / ".git").exists():
        return "HEAD"
    return subprocess.check_output(["git", "rev-parse", "--verify", "HEAD"], cwd=ROOT, text=True).strip()


def names() -> list[str]:
    """Return the file names of all notebooks, in the order of the course, the notation last."""
    return [*map(notebook, LESSONS), "notation.ipynb"]


def anchor(words: str) -> str:
    """Return the name by which Jupyter links to a heading."""
    return words.replace(" ", "-")


def write(folder: Path):
    """Write each notebook, changed for reading, into ``folder``."""
    folder.mkdir(parents=True)
    for name in names():
        (folder / name).write_text(json.dumps(readable(name)), encoding="utf-8")


def write_for_colab(folder: Path):
    """Write each lesson into ``folder``, not yet run, with a first cell that installs what it needs."""
    folder.mkdir(parents=True)
    source = install(this_commit())
    for name in names():
        lesson = stored(name)
        for cell in lesson["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
        first = {"cell_type": "code", "id": "install", "metadata": {}, "execution_count": None, "outputs": []}
        lesson["cells"].insert(0, first | {"source": source})
        (folder / name).write_text(json.dumps(lesson, ensure_ascii=False), encoding="utf-8")


def readable(name: str) -> dict:
    """Return a stored notebook with figures that move and links to run it; imports and outputs with answers fold."""
    lesson = stored(name)
    asked = False  # whether outputs up to the next prose answer a question
    for cell in lesson["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = NEIGHBOURS.sub("", source).replace("](data/", "](../notebooks/data/")
            cell["source"] = source.replace("](../", f"]({REPOSITORY}/blob/main/").replace(KEYS, "")
            asked = bool(PREDICT.search(source))
            continue
        tags = cell["metadata"].get("tags", [])
        if source.startswith(("import ", "from ")):
            tags = ["hide-input"]
        cell["outputs"] = [it for it in map(_touched, cell["outputs"]) if it]
        if cell["outputs"] and all(_is_prose(_text(it)) for it in cell["outputs"]):
            tags = [*tags, "prose"]
        if figure := FIGURE.search(source):
            html = alive(figure[1], "../figures")
            cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": html}, "metadata": {}}]
        elif cell["outputs"] and (asked or cell["metadata"].get("jupyter", {}).get("outputs_hidden")):
            tags = [*tags, "hide-output"]
        cell["metadata"]["tags"] = tags
        asked = asked or "exercise" in tags
    if charts := [data for data in _html(lesson) if "data-chart=" in "".join(data["text/html"])]:
        charts[0]["text/html"] = "".join(charts[0]["text/html"]) + CHARTS
    if name in TITLES:
        first = lesson["cells"][0]
        first["source"] = re.sub("^# .*", f"# {TITLES[name]}", "".join(first["source"]))
        lesson["cells"].insert(1, links(name))
    return lesson


def needed(lesson: Lesson) -> set[Lesson]:
    """Return the lessons that a lesson needs, as its opening names them."""
    opening = "".join(stored(notebook(lesson))["cells"][0]["source"])
    found = set()
    for first, link, last in NEEDED_LESSONS.findall(re.search(r"\*\*You need\*\*.*", opening)[0]):
        numbers = range(int(first), int(last) + 1) if link == "to" else [int(it) for it in (first, last) if it]
        found |= {LESSONS[it] for it in numbers}
    return found


def _touched(output):
    """Return an output without the lines about unsolved exercises; None if nothing is left."""
    if "text" not in output:
        return output
    text = UNTOUCHED.sub("", "".join(output["text"]))
    return output | {"text": text} if text else None


def _text(output):
    """Return what an output shows as text: nothing for a picture or HTML."""
    data = output.get("data", {})
    return "".join(output.get("text", "") or ("" if len(data) > 1 else data.get("text/plain", "")))


def _is_prose(text):
    """Return whether the lines of a text may be broken: it has one line, or no columns."""
    return "\n" not in text.strip() or not ALIGNED.search(text)


def _html(lesson):
    """Return the data of each output that has HTML."""
    outputs = (output.get("data", {}) for cell in lesson["cells"] for output in cell.get("outputs", []))
    return [data for data in outputs if "text/html" in data]


def links(name: str) -> dict:
    """Return the cell that links a page to its notebook, in Colab or on a machine, and says how the page differs."""
    words = (
        f"[Run in Google Colab]({COLAB}/{name}){{.start}} or on your machine: `make lab` ([set up](../set_up.md)) · "
        f"[the notebook itself]({REPOSITORY}/blob/main/notebooks/{name})\n\n"
        "Exercises are empty on this page. What other cells print comes from a run with the course's solutions. No "
        "cell runs here: where the text says *run the cell*, read the output below it. To do the exercises, open the "
        "notebook, which checks your answers."
    )
    return {"cell_type": "markdown", "id": "run-it", "metadata": {}, "source": words}


def stored(name: str) -> dict:
    """Return a notebook as it is stored."""
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
