"""Learners hand in folders, zips and notebooks; the table names what cannot be read."""

import zipfile

import pytest

from flashlab.course import grade, grade_files
from flashlab.course.copies import VERSIONS
from flashlab.grading import forked
from tests.course.test_grade import MERGE, merged

pytestmark = pytest.mark.skipif(not forked.forks(), reason="an answer is run in a process of its own")

HOME = "04_online_softmax.ipynb"


def zipped(file, **members):
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)


@pytest.mark.parametrize("file", ["ada.zip", "ada/mine.zip", "ada/mine.ZIP"])
@pytest.mark.parametrize("member", [HOME, f"mine/{HOME}", f"../../{HOME}", f"/{HOME}"])
def test_a_zip_is_read_and_nothing_of_it_is_written(file, member, tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    zipped(folder / file, **{member: merged(MERGE), f"__MACOSX/._{HOME}": "\0"})
    before = sorted(tmp_path.rglob("*"))
    (row,) = grade.grade(folder)
    assert row[:3] == ("ada", "online_softmax.merge", "right") and not row.note
    assert sorted(tmp_path.rglob("*")) == before


def test_a_zip_that_would_fill_the_memory_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(grade_files, "LIMIT", 10_000)
    zipped(tmp_path / "ada.zip", **{HOME: " " * 10_001})
    (row,) = grade.grade(tmp_path)
    assert row[:3] == ("ada", "", "not judged") and "ada.zip" in row.note


@pytest.mark.parametrize("name", ["ada.zip", "ada.ipynb", "ada.rar", "ada.pdf", "ada/04.7z", f"ada/{HOME}"])
def test_what_cannot_be_read_has_a_row(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"PK\3\4 this is none")
    row, *_ = grade.grade(tmp_path)
    assert row[:3] == ("ada", "", "not judged") and name.removeprefix("ada/") in row.note


def test_an_archive_beside_a_notebook_is_named_and_other_files_are_not(tmp_path):
    (tmp_path / "ada").mkdir()
    for name in (HOME, "more.rar", "drawing.png", VERSIONS):
        (tmp_path / "ada" / name).write_text(merged(MERGE), encoding="utf-8")
    note, row = grade.grade(tmp_path)
    assert note.note == "not read: more.rar" and row.verdict == "right"


def test_an_empty_folder_has_a_row(tmp_path):
    (tmp_path / "ada").mkdir()
    (row,) = grade.grade(tmp_path)
    assert row[:3] == ("ada", "", "not judged") and row.note == "no notebook"


def test_a_folder_and_a_zip_of_one_name_are_one_learner(tmp_path):
    zipped(tmp_path / "ada.zip", **{HOME: merged(MERGE)})
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / HOME).write_text(merged(MERGE), encoding="utf-8")
    (row,) = grade.grade(tmp_path)
    assert row.verdict == "right" and row.note == f"also answered in {HOME}"
