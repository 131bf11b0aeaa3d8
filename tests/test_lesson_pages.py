"""The pages of the lessons are for reading: they leave out what only a notebook can do."""

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
def test_an_unsolved_exercise_prints_nothing(name):
    page = lessons.readable(name)
    shown = json.dumps([cell.get("outputs") for cell in page["cells"]], ensure_ascii=False)
    assert not re.search(r"○ [\w.]+: not (answered|attempted) yet|not solved yet|stands in", shown)
    assert not any(cell["outputs"] for cell in cells(name, "exercise"))
    assert all(cell["outputs"] for cell in cells(name, "hide-output"))  # no empty output is folded


def test_only_the_notebook_asks_for_shift_enter():
    notebook = (NOTEBOOKS / NAMES[0]).read_text(encoding="utf-8")
    page = json.dumps(lessons.readable(NAMES[0]), ensure_ascii=False)
    assert lessons.KEYS in notebook and "Shift+Enter" not in page


def test_a_page_keeps_what_a_cell_prints_beside_an_unsolved_exercise():
    (cell,) = [cell for cell in lessons.readable("06_tiling.ipynb")["cells"] if cell["id"] == "own-pass-runs"]
    assert "".join(cell["outputs"][0]["text"]).startswith("Q: 65.5 kB loaded")


@pytest.mark.parametrize("name", lessons.TITLES)
def test_a_page_says_first_that_no_cell_runs(name):
    assert "No cell runs here" in lessons.readable(name)["cells"][1]["source"]


def test_only_outputs_without_aligned_columns_are_wrapped():
    prose = {cell["id"] for cell in cells(NAMES[0], "prose")}
    assert {"doctor", "hint", "solution"} <= prose and not {"scores", "root-d", "overview"} & prose
