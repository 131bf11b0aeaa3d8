"""A copy of a lesson with every exercise solved passes nbval. Right answers are stored, and run in later lessons."""

import ast
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest

from flashlab.course import copies
from flashlab.course.lessons import LESSONS, notebook
from flashlab.course.registry import find
from flashlab.course.self_contained import source_of
from flashlab.grading.exercise import Exercise
from tests.course.exercises import (
    test_block_size,
    test_own_kernels,
    test_recomputation,
    test_tiling,
    test_triton_backward,
    test_triton_forward,
)
from tests.test_setup import ROOT
from tests.tools.normalise import execute

OPTIONS = ("-p", "tests.tools.kernels", "--nbval", "--nbval-sanitize-with", ROOT / "tests/tools/sanitize.cfg",
           "--nbval-cell-timeout", "600", "-p", "no:cacheprovider", "-q")  # fmt: skip


class Solve(ast.NodeTransformer):
    """Put right answers in place of the dots and stubs of an exercise cell."""

    def __init__(self, lesson, checks, functions):
        self.lesson, self.checks = lesson, checks  # {name of the attempt: its exercise}
        self.functions = functions  # {exercise: an answer in place of the course's, or None to keep the stub}

    def visit_ClassDef(self, node):
        return self.visit_FunctionDef(node)

    def visit_FunctionDef(self, node):
        if node.name not in self.checks:
            return node
        name = self.checks[node.name]
        function = self.functions.get(name, find(name).reference)
        return node if function is None else solution(function, node.name)

    def visit_Assign(self, node):
        targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for target, value in zip(targets, values, strict=True):
            if isinstance(value, ast.Dict):
                self.fill(value)
            elif is_open(value):
                value.value = find(self.checks[target.id]).answer
        return node

    def visit_AugAssign(self, node):
        self.fill(node.value)
        return node

    def fill(self, quiz):
        for key, value in zip(quiz.keys, quiz.values, strict=True):
            value.value = find(f"{self.lesson}.quiz_{key.value}").answer


def is_open(node):
    return isinstance(node, ast.Constant) and node.value is ...


def solution(function, stub):
    """Return the statements that define a function, under the name of a stub."""
    statements = ast.parse(source_of(function)).body
    statements[-1].name = stub
    return statements


def solved(lesson, cell, functions={}):  # noqa: B006
    """Return the source of an exercise cell with right answers, and the names of its exercises."""
    tree = ast.parse(cell.source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"]
    checks = {call.args[1].id: call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    return ast.unparse(ast.fix_missing_locations(Solve(lesson, checks, functions).visit(tree))), checks.values()


@pytest.mark.exhaustive
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda it: it.name)
def test_a_solved_copy_passes_and_its_answers_are_stored(lesson, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / notebook(lesson)).write_bytes((ROOT / "notebooks" / notebook(lesson)).read_bytes())
    copies.refresh(tmp_path / "notebooks")
    copy = tmp_path / "notebooks" / "mine" / notebook(lesson)
    content, names = nbformat.read(copy, as_version=4), []
    for cell in content.cells:
        if "exercise" in cell.metadata.get("tags", ()):
            cell.source, exercises = solved(lesson.name, cell)
            names += exercises
    nbformat.write(content, copy)
    progress = tmp_path / "progress.json"
    environment = os.environ | {"FLASHLAB_PROGRESS": str(progress), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml", *OPTIONS, copy],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    entries = json.loads(progress.read_text(encoding="utf-8")) if names else {}
    assert [name for name in names if not entries[name]["solved"]] == []
    functions = [name for name in names if isinstance(find(name), Exercise)]
    assert [name for name in functions if not entries[name]["answer"]] == []


MODULES = test_tiling, test_block_size, test_recomputation, test_own_kernels, test_triton_backward, test_triton_forward
RIGHT = {name: rights[0] for module in MODULES for name, rights in module.RIGHT.items()}
ARCS = {("tiling", "block_size", "recomputation"): "tiling.inside",
        ("triton_forward", "triton_backward"): "triton_forward.forward"}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("arc", ARCS, ids=" ".join)
@pytest.mark.parametrize("way", ["the course's answers", "other answers", "one open"])
def test_what_a_learner_wrote_runs_in_later_lessons(arc, way, tmp_path, monkeypatch):
    functions = {"the course's answers": {}, "other answers": RIGHT, "one open": {ARCS[arc]: None}}[way]
    monkeypatch.setenv("FLASHLAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    stand_ins = set()
    for lesson in (it for it in LESSONS if it.name in arc):
        copy = tmp_path / notebook(lesson)
        content = nbformat.read(ROOT / "notebooks" / notebook(lesson), as_version=4)
        for cell in content.cells:
            if "exercise" in cell.metadata.get("tags", ()):
                cell.source, _ = solved(lesson.name, cell, functions)
        nbformat.write(content, copy)
        for cell in execute(copy).cells:
            for output in cell.get("outputs", []):
                stand_ins.update(re.findall(r"(\S+) is not solved yet", output.get("text", "")))
    assert stand_ins == {name for name, function in functions.items() if function is None}
