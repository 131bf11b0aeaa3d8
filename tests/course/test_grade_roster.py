"""The list of a class, and the files of a learning platform: which entry belongs to which learner."""

import csv

import pytest

from flashlab.course import grade
from flashlab.course.grade_files import HandIn, hand_ins
from flashlab.course.grade_roster import UNDECIDED, Learner, members, roster
from flashlab.grading import forked
from tests.course.test_grade import MERGE, merged
from tests.course.test_grade_files import zipped

HOME = "04_online_softmax.ipynb"
EXPORT = """\ufeffFirst name,Last name,ID number,Email address
Ada,Lovelace,77,ada@uni.example
Anna,Berg,78,anna@uni.example
Anna,Berg,79,berg@uni.example
Seán,O'Brien,80,sean@uni.example
Grace,Hopper,81,grace@uni.example
"""
ONE_COLUMN = {
    "a head": "learner\nada\nbob\n",
    "no head": "\ufeffada\nbob",
    "more columns": "Name,mail\nada,x\n\nbob,y",
    "semicolons": "mail;Full name\nx;ada\ny;bob",
    "a line twice": "name,mail\nada,x\nbob,y\nada,x\n",
}


@pytest.fixture
def class_list(tmp_path):
    file = tmp_path / "names.csv"
    file.write_text(EXPORT, encoding="utf-8")
    return file


@pytest.mark.parametrize("text", ONE_COLUMN)
def test_a_list_has_a_learner_per_line(text, tmp_path):
    file = tmp_path / "names.csv"
    file.write_text(ONE_COLUMN[text], encoding="utf-8")
    heads, learners = roster(file)
    assert [it.name for it in learners] == ["ada", "bob"]
    assert [it.columns for it in learners] == ([("x",), ("y",)] if heads else [(), ()])


def test_an_exported_list_has_names_and_other_columns(class_list):
    heads, learners = roster(class_list)
    assert heads == ("ID number", "Email address")
    assert learners[0] == Learner("Ada Lovelace", ("77", "ada@uni.example"))
    assert learners[3].name == "Seán O'Brien" and len(learners) == 5


def test_a_list_without_a_column_of_names_gets_a_sentence(tmp_path, capsys):
    file = tmp_path / "names.csv"
    file.write_text("Vorname,Nachname\nAda,Lovelace\n", encoding="utf-8")
    assert grade.main([str(tmp_path), "--roster", str(file)]) == 1
    assert "First name and Last name" in capsys.readouterr().err


def entries_of(*names):
    """Return empty hand-ins with these names and numbers."""
    return [HandIn(name, {}, [], [], number) for name, number in names]


IDENTIFIED = {  # entries, and the index of the entry of each Anna, None if her name does not decide
    "by number": ([("Anna Berg", "5"), ("Anna Berg", "4")], (1, 0)),
    "one of two": ([("Anna Berg", "4")], (0, None)),
    "by a whole entry": ([("anna@uni.example", ""), ("Anna Berg", "5")], (0, 1)),
    "by nothing": ([("Anna Berg", "8"), ("Anna Berg", "9")], (None, None)),
}


@pytest.mark.parametrize("case", IDENTIFIED)
def test_two_learners_of_one_name_are_identified_or_reported(case):
    entries, expected = IDENTIFIED[case]
    handed_in = entries_of(*entries)
    annas = [Learner("Anna Berg", ("Participant 4", "anna@uni.example")), Learner("Anna Berg", ("Participant 5", "b"))]
    matches = members(handed_in, annas)
    assert [it.hand_in for it in matches[:2]] == [None if at is None else handed_in[at] for at in expected]
    others = [it for at, it in enumerate(handed_in) if at not in expected]
    assert [it.hand_in for it in matches[2:]] == others and {it.note for it in matches[2:]} <= {UNDECIDED}


@pytest.mark.parametrize("entry", ["Lovelace, Ada", "ada lovelace", "Lovelace_Ada", "ADA  LOVELACE"])
def test_the_order_and_the_case_of_a_name_do_not_count(entry):
    (member,) = members(entries_of((entry, "")), [Learner("Ada Lovelace", ("77",))])
    assert member.learner.columns == ("77",) and member.hand_in is not None


def test_without_a_list_two_entries_of_one_name_are_two_learners():
    matches = members(entries_of(("Anna Berg", "4"), ("Anna Berg", "5"), ("Ada", "6")), [])
    assert [it.learner.name for it in matches] == ["Anna Berg 4", "Anna Berg 5", "Ada"]


@pytest.mark.skipif(not forked.forks(), reason="an answer is run in a process of its own")
def test_a_class_as_moodle_writes_it_gets_a_table_that_moodle_reads(class_list, tmp_path, capsys):
    folder, table = tmp_path / "class", tmp_path / "grades.csv"
    end = "assignsubmission_file"
    zipped(folder / f"Ada Lovelace_1234567_{end}" / "mine.zip", **{f"notebooks/mine/{HOME}": merged(MERGE)})
    zipped(folder / f"Anna Berg_1234568_{end}_" / "mine.zip", **{HOME: merged(MERGE)})
    zipped(folder / f"Anna Berg_1234569_{end}" / "mine.zip", **{HOME: merged(MERGE)})
    (folder / f"Seán OBrien_1234570_{end}_{HOME}").write_text(merged(MERGE), encoding="utf-8")
    (folder / f"Alan Turing_1234571_{end}_mine.txt").write_text("", encoding="utf-8")
    options = ["--roster", str(class_list), "--csv", str(table), "--exercises", "online_softmax.merge", "--wide"]
    assert grade.main([str(folder), *options]) == 0
    head, *lines = csv.reader(table.open(encoding="utf-8"))
    assert head[:4] == ["learner", "ID number", "Email address", "online_softmax.merge"]
    assert [(line[0], line[1], line[3].strip("*"), line[-1]) for line in lines] == [
        ("Ada Lovelace", "77", "right", ""),
        ("Anna Berg", "78", "not attempted", UNDECIDED),
        ("Anna Berg", "79", "not attempted", UNDECIDED),
        ("Seán O'Brien", "80", "right", ""),
        ("Grace Hopper", "81", "not attempted", "nothing handed in"),
        ("Alan Turing", "", "not attempted", "not in the list of the class; not read: mine.txt"),
        ("Anna Berg 1234568", "", "right", UNDECIDED),
        ("Anna Berg 1234569", "", "right", UNDECIDED),
    ]
    assert "Not in" in capsys.readouterr().err
    assert [it.notebooks.keys() for it in hand_ins(folder) if it.number == "1234570"] == [{HOME: 0}.keys()]
