"""An answer that is right in a notebook is right in the table: all lines that it needs are found, in any form."""

import ast
import json
import textwrap

import nbformat
import pytest

from flashlab.course import grade
from flashlab.course.data import NOTEBOOKS
from flashlab.course.grade_answers import answers
from flashlab.course.grade_files import HandIn
from flashlab.course.grade_notes import runs_the_course
from flashlab.course.lessons import LESSONS, notebook
from flashlab.course.registry import every
from flashlab.course.self_contained import source_of
from flashlab.grading import forked
from flashlab.grading.program import Program
from tests.course.test_grade import CHECK, IMPORTS, MERGE, STUB, cells, class_of, merged
from tests.test_solved_lessons import RIGHT, solved
from tests.tools.long import long_except

pytestmark = pytest.mark.skipif(not forked.forks(), reason="an answer is run in a process of its own")

HOME = "04_online_softmax.ipynb"
FORMS = {  # cells that bind ONE, or change it to 1
    "call": ("ONE = int('1')",),
    "tuple": ("ZERO, ONE = 0, 1",),
    "nested": ("(ZERO, [*_, ONE]) = 0, [2, 3, 1]",),
    "chain": ("ONE = UNO = int('1')",),
    "annotated": ("ONE: int = int('1')",),
    "augmented": ("ONE = 0", "ONE += 1"),
    "walrus": ("print(ONE := int('1'))",),
    "walrus in a list": ("[ONE := n for n in range(2)]",),
    "lambda": ("one = lambda: 1", "ONE = one()"),
    "function": ("def one():\n    return UNO", "UNO = 1", "ONE = one()"),
    "decorator": ("def called(f):\n    return f()", "@called\ndef ONE():\n    return 1"),
    "class": ("class Numbers:\n    one = 1", "ONE = Numbers.one"),
    "import": ("from operator import pos as plus", "ONE = plus(1)"),
    "all names": ("from math import *", "ONE = sqrt(1)"),
    "if": ("if True:\n    ONE = 1\nelse:\n    ONE = 2",),
    "for": ("for ONE in range(2):\n    pass",),
    "while": ("ONE = 0\nwhile ONE < 1:\n    ONE += 1",),
    "with": ("import contextlib\nwith contextlib.nullcontext(1) as ONE:\n    pass",),
    "try": ("try:\n    ONE = 1 / 0\nexcept ZeroDivisionError:\n    ONE = 1",),
    "match": ("match [0, 1]:\n    case [_, ONE]:\n        pass",),
    "item": ("numbers = {}", "numbers['one'] = 1", "ONE = numbers['one']"),
    "attribute": ("class Numbers:\n    pass", "Numbers.one = 1", "ONE = Numbers.one"),
    "method": ("numbers = []", "numbers.append(1)", "ONE = numbers[0]"),
    "again": ("ONE = nothing", "ONE = 1"),
    "failed": ("ONE = 1", "ONE = nothing"),
    "beside magic": ("%%time\nONE = int('1')\nONE?",),
    "same name": ("m = 2", "ONE = m - 1"),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_a_binding_are_kept(form):
    notebook = json.loads(cells(IMPORTS, *FORMS[form], "def merge(a, b):\n    return ONE" + CHECK))
    answer = answers(HandIn("ada", {HOME: notebook}, [], []))["online_softmax.merge"]
    assert answer.program.run()(0, 0) == 1


DROPPED = [
    ("ONE = 1\nx = !ls",),
    ("ONE = open('numbers.txt')",),
    ("def bind():\n    global ONE\n    ONE = 1", "bind()"),
]


@pytest.mark.parametrize("dropped", DROPPED)
def test_a_name_that_the_grader_cannot_bind_is_no_mistake(dropped, tmp_path):
    answer = MERGE.replace("alpha * a.l", "ONE * alpha * a.l")
    (row,) = grade.grade(class_of(tmp_path, ada=merged(answer, *dropped)))
    assert row.verdict == "not judged" and "ONE" in row.note
    assert not row.reason


@pytest.mark.parametrize("cell", ["return 1", "nonlocal x", "await x", "f(" * 300, "\0", ["ONE", 1], None, 5])
def test_no_cell_ends_the_grader(cell, tmp_path):
    content = json.loads(merged(MERGE))
    content["cells"].insert(0, {"cell_type": "code", "source": cell})
    (row,) = grade.grade(class_of(tmp_path, ada=json.dumps(content)))
    assert row.verdict == "right"


def test_what_comes_after_a_check_does_not_count(tmp_path):
    (row,) = grade.grade(class_of(tmp_path, ada=merged(MERGE).replace("merge)", "merge)\\n1 / 0")))
    assert row.verdict == "right"


CHECKS = {  # the last line of a cell
    "keyword": 'check("online_softmax.merge", attempt=merge)',
    "of a module": 'flashlab.course.check.check("online_softmax.merge", merge)',
    "by a name": 'name = "online_softmax.merge"\ncheck(name, merge)',
    "after what only IPython has": 'display(merge)\ncheck("online_softmax.merge", merge)',
}


@pytest.mark.parametrize("form", CHECKS)
def test_a_check_has_many_forms(form, tmp_path):
    notebook = cells(IMPORTS, "import flashlab.course.check", MERGE + CHECKS[form])
    (row,) = grade.grade(class_of(tmp_path, ada=notebook))
    assert row.verdict == "right"


def test_a_trial_is_no_answer(tmp_path):
    trial = 'check("online_softmax.merge", lambda a, b: a, note=False)'
    (row,) = grade.grade(class_of(tmp_path, ada=cells(IMPORTS, MERGE + CHECK, trial)))
    assert row.verdict == "right"


def test_only_what_an_answer_needs_is_run():
    more = "import time", "wait = time.sleep(1000)", "m = wait", "print(time.sleep(1000))"
    hand_in = HandIn("ada", {"a.ipynb": json.loads(merged(MERGE, *more))}, [], [])
    assert "sleep" not in answers(hand_in)["online_softmax.merge"].program.source


WRONG = MERGE.replace("alpha * a.l", "a.l")
BEFORE, MINE = "04_online_softmax_before.ipynb", "merge.ipynb"
COLABS = "Copy of 04_online_softmax.ipynb"  # what "Save a copy in Drive" calls it
STORED = {"online_softmax.merge": {"solved": True, "said": "", "answer": textwrap.dedent(IMPORTS) + MERGE}}
FILES = {  # the files of a learner's folder, the verdict, and the file that the note names
    "an older copy": ({HOME: MERGE, BEFORE: WRONG}, "right", BEFORE),
    "a renamed copy": ({HOME: MERGE, MINE: WRONG}, "right", MINE),
    "an untouched copy": ({HOME: MERGE, BEFORE: STUB}, "right", ""),
    "a newer lesson": ({HOME: STUB, BEFORE: MERGE}, "right", ""),
    "another name": ({MINE: MERGE}, "right", ""),
    "a copy in Drive": ({COLABS: MERGE}, "right", ""),
    "wrong in the lesson": ({HOME: WRONG, BEFORE: MERGE}, "wrong", BEFORE),
    "stored": ({HOME: STUB, "progress.json": STORED}, "right", ""),
    "stored beside a copy": ({BEFORE: WRONG, "progress.json": STORED}, "right", BEFORE),
    "changed since it was stored": ({HOME: WRONG, "progress.json": STORED}, "wrong", ""),
}


@pytest.mark.parametrize("files", FILES)
def test_the_lesson_counts_before_copies_of_it(files, tmp_path):
    contents, verdict, noted = FILES[files]
    (tmp_path / "ada").mkdir()
    for name, content in contents.items():
        text = merged(content) if isinstance(content, str) else json.dumps(content)
        (tmp_path / "ada" / name).write_text(text, encoding="utf-8")
    (row,) = grade.grade(tmp_path)
    assert (row.verdict, row.note) == (verdict, f"also answered in {noted}" if noted else "")


WITHOUT_CHECK = {  # a lesson without its check of merge: the last cell, and the verdict
    "changed": (MERGE, "not judged"),
    "commented out": (MERGE + CHECK.replace("check", "# check"), "not judged"),
    "the stub": (STUB, "not attempted"),
    "deleted": ("", "not attempted"),
}


@pytest.mark.parametrize("file", [HOME, COLABS])
@pytest.mark.parametrize("case", WITHOUT_CHECK)
def test_an_answer_without_its_check_is_named(case, file, tmp_path):
    cell, verdict = WITHOUT_CHECK[case]
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / file).write_text(cells(IMPORTS, cell), encoding="utf-8")
    (row,) = grade.grade(tmp_path, ["online_softmax.merge"])
    missing = "its check line is missing" if verdict == "not judged" else "not handed in"
    assert (row.verdict, row.note) == (verdict, missing)


