"""Imports between wings. ``BELOW`` lists the wings that each wing may import: imports go down only.

Reference and kernels do not import each other. Neither do models and distributed: a model takes its attention function
as an argument, also one that runs over a group of processes. Figures may import other wings, notebooks also figures.
"""

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
BELOW = {  # the other wings of flashlab that a wing, or the figures, may import
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
MAY_IMPORT_BY_NAME = {  # registry: exercises; count: the function to count; checks: a function that the user passes
    "flashlab/course/registry.py", "flashlab/kernels/count.py", "flashlab/kernels/checks.py",
}  # fmt: skip
COLOUR = {"color", "c", "facecolor", "edgecolor", "fc", "ec", "cmap"}


@cache
def sources():
    """Return the path, relative to the root, and the syntax tree of every module and every notebook."""
    paths = [path for package in ("flashlab", "figures") for path in sorted((ROOT / package).rglob("*.py"))]
    trees = [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in paths]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        trees.append((path.relative_to(ROOT), ast.parse(code)))
    return trees


def modules(tree):
    """Yield the full names of all modules that a tree imports, also within functions."""
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
    """Return the top-level names of all imports of a tree."""
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


def faults(check):
    """Return {path: findings of ``check(path, tree)``} for the modules and notebooks that have findings."""
    return {str(path): findings for path, tree in sources() if (findings := sorted(check(path, tree)))}


def test_no_forbidden_package_is_imported():
    assert faults(lambda path, tree: imported(tree) & forbidden(path)) == {}


def test_imports_between_wings_go_down():
    def above(path, tree):
        if path.parts[0] == "notebooks" or path == Path("flashlab/__init__.py"):
            return set()
        wing = path.parts[1] if path.parts[0] == "flashlab" else path.parts[0]
        wings = {name.split(".")[1] for name in modules(tree) if name.startswith("flashlab.")}
        return wings - {wing, *BELOW[wing]}

    assert faults(above) == {}


def test_no_import_by_a_name_that_is_computed():
    """The other tests of this file see only import statements."""

    def importers(path, tree):
        if path.parts[0] == "notebooks" or path.as_posix() in MAY_IMPORT_BY_NAME:
            return set()
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return IMPORT_BY_NAME & (names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)})

    assert faults(importers) == {}


def test_only_kernels_name_triton():
    """No other wing has a string such as "triton.language", or looks "triton" up in ``sys.modules``."""

    def named(path, tree):
        if path.parts[:2] == ("flashlab", "kernels"):
            return []
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        dotted = [text for text in texts if isinstance(text, str) and re.fullmatch(r"triton(\.\w+)+", text)]
        source = ast.unparse(tree) if "sys" in imported(tree) else ""
        return dotted + re.findall(r"sys\.modules(?:\[|\.\w+\()'triton", source)

    assert faults(named) == {}


def test_flashlab_has_eight_wings():
    wings = {path.parts[1] for path, _ in sources() if path.parts[0] == "flashlab" and len(path.parts) > 2}
    assert wings == BELOW.keys() - {"figures"}


@pytest.mark.parametrize("package, depth", [("flashlab", None), ("figures", None), ("flashlab.kernels", 3)])
def test_no_circular_imports(package, depth):
    """Imports inside functions count, and so do the registry's imports by name.

    depth: how many parts of a module's name make its node, None for all. With 3, each package of kernels is one node.
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


def test_only_style_sets_colours():
    def colours(path, tree):
        if path.parts[0] == "notebooks" or path == Path("figures/style.py"):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg in COLOUR and isinstance(node.value, ast.Constant):
                if node.value.value not in (None, "none"):
                    yield f"line {node.value.lineno}: name it in figures/style.py"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch("#[0-9a-fA-F]{3,8}", node.value):
                    yield f"line {node.lineno}: name it in figures/style.py"
            if isinstance(node, ast.Attribute) and node.attr in ("rcParams", "rc_context", "rc"):
                yield f"line {node.lineno}: no global settings"

    assert faults(colours) == {}


NEW = {"empty", "empty_strided", "zeros", "ones", "full", "eye", "linspace", "logspace", "rand", "randn", "normal"}


def test_new_tensors_have_an_explicit_dtype():
    """Libraries that load models change torch's default dtype. ``torch.tensor(array)`` has the dtype of the array."""

    def implicit(path, tree):
        for node in ast.walk(tree):
            if path.parts[0] == "notebooks" or not isinstance(node, ast.Call):
                continue
            from_numbers = node.args and isinstance(node.args[0], ast.List | ast.ListComp | ast.Tuple)
            name = ast.unparse(node.func)
            new = name[6:] in NEW or (name[6:] in ("tensor", "as_tensor") and from_numbers)
            if name.startswith("torch.") and new and not any(it.arg == "dtype" for it in node.keywords):
                yield f"line {node.lineno}: {name} without a dtype"

    assert faults(implicit) == {}


# Runs in a fresh process that cannot import triton. Asserts that no import changes the state of another module.
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
