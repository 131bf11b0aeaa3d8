"""The pages of the lessons: for reading, so they have nothing that only a notebook can do."""

import json
import re

import pytest

from docs import lessons
from flashlab.course.data import NOTEBOOKS

NAMES = lessons.names()


def cells(name, tag):
    """Return the code cells of a lesson's page with a tag."""
    return [cell for cell in lessons.readable(name)["cells"] if tag in cell["metadata"].get("tags", [])]


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_that_nobody_has_done_prints_nothing(name):
    page = lessons.readable(name)
    shown = json.dumps([cell.get("outputs") for cell in page["cells"]], ensure_ascii=False)
    assert not re.search(r"○ [\w.]+: not (answered|attempted) yet|not solved yet|stands in", shown)
    assert not any(cell["outputs"] for cell in cells(name, "exercise"))
    assert all(cell["outputs"] for cell in cells(name, "hide-output"))  # nothing unfolds to nothing


def test_only_the_notebook_asks_for_keys():
    notebook = (NOTEBOOKS / NAMES[0]).read_text(encoding="utf-8")
    page = json.dumps(lessons.readable(NAMES[0]), ensure_ascii=False)
    assert lessons.KEYS in notebook and "Shift+Enter" not in page


def test_a_page_keeps_what_a_cell_prints_beside_an_exercise_that_nobody_has_done():
    (cell,) = [cell for cell in lessons.readable("06_tiling.ipynb")["cells"] if cell["id"] == "own-pass-runs"]
    assert "".join(cell["outputs"][0]["text"]).startswith("Q: 65.5 kB loaded")


@pytest.mark.parametrize("name", lessons.TITLES)
def test_a_page_says_first_that_no_cell_runs(name):
    assert "No cell runs here" in lessons.readable(name)["cells"][1]["source"]


def test_lines_are_broken_where_nothing_is_aligned():
    prose = {cell["id"] for cell in cells(NAMES[0], "prose")}
    assert {"doctor", "hint", "solution"} <= prose and not {"scores", "root-d", "overview"} & prose
