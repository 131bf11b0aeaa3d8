"""Made-up submissions of a class: what each learner handed in, and the verdict that it deserves."""

import ast
import csv
import json
import textwrap

import pytest

from flashlab.course import check, grade, progress
from flashlab.course.grade_notes import runs_the_course
from flashlab.course.grade_roster import Learner
from flashlab.course.graded import GRADED
from flashlab.course.registry import every, find
from flashlab.course.self_contained import source_of
from flashlab.grading import forked
from flashlab.grading.exercise import Exercise
from flashlab.grading.program import Program
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
    code = [
        {"cell_type": "code", "source": textwrap.dedent(it), "outputs": list(outputs), "metadata": {}} for it in sources
    ]
    return json.dumps({"cells": code, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def merged(answer, *more):
    """Return a notebook that checks an answer to online_softmax.merge."""
    return cells(IMPORTS, *more, answer + CHECK)


STUB = "def merge(a, b):\n    raise NotImplementedError\n"
PRINTED = [{"output_type": "stream", "name": "stdout", "text": ["✓ online_softmax.merge: right in all 205 cases.\n"]}]
FUNCTIONS = [name for name, exercise in every().items() if isinstance(exercise, Exercise)]
SUBMISSIONS = {  # learner: the notebook, and the verdict with a part of the reason or the note
    "right": (merged(MERGE), "right", ""),
    "helper": (merged(MERGE.replace("np.exp(", "shrink("), "def shrink(x):\n    return np.exp(x)\n"), "right", ""),
    "constant": (merged(SHIFTED.replace("-np.inf", "NONE"), "NONE = -np.inf"), "right", ""),
    "constant called": (merged(MERGE.replace("np.exp", "E"), "E = getattr(np, 'exp')"), "right", ""),
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
    "neighbour": (merged(MERGE.replace("merge(", "mine(") + "    # my own\nmerge = mine\n"), "right", "have this text"),
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
    """Return the row of a learner, in a class with one other learner, whose answer is right."""
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


O = "from flashlab.reference import online_softmax as o\n"
SOLUTION = source_of(find("online_softmax.merge").reference)
CHEATS = {  # cells after the imports, whose answer is the course's
    "imported": ("from flashlab.reference.online_softmax import merge" + CHECK,),
    "imported before": (O, "merge = o.merge", CHECK),
    "wrapped": (O + "def merge(a, b):\n    return o.merge(a, b)" + CHECK,),
    "wrapped twice": (O + "def both(a, b):\n    return o.merge(a, b)", "merge = lambda a, b: both(a, b)" + CHECK),
    "partial": ("import functools\n" + O + "merge = functools.partial(o.merge)" + CHECK,),
    "found": ("from flashlab.course.registry import find\nmerge = find('online_softmax.merge').reference" + CHECK,),
    "mine": ("from flashlab.course.answers import mine\nmerge = mine('online_softmax.merge')" + CHECK,),
    "copied": (SOLUTION + CHECK,),
    "renamed": (SOLUTION.replace("alpha", "x").replace("m_safe", "y") + CHECK,),
    "shortened": (SOLUTION.replace("check_one_shape(a=a, b=b)", "") + CHECK,),
    "lengthened": (SOLUTION.replace("    return", "    n = len(m)\n    return") + CHECK,),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_the_course_is_named_where_an_answer_runs_it_or_has_its_text(cheat, tmp_path):
    (row,) = grade.grade(class_of(tmp_path, ada=cells(IMPORTS, *CHEATS[cheat])))
    assert row.verdict == "right" and "the course's solution" in row.note


def test_a_function_of_the_course_is_named_unless_the_solution_calls_it_too(tmp_path):
    extra = MERGE.replace("    m =", "    online_softmax.finish(a)\n    m =")
    (row,) = grade.grade(class_of(tmp_path, ada=merged("from flashlab.reference import online_softmax\n" + extra)))
    assert row.verdict == "right" and row.note == "it calls the course's online_softmax.finish"


@pytest.mark.parametrize("name", long_except(["tiling.forward", "triton_forward.update"], FUNCTIONS))
def test_an_answer_that_calls_what_its_solution_calls_has_no_note_on_it(name):
    source = source_of(find(name).reference)
    assert runs_the_course(name, Program(source, ast.parse(source).body[-1].name, "<answer>")) == ""


@pytest.mark.parametrize("name", long_except(["triton_forward.update"], FUNCTIONS))
def test_each_solution_is_named(name):
    program = Program("from flashlab.course.registry import find", f"find({name!r}).reference", "<answer>")
    assert runs_the_course(name, program) == "it runs the course's solution"


def test_a_text_in_common_is_noted_for_all_learners_who_have_it(tmp_path):
    renamed = MERGE.replace("alpha", "x").replace("m_safe", "safe")
    other = MERGE.replace("np.exp(a.m - m_safe), np.exp(b.m - m_safe)", "np.exp([a.m - m_safe, b.m - m_safe])")
    hand_ins = {"ada": MERGE, "bob": renamed, "cy": other}
    rows = grade.grade(class_of(tmp_path, **{learner: merged(it) for learner, it in hand_ins.items()}))
    words = "2 of 3 answers have this text"
    assert {row.learner: row.note for row in rows} == {"ada": words, "bob": words, "cy": ""}


def test_questions_in_a_cell_and_in_a_loop_are_judged(tmp_path):
    quiz = """
        answers = {"half": 1, "passes": 2}
        for name, answer in answers.items():
            check(f"online_softmax.quiz_{name}", answer)
    """
    one = 'numbers_to_keep = 1 + 1\ncheck("online_softmax.keep", numbers_to_keep)'
    stub = 'half = ...\ncheck("safe_softmax.half", half)'
    rows = {row.exercise: row for row in grade.grade(class_of(tmp_path, ada=cells(IMPORTS, quiz, one, stub)))}
    names = {"online_softmax.keep", "online_softmax.quiz_half", "online_softmax.quiz_passes", "safe_softmax.half"}
    assert rows.keys() == names
    assert rows["online_softmax.keep"].verdict == "right" and rows["safe_softmax.half"].verdict == "not attempted"
    assert rows["online_softmax.quiz_half"].verdict in ("right", "wrong")


def test_an_answer_of_the_teacher_helps_nobody(tmp_path, monkeypatch):
    stored = {"online_softmax.merge": {"solved": True, "said": "", "answer": textwrap.dedent(IMPORTS) + MERGE}}
    file = tmp_path / "progress.json"
    file.write_text(json.dumps(stored), encoding="utf-8")
    monkeypatch.setattr(progress, "FILE", file)
    (tmp_path / "class").mkdir()
    (row,) = grade.grade(class_of(tmp_path / "class", ada=cells(IMPORTS, *CHEATS["mine"])))
    assert row.note == "it runs the course's solution" and progress.FILE == file


def test_a_class_gets_a_line_per_learner_with_minutes(tmp_path):
    hand_ins = {"ada": MERGE, "bob": STUB, "cy": SHIFTED.replace("alpha * a.l", "a.l")}
    folder = class_of(tmp_path, **{learner: merged(it) for learner, it in hand_ins.items()})
    listed = [Learner("ada"), Learner("dan")]
    rows = list(grade.grade(folder, ["online_softmax.merge", "online_softmax.finish"], learners=listed))
    head, *lines = grade.wide(rows)
    minutes = find("online_softmax.merge").minutes
    assert head[:3] == ("learner", "online_softmax.merge", "online_softmax.finish")
    assert [line[:4] for line in lines] == [
        ("ada", "right", "not attempted", minutes),
        ("dan", "not attempted", "not attempted", 0),
        ("bob", "not attempted", "not attempted", 0),
        ("cy", "wrong", "not attempted", 0),
    ]
    merge, _ = grade.counts(rows)
    assert merge.startswith("online_softmax.merge: 1 right, 1 wrong, 2 not attempted; 1 times: ")


def test_the_command_writes_a_table_that_no_spreadsheet_runs(tmp_path, capsys):
    folder = class_of(tmp_path, **{"=cmd": merged(MERGE)})
    file, names = tmp_path / "grades.csv", tmp_path / "names.csv"
    names.write_text("name,e-mail\n=cmd,\nada,\n", encoding="utf-8")
    options = [str(folder), "--csv", str(file), "--roster", str(names)]
    assert grade.main([*options, "--exercises", "online_softmax.merge"]) == 0
    head, row, absent, _ = csv.reader(file.open(encoding="utf-8"))
    assert head == ["learner", "e-mail", *grade.COLUMNS[1:]]
    assert row[:4] == ["'=cmd", "", "online_softmax.merge", "right"]
    assert absent == ["ada", "", "", "not attempted", "", "", "", "nothing handed in"]
    assert "2 of 2 learners" in capsys.readouterr().err
    assert grade.main([*options, "--graded", "--wide"]) == 0
    head, *lines = csv.reader(file.open(encoding="utf-8"))
    assert head[2:-5] == [it.exercise for it in GRADED] and [line[0] for line in lines] == ["'=cmd", "ada"]


def test_a_slow_check_prints_nothing_into_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check, "SLOW", 0.0)
    folder = class_of(tmp_path, ada=merged(MERGE))
    assert grade.main([str(folder)]) == 0
    printed = capsys.readouterr()
    head, *lines = csv.reader(printed.out.splitlines())
    assert tuple(head) == grade.COLUMNS and [line[:3] for line in lines] == [["ada", "online_softmax.merge", "right"]]
    assert "at work" in printed.err


def test_the_exercises_of_some_lessons_count():
    assert grade.of_lessons(["3"]) == [it for it in every() if it.startswith("safe_softmax.")]
    some = grade.of_lessons(["03", "12"], [it.exercise for it in GRADED])
    assert some[0] == "safe_softmax.rows" and {it.partition(".")[0] for it in some[1:]} == {"triton_backward"}


WRONG_ARGUMENTS = [
    ["nowhere"],
    [".", "--exercises", "online_softmax.merg"],
    [".", "--lessons", "99"],
    [".", "--graded", "--lessons", "00"],
    [".", "--roster", "nowhere.csv"],
]


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS)
def test_what_does_not_exist_gets_a_sentence(arguments, capsys):
    assert grade.main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1
