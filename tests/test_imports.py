"""The walls: who may import whom. Inside flashlab imports go down only: bench and course, models and distributed,
kernels, machine. Reference is beside kernels, above machine, and neither knows the other. Models and distributed are
beside each other, too: a model takes its attention as an argument, which may be one that is divided over a group.
Figures are above them, notebooks above all."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import nbformat
import pytest

from flashlab.course import lessons

ROOT = Path(__file__).resolve().parents[1]
BELOW = {  # the wings of flashlab that a wing, or the figures, may import
    "machine": set(),
    "reference": {"machine"},
    "kernels": {"machine"},
    "models": {"kernels", "machine"},
    "grading": {"kernels", "machine"},
    "distributed": {"kernels", "machine"},
    "course": {"grading", "distributed", "models", "kernels", "reference", "machine"},
    "bench": {"course", "grading", "distributed", "models", "kernels", "reference", "machine"},
    "figures": {"course", "grading", "distributed", "kernels", "reference", "machine"},
}
IMPORT_BY_NAME = {"import_module", "__import__", "spec_from_file_location", "SourceFileLoader", "exec_module"}
MAY_IMPORT_BY_NAME = {"flashlab/course/registry.py", "flashlab/kernels/count.py"}  # exercises; a function to count
COLOUR = {"color", "c", "facecolor", "edgecolor", "fc", "ec", "cmap"}


@cache
def sources():
    """Return the path, relative to the root, and the syntax tree of every module and every notebook."""
    paths = [path for package in ("flashlab", "figures") for path in sorted((ROOT / package).rglob("*.py"))]
    found = [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in paths]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        found.append((path.relative_to(ROOT), ast.parse(code)))
    return found


def modules(tree):
    """Full names of all modules that a tree imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if exists(inner) else node.module


@cache
def exists(module):
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imported(tree):
    """Top names of all that a tree imports."""
    return {module.split(".")[0] for module in modules(tree)}


def forbidden(path):
    package = path.parts[0]
    names = {"notebooks": {"notebooks", "tests", "ipywidgets", "triton"}}.get(package, {"notebooks", "tests"})
    if package == "flashlab":
        names = names | {"figures", "matplotlib", "ipywidgets"}
    if path.parts[:2] != ("flashlab", "kernels"):
        names = names | {"triton"}
    if package == "figures":
        names = names | {"ipywidgets"}
    return names


MODULES = [pytest.param(path, tree, id=str(path)) for path, tree in sources()]


@pytest.mark.parametrize("path, tree", MODULES)
def test_layers(path, tree):
    assert sorted(imported(tree) & forbidden(path)) == []


@pytest.mark.parametrize("path, tree", MODULES)
def test_wings(path, tree):
    if path.parts[0] == "notebooks" or path == Path("flashlab/__init__.py"):
        return
    wing = path.parts[1] if path.parts[0] == "flashlab" else path.parts[0]
    allowed = {wing, *BELOW[wing]}
    found = {name.split(".")[1] for name in modules(tree) if name.startswith("flashlab.")}
    assert sorted(found - allowed) == []


@pytest.mark.parametrize("path, tree", MODULES)
def test_nobody_imports_past_the_walls(path, tree):
    """A name that is put together as the program runs cannot be seen by the tests above."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if path.parts[0] != "notebooks" and path.as_posix() not in MAY_IMPORT_BY_NAME:
        assert sorted(names & IMPORT_BY_NAME) == []


@pytest.mark.parametrize("path, tree", MODULES)
def test_only_kernels_reach_for_triton_by_name(path, tree):
    """Neither by the dotted name of one of its modules nor in ``sys.modules``."""
    if path.parts[:2] == ("flashlab", "kernels"):
        return
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [text for text in texts if re.fullmatch(r"triton(\.\w+)+", text)] == []
    assert not re.search(r"sys\.modules(\[|\.\w+\()'triton", ast.unparse(tree))


def test_flashlab_has_eight_wings():
    found = {path.parts[1] for path, _ in sources() if path.parts[0] == "flashlab" and len(path.parts) > 2}
    assert found == BELOW.keys() - {"figures"}


PENDING = pytest.mark.xfail(strict=False, reason="issue 30: figures/explore, and launch without gluon_interpreter")


@pytest.mark.parametrize(
    "package, depth",
    [
        ("flashlab", None),
        pytest.param("figures", None, marks=PENDING),
        pytest.param("flashlab.kernels", 3, marks=PENDING),
    ],
)
def test_no_circle(package, depth):
    """Also with imports inside functions, and with those that the registry makes by name.

    depth: parts of a name that count. In kernels these are 3, so a package inside it is one node.
    """

    def node(name):
        return ".".join(name.split(".")[:depth])

    graph = defaultdict(set)
    for path, tree in sources():
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if name.startswith(f"{package}."):
            below = {node(module) for module in modules(tree) if module.startswith(f"{package}.")}
            graph[node(name)] |= below - ({node(name)} if depth else set())
    if package == "flashlab":
        exercises = {name for name in graph if name.startswith("flashlab.course.exercises.")}
        assert exercises
        graph["flashlab.course.registry"] |= exercises
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path, tree", MODULES)
def test_only_style_sets_colours(path, tree):
    if path.parts[0] == "notebooks" or path == Path("figures/style.py"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in COLOUR and isinstance(node.value, ast.Constant):
            assert node.value.value in (None, "none"), f"line {node.value.lineno}: name it in figures/style.py"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.fullmatch("#[0-9a-fA-F]{3,8}", node.value), f"line {node.lineno}: name it in figures/style.py"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("rcParams", "rc_context", "rc"), f"line {node.lineno}: no global settings"


NEW = {"empty", "empty_strided", "zeros", "ones", "full", "eye", "linspace", "logspace", "rand", "randn", "normal"}


@pytest.mark.parametrize("path, tree", MODULES)
def test_new_tensors_have_a_dtype_of_their_own(path, tree):
    """Loaders of models set torch's default dtype. ``torch.tensor`` of an array has the array's."""
    for node in ast.walk(tree):
        if path.parts[0] == "notebooks" or not isinstance(node, ast.Call):
            continue
        from_numbers = node.args and isinstance(node.args[0], ast.List | ast.ListComp | ast.Tuple)
        name = ast.unparse(node.func)
        new = name.startswith("torch.") and (name[6:] in NEW or (name[6:] in ("tensor", "as_tensor") and from_numbers))
        assert not new or any(it.arg == "dtype" for it in node.keywords), f"line {node.lineno}: {name} without a dtype"


# In a fresh process where triton cannot be imported: importing changes nothing that another module could notice.
IMPORT_ALL = """
import importlib, os, random, sys, warnings
import ipywidgets, matplotlib, numpy, torch
sys.modules["triton"] = None
def world():
    return (dict(os.environ), dict(matplotlib.rcParams), random.getstate(), str(numpy.random.get_state()),
            torch.get_rng_state().tolist(), torch.get_default_dtype(), numpy.geterr(), list(warnings.filters))
before = world()
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert world() == before, f"importing {name} has a side effect"
"""


def test_the_first_lessons_import_without_triton_and_without_side_effects():
    names = {lessons.notebook(lesson) for lesson in lessons.LESSONS if lesson.needs == "numpy"}
    trees = [tree for path, tree in sources() if path.name in names]
    assert len(trees) == len(names)
    ours = sorted({name for tree in trees for name in modules(tree) if name.startswith(("flashlab", "figures"))})
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL, *ours], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "", "importing prints"