def test_a_stored_answer_counts_before_one_without_its_check(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / HOME).write_text(cells(IMPORTS, WRONG), encoding="utf-8")
    (tmp_path / "ada" / "progress.json").write_text(json.dumps(STORED), encoding="utf-8")
    (row,) = grade.grade(tmp_path)
    assert (row.verdict, row.note) == ("right", "")


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda it: it.name)
def test_a_published_lesson_has_no_answer_without_its_check(lesson):
    content = json.loads((NOTEBOOKS / notebook(lesson)).read_text(encoding="utf-8"))
    content["cells"] = [it for it in content["cells"] if "exercise" not in it["metadata"].get("tags", ())]
    assert not [
        name for name, it in answers(HandIn("ada", {notebook(lesson): content}, [], [])).items() if it.unchecked
    ]


def test_the_last_answer_of_a_notebook_counts(tmp_path):
    (row,) = grade.grade(class_of(tmp_path, ada=cells(IMPORTS, WRONG + CHECK, MERGE + CHECK, STUB + CHECK)))
    assert row.verdict == "right"


@pytest.mark.exhaustive
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda it: it.name)
def test_a_solved_lesson_is_right_in_all_exercises(lesson, tmp_path):
    content = nbformat.read(NOTEBOOKS / notebook(lesson), as_version=4)
    for cell in content.cells:
        if "exercise" in cell.metadata.get("tags", ()):
            cell.source, _ = solved(lesson.name, cell)
    (tmp_path / "ada").mkdir()
    nbformat.write(content, tmp_path / "ada" / notebook(lesson))
    names = [name for name in every() if name.startswith(f"{lesson.name}.")]
    verdicts = {row.exercise: (row.verdict, row.reason) for row in grade.grade(tmp_path)}
    assert verdicts == dict.fromkeys(names, ("right", ""))


@pytest.mark.parametrize("name", long_except(["triton_backward.delta"], RIGHT))
def test_another_right_answer_has_no_note_on_private_functions(name):
    source = source_of(RIGHT[name])
    note = runs_the_course(name, Program(source, ast.parse(source).body[-1].name, "<answer>"))
    assert "solution" not in note and " _" not in note and "<" not in note
