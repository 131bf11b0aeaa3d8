"""A learner's copy with every exercise solved passes nbval, and each right answer is stored for later lessons."""

import ast
import json
import os
import subprocess
import sys

import nbformat
import pytest

from flashlab.course import copies
from flashlab.course.lessons import LESSONS, notebook
from flashlab.course.registry import find
from flashlab.course.self_contained import source_of
from flashlab.grading.exercise import Exercise
from tests.test_setup import ROOT

OPTIONS = ("-p", "tests.tools.kernels", "--nbval", "--nbval-sanitize-with", ROOT / "tests/tools/sanitize.cfg",
           "--nbval-cell-timeout", "600", "-p", "no:cacheprovider", "-q")  # fmt: skip


class Solve(ast.NodeTransformer):
    """Put the course's answers in place of the dots and stubs of an exercise cell."""

    def __init__(self, lesson, checks):
        self.lesson, self.checks = lesson, checks  # the exercise by the name that holds the attempt

    def visit_FunctionDef(self, node):
        return solution(self.checks[node.name], node.name) if node.name in self.checks else node

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


def solution(name, stub):
    """Return the statements that define the reference of an exercise, under the name of its stub."""
    reference = find(name).reference
    own = getattr(reference, "fn", reference).__name__
    return ast.parse(source_of(reference) + (f"\n{stub} = {own}" if own != stub else "")).body


def solved(lesson, cell):
    """Return the source of an exercise cell with right answers."""
    tree = ast.parse(cell.source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"]
    checks = {call.args[1].id: call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    return ast.unparse(ast.fix_missing_locations(Solve(lesson, checks).visit(tree))), checks.values()


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
            cell.source, found = solved(lesson.name, cell)
            names += found
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
