"""Who may import whom: notebooks -> figures -> flashlab, triton only in flashlab/kernels, nothing -> notebooks."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
COLOUR = {"color", "c", "facecolor", "edgecolor", "fc", "ec", "cmap"}


def sources():
    """Path, relative to the root, and syntax tree of every module and every notebook."""
    for package in ("flashlab", "figures"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield path.relative_to(ROOT), ast.parse("\n".join(c.source for c in cells if c.cell_type == "code"))


def imported(tree):
    """Top names of all that a tree imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.module.split(".")[0]


def forbidden(path):
    package = path.parts[0]
    names = {"notebooks": {"notebooks", "tests", "ipywidgets", "triton"}}.get(package, {"notebooks", "tests"})
    if package == "flashlab":
        names = names | {"figures", "matplotlib", "ipywidgets"}
    if path.parts[:2] != ("flashlab", "kernels"):
        names = names | {"triton"}
    if package == "figures" and path.name != "controls.py":
        names = names | {"ipywidgets"}
    return names


MODULES = [pytest.param(path, tree, id=str(path)) for path, tree in sources()]


@pytest.mark.parametrize("path, tree", MODULES)
def test_layers(path, tree):
    assert sorted(set(imported(tree)) & forbidden(path)) == []


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


def modules_of(tree):
    """Full names of our modules that a notebook imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("flashlab", "figures"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith(("flashlab.", "figures.")):
            yield node.module


def test_lessons_00_to_09_import_without_triton_and_without_side_effects():
    notebooks = [tree for path, tree in sources() if re.match(r"notebooks/0\d_", path.as_posix())]
    names = sorted({name for tree in notebooks for name in modules_of(tree)})
    assert names
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "", "importing prints"
