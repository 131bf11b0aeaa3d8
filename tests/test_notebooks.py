"""What a notebook is like as it is committed. That it runs, and prints what it stores, nbval checks (`make test`)."""

import ast
import re
from statistics import median

import nbformat
import pytest

from tests.tools.normalise import ROOT, faults, normalise

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [pytest.param(nbformat.read(path, as_version=4), id=path.stem) for path in PATHS]
lessons = pytest.mark.parametrize("notebook", LESSONS)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_exercise(cell):
    return "exercise" in cell.metadata.get("tags", [])


def words(source):
    """Words of prose: mathematics, tables and addresses are read differently."""
    prose = re.sub(r"\$\$.*?\$\$|\$.*?\$|\]\(.*?\)|^\|.*?$", " ", source, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\w[\w'’.-]*", prose)


def test_every_lesson_is_numbered_and_named_for_its_idea():
    assert PATHS
    assert [path.name for path in PATHS if not re.fullmatch(r"\d\d_[a-z_]+\.ipynb", path.name)] == []


@lessons
def test_stored_as_make_notebooks_leaves_it(notebook):
    assert list(faults(notebook)) == []
    assert notebook == normalise(notebook), "run make notebooks"


@lessons
def test_25_to_50_cells(notebook):
    count = len(notebook.cells)
    assert 25 <= count <= 50


@lessons
def test_code_cells_are_short(notebook):
    lengths = {cell.id: len(cell.source.splitlines()) for cell in code(notebook)}
    assert median(lengths.values()) <= 5, f"half of the code cells have more lines than 5: {lengths}"
    assert {name: lines for name, lines in lengths.items() if lines > 16 and name != "imports"} == {}


@lessons
def test_prose_cells_have_at_most_90_words(notebook):
    counts = {cell.id: len(words(cell.source)) for cell in notebook.cells if cell.cell_type == "markdown"}
    assert {name: count for name, count in counts.items() if count > 90} == {}


@lessons
def test_at_most_two_code_cells_in_a_row(notebook):
    threes = zip(notebook.cells, notebook.cells[1:], notebook.cells[2:], strict=False)
    assert [a.id for a, b, c in threes if {a.cell_type, b.cell_type, c.cell_type} == {"code"}] == []


@lessons
def test_code_is_plain_python(notebook):
    for cell in code(notebook):
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            pytest.fail(f"cell {cell.id!r} is not plain Python (a % magic or a ! command?): {error}")


@lessons
def test_one_imports_cell(notebook):
    importing = [
        cell.id
        for cell in code(notebook)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(ast.parse(cell.source)))
    ]
    assert len(importing) <= 1, "one cell holds the imports"


@lessons
def test_hint_is_at_hand_where_check_says_that_it_helps(notebook):
    """``check`` answers with ``hint("...") helps``: typing just that must not end in a NameError."""
    source = "\n".join(cell.source for cell in code(notebook))
    names = re.search(r"from flashlab\.course\.check import (.*)", source)[1].split(", ")
    assert "check" in names and "hint" in names


@lessons
def test_definitions_only_in_exercises(notebook):
    defining = [
        cell.id
        for cell in code(notebook)
        if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(cell.source)))
    ]
    exercises = [cell.id for cell in code(notebook) if is_exercise(cell)]
    assert sorted(set(defining) - set(exercises)) == [], "modules hold definitions, notebooks hold expressions"


@lessons
def test_no_warning_is_filtered(notebook):
    assert [cell.id for cell in code(notebook) if re.search(r"(filterwarnings|simplefilter)\(", cell.source)] == []


@lessons
def test_every_figure_has_a_picture_where_no_kernel_runs(notebook):
    for cell in code(notebook):
        if ".explore(" in cell.source:
            kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
            assert "image/png" in kinds, f"cell {cell.id!r}"


# The normaliser itself, on notebooks that are wrong.


def made(cell_id="a-cell", outputs=(), **metadata):
    cell = nbformat.v4.new_code_cell("1", execution_count=7, outputs=list(outputs), metadata=metadata)
    cell.id = cell_id
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.mark.parametrize(
    "notebook, fault",
    [
        (made("1a2b3c4d"), "give it an id"),
        (made("Cell_1"), "give it an id"),
        (made(outputs=[nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])]), "stores an error"),
        (made(outputs=[nbformat.v4.new_output("stream", text=f"see {ROOT}/x.py")]), "names a path"),
        (made(outputs=[nbformat.v4.new_output("stream", text="x" * 400_000)]), "400,000 are allowed"),
    ],
)
def test_faults_are_named(notebook, fault):
    assert [sentence for sentence in faults(notebook) if fault in sentence], list(faults(notebook))


def test_normalised_keeps_the_lesson_and_drops_the_run():
    live = {"application/vnd.jupyter.widget-view+json": {"model_id": "0"}, "image/png": PNG, "text/plain": "a row"}
    notebook = made(outputs=[nbformat.v4.new_output("display_data", live)], tags=["exercise"], execution={"a": "b"})
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    stored = normalise(notebook)
    assert stored.cells[0].metadata == {"tags": ["exercise"]}
    assert stored.cells[0].outputs[0].data.keys() == {"image/png", "text/plain"}
    assert stored.cells[0].execution_count == 1 and "widgets" not in stored.metadata
    assert normalise(stored) == stored and list(faults(stored)) == []
    assert notebook.cells[0].execution_count == 7  # the argument is left as it was


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"
