"""Made-up submissions of a class: what each learner handed in, and the verdict that it deserves."""

import csv
import json
import textwrap

import pytest

from flashlab.course import check, grade
from flashlab.course.registry import find
from flashlab.course.self_contained import source_of
from flashlab.grading import forked
from tests.tools.long import long_except

pytestmark = pytest.mark.skipif(not forked.forks(), reason="an answer is run in a process of its own")

IMPORTS = """
    import numpy as np
    from flashlab.course.check import check
    from flashlab.reference.online_softmax import State
"""
MERGE = """
def merge(a, b):
    m = np.maximum(a.m, b.m)
    m_safe = np.where(np.isneginf(m), 0, m)
    alpha, beta = np.exp(a.m - m_safe), np.exp(b.m - m_safe)
    return State(m, alpha * a.l + beta * b.l, alpha[:, None] * a.O + beta[:, None] * b.O)
"""
CHECK = '\ncheck("online_softmax.merge", merge)\n'
SHIFTED = MERGE.replace("np.isneginf(m)", "m == -np.inf")


def cells(*sources, outputs=()):
    """Return a notebook with these cells."""
    made = [
        {"cell_type": "code", "source": textwrap.dedent(it), "outputs": list(outputs), "metadata": {}} for it in sources
    ]
    return json.dumps({"cells": made, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def merged(answer, *more):
    """Return a notebook that checks an answer to online_softmax.merge."""
    return cells(IMPORTS, *more, answer + CHECK)


STUB = "def merge(a, b):\n    raise NotImplementedError\n"
PRINTED = [{"output_type": "stream", "name": "stdout", "text": ["✓ online_softmax.merge: right in all 205 cases.\n"]}]
SUBMISSIONS = {  # learner: the notebook, and the verdict with a part of the reason or the note
    "right": (merged(MERGE), "right", ""),
    "helper": (merged(MERGE.replace("np.exp(", "shrink("), "def shrink(x):\n    return np.exp(x)\n"), "right", ""),
    "constant": (merged(SHIFTED.replace("-np.inf", "NONE"), "NONE = -np.inf"), "right", ""),
    "constant called": (merged(MERGE.replace("np.exp", "E"), "E = getattr(np, 'exp')"), "wrong", "E"),
    "magic": (merged(MERGE, "%matplotlib inline\n!ls\nimport math"), "right", ""),
    "lambda": (merged("merge = lambda a, b: State(*a)"), "wrong", ""),
    "wrong": (merged(MERGE.replace("alpha * a.l", "a.l")), "wrong", ""),
    "swapped": (merged(MERGE.replace("alpha, beta =", "beta, alpha =")), "wrong", ""),
    "old maximum": (merged(MERGE.replace("np.maximum(a.m, b.m)", "a.m")), "wrong", ""),
    "stub": (merged(STUB), "not attempted", ""),
    "empty": (cells(""), "not attempted", "not handed in"),
    "no cells": ("{}", "not attempted", "not handed in"),
    "no notebook": ("this is no JSON", "not attempted", "not handed in"),
    "syntax": (merged("def merge(a, b:\n    return a"), "wrong", "SyntaxError"),
    "raises": (merged("def merge(a, b):\n    return a + None"), "wrong", "TypeError"),
    "undefined": (merged(MERGE.replace("np.exp(b", "npp.exp(b")), "wrong", "npp"),
    "exit": (merged("import os\ndef merge(a, b):\n    os._exit(0)"), "wrong", "ended Python"),
    "exit when defined": (merged(MERGE + "\nimport os; os._exit(0)"), "wrong", "ended Python"),
    "crash": (merged("import ctypes\ndef merge(a, b):\n    ctypes.string_at(0)"), "wrong", "ended Python"),
    "recursion": (merged("def merge(a, b):\n    return merge(b, a)"), "wrong", "RecursionError"),
    "loop": (merged("def merge(a, b):\n    while True:\n        pass"), "not judged", "still running"),
    "loop when defined": (merged(MERGE + "\nwhile True:\n    pass"), "not judged", "still running"),
    "copied": (merged(source_of(find("online_softmax.merge").reference)), "right", "the course's solution"),
    "neighbour": (merged(MERGE.replace("merge(", "mine(") + "    # my own\nmerge = mine\n"), "right", "same text"),
    "own check": (cells(IMPORTS, "def check(*_):\n    print('✓ right')\n", MERGE + CHECK), "right", ""),
    "edited check": (cells(IMPORTS, "def check(*_):\n    print('✓ right')\n", STUB + CHECK), "not attempted", ""),
    "printed": (cells(IMPORTS, STUB + CHECK, outputs=PRINTED), "not attempted", ""),
    "patches": (
        merged("import flashlab.grading.verdict as v\nv.first_wrong = lambda *_: None\ndef merge(a, b):\n    return a"),
        "wrong",
        "",
    ),
    "prints": (merged("print('{\"Outcome\": []}')\n" + MERGE), "right", ""),
    "twice": (cells(IMPORTS, STUB + CHECK, MERGE + CHECK), "right", ""),
}


QUICK = (
    "right",
    "helper",
    "wrong",
    "stub",
    "no notebook",
    "exit",
    "copied",
    "edited check",
    "printed",
    "patches",
    "twice",
)


def row_of(learner, folder):
    """Return the row of one learner, whose class has one other, who is right."""
    for name in ("a", learner):
        (folder / name).mkdir()
        notebook, *_ = SUBMISSIONS["right" if name == "a" else name]
        (folder / name / "04_online_softmax.ipynb").write_text(notebook, encoding="utf-8")
    *_, row = (row for row in grade.grade(folder, ["online_softmax.merge"]) if row.exercise)
    return row


@pytest.mark.parametrize("learner", long_except(QUICK, SUBMISSIONS))
def test_every_submission_gets_the_verdict_that_it_deserves(learner, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "PATIENCE", 2.0)
    _, verdict, words = SUBMISSIONS[learner]
    row = row_of(learner, tmp_path)
    assert row.verdict == verdict and words in f"{row.fails_for} {row.reason} {row.note}", row


def test_a_wrong_answer_comes_with_its_first_failing_input(tmp_path):
    row = row_of("wrong", tmp_path)
    assert row.fails_for and row.input.startswith("a = ")


def class_of(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return tmp_path


def test_questions_in_a_cell_and_in_a_loop_are_judged(tmp_path):
    quiz = """
        answers = {"half": 1, "passes": 2}
        for name, answer in answers.items():
            check(f"online_softmax.quiz_{name}", answer)
    """
    one = 'numbers_to_keep = 1 + 1\ncheck("online_softmax.keep", numbers_to_keep)'
    stub = 'half = ...\ncheck("safe_softmax.half", half)'
    found = {row.exercise: row for row in grade.grade(class_of(tmp_path, ada=cells(IMPORTS, quiz, one, stub)))}
    names = {"online_softmax.keep", "online_softmax.quiz_half", "online_softmax.quiz_passes", "safe_softmax.half"}
    assert found.keys() == names
    assert found["online_softmax.keep"].verdict == "right" and found["safe_softmax.half"].verdict == "not attempted"
    assert found["online_softmax.quiz_half"].verdict in ("right", "wrong")


def test_kept_answers_count_where_the_notebook_has_a_stub(tmp_path):
    (tmp_path / "ada").mkdir()
    kept = {"online_softmax.merge": {"solved": False, "said": "", "answer": textwrap.dedent(IMPORTS) + MERGE}}
    (tmp_path / "ada" / "progress.json").write_text(json.dumps(kept), encoding="utf-8")
    (tmp_path / "ada" / "04.ipynb").write_text(merged(STUB), encoding="utf-8")
    (row,) = grade.grade(tmp_path)
    assert row.verdict == "right"


def test_the_command_writes_a_table_that_no_spreadsheet_runs(tmp_path, capsys):
    folder = class_of(tmp_path, **{"=cmd": merged(MERGE)})
    file = tmp_path / "grades.csv"
    assert grade.main([str(folder), "--csv", str(file)]) == 0
    head, row = csv.reader(file.open(encoding="utf-8"))
    assert tuple(head) == grade.COLUMNS and row[:3] == ["'=cmd", "online_softmax.merge", "right"]
    assert "1 of 1 learners" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--exercises", "online_softmax.merg"]])
def test_what_does_not_exist_gets_a_sentence(arguments, capsys):
    assert grade.main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1
