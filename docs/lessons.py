"""The stored notebooks as pages: their figures alive, their answers folded, and copies that install themselves."""

import json
import re
from pathlib import Path

from docs.drawn import alive
from flashlab.course.lessons import LESSONS, notebook

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
REPOSITORY = "https://github.com/flashlab-course/flashlab"
COLAB = "https://colab.research.google.com/github/flashlab-course/flashlab/blob/gh-pages/colab"
FIGURE = re.compile(r"^(?:figures\.)?(\w+)\.explore\(\)$", re.M)
PREDICT = re.compile(r"\b(predict|guess|before you run|say before)\b", re.I)

# What a machine of Colab lacks. Its own torch and Triton stay: they belong to its driver.
INSTALL = f"""# On Google Colab, run this cell first; elsewhere leave it out.
import os
import pathlib
import subprocess
import sys

course = pathlib.Path("/content/flashlab")
if not course.exists():
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{REPOSITORY}", course], check=True)
needed = ["anywidget", "hypothesis"]
subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *needed], check=True)
sys.path.insert(0, str(course))
os.chdir(course / "notebooks")
"""


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
    for name in names():
        lesson = _stored(name)
        for cell in lesson["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
        first = {"cell_type": "code", "id": "install", "metadata": {}, "execution_count": None, "outputs": []}
        lesson["cells"].insert(0, first | {"source": INSTALL})
        (folder / name).write_text(json.dumps(lesson, ensure_ascii=False), encoding="utf-8")


def readable(name: str) -> dict:
    """Return a stored notebook with figures that move, imports and given-away answers folded, and links to run it."""
    lesson = _stored(name)
    asked = False
    for cell in lesson["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = source.replace("](data/", "](../notebooks/data/")
            cell["source"] = source.replace("](../", f"]({REPOSITORY}/blob/main/")
            asked = bool(PREDICT.search(source))
            continue
        if source.startswith(("import ", "from ")):
            cell["metadata"]["tags"] = ["hide-input"]
        figure = FIGURE.search(source)
        if figure:
            html = alive(figure[1], "../figures")
            cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": html}, "metadata": {}}]
        elif asked or cell["metadata"].get("jupyter", {}).get("outputs_hidden"):
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-output"]
        asked = "exercise" in cell["metadata"].get("tags", [])
    if name != "notation.ipynb":
        lesson["cells"].insert(1, _links(name))
    return lesson


def _links(name):
    words = f"[Run it in Colab]({COLAB}/{name}) · [the notebook itself]({REPOSITORY}/blob/main/notebooks/{name})"
    return {"cell_type": "markdown", "id": "run-it", "metadata": {}, "source": words}


def _stored(name):
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
