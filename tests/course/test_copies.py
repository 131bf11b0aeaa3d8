"""The learner's copies are made once, updated if the learner changed nothing, and merged cell by cell otherwise."""

import json
import subprocess

import pytest

from flashlab.course import copies
from flashlab.course.copies import digests, merged, refresh, take

STUB = "def inside(): ..."


def notebook(**cells):
    """Return a notebook from the ids and sources of its cells: prose_… are Markdown, all others code."""
    return {"cells": [{"id": name, "cell_type": "markdown" if name.startswith("prose") else "code", "metadata": {},
                       "source": source} for name, source in cells.items()],
            "metadata": {}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip


def sources(content):
    return {cell["id"]: "".join(cell["source"]) for cell in content["cells"]}


class Course:
    """A checkout with two lessons."""

    def __init__(self, folder):
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.publish("00_start.ipynb", first="1")
        self.publish("01_tiling.ipynb", prose_links="[code](../a.py) [data](data/x) [a](00_start.ipynb)", mine=STUB)

    def publish(self, name, **cells):
        (self.notebooks / name).write_text(json.dumps(notebook(**cells)))

    def git(self, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=self.notebooks.parent, check=True, capture_output=True)

    def commit(self):
        self.git("add", "notebooks/*.ipynb")
        self.git("commit", "-m", "lessons")

    def copy(self, name):
        return sources(json.loads((self.notebooks / "mine" / name).read_text()))

    def edit(self, name, folder="mine", **cells):
        path = self.notebooks / folder / name
        content = json.loads(path.read_text())
        for cell in content["cells"]:
            cell["source"] = cells.get(cell["id"], cell["source"])
        path.write_text(json.dumps(content))


@pytest.fixture
def course(tmp_path):
    course = Course(tmp_path)
    course.git("init")
    course.commit()
    return course


def test_copies_are_made_once_with_links_from_their_folder(course):
    (sentence,) = refresh(course.notebooks)
    assert "mine" in sentence and refresh(course.notebooks) == []
    links = "[code](../../a.py) [data](../data/x) [a](00_start.ipynb)"
    assert course.copy("01_tiling.ipynb") == {"prose_links": links, "mine": STUB}


def test_a_lesson_without_a_change_is_updated_and_a_changed_one_stays(course):
    refresh(course.notebooks)
    course.edit("01_tiling.ipynb", mine="def inside(): return 1")
    course.publish("00_start.ipynb", first="2")
    course.publish("01_tiling.ipynb", prose_links="new", mine=STUB)
    course.commit()
    updated, stays = refresh(course.notebooks)
    assert "00_start" in updated and course.copy("00_start.ipynb") == {"first": "2"}
    assert "--take 01_tiling" in stays and course.copy("01_tiling.ipynb")["mine"] == "def inside(): return 1"
    assert refresh(course.notebooks) == [stays]
    before = (course.notebooks / "mine" / "01_tiling.ipynb").read_bytes()
    assert "1 of your cells" in take("01", course.notebooks)
    assert course.copy("01_tiling.ipynb") == {"prose_links": "new", "mine": "def inside(): return 1"}
    assert (course.notebooks / "mine" / "01_tiling_before.ipynb").read_bytes() == before
    assert refresh(course.notebooks) == []


def test_answers_in_a_lesson_are_copied_and_count_as_the_learners(course):
    course.edit("01_tiling.ipynb", folder=".", mine="def inside(): return 1")
    _, sentence = refresh(course.notebooks)
    assert "git restore" in sentence and course.copy("01_tiling.ipynb")["mine"] == "def inside(): return 1"
    course.publish("01_tiling.ipynb", prose_links="new", mine=STUB)
    course.commit()
    (stays,) = refresh(course.notebooks)
    assert "--take" in stays and course.copy("01_tiling.ipynb")["mine"] == "def inside(): return 1"
    take("01_tiling", course.notebooks)
    assert course.copy("01_tiling.ipynb") == {"prose_links": "new", "mine": "def inside(): return 1"}


def test_without_git_no_copy_is_replaced(tmp_path):
    course = Course(tmp_path)
    refresh(course.notebooks)
    course.publish("00_start.ipynb", first="2")
    (stays,) = refresh(course.notebooks)
    assert "--take 00_start" in stays and course.copy("00_start.ipynb") == {"first": "1"}


def test_a_lesson_that_gets_another_number_takes_its_copy_along(course):
    refresh(course.notebooks)
    course.edit("01_tiling.ipynb", mine="mine")
    course.git("mv", "notebooks/01_tiling.ipynb", "notebooks/02_tiling.ipynb")
    course.publish("01_new.ipynb", first="new")
    course.commit()
    refresh(course.notebooks)
    assert course.copy("02_tiling.ipynb")["mine"] == "mine" and course.copy("01_new.ipynb") == {"first": "new"}
    assert not (course.notebooks / "mine" / "01_tiling.ipynb").exists()


def test_a_file_that_is_no_notebook_is_left_alone_and_the_others_are_not(course):
    refresh(course.notebooks)
    copy = course.notebooks / "mine" / "01_tiling.ipynb"
    copy.write_text("<<<<<<< HEAD")
    course.publish("01_tiling.ipynb", mine="2")
    course.publish("00_start.ipynb", first="2")
    course.commit()
    updated, left = refresh(course.notebooks)
    assert "00_start" in updated and "01_tiling" in left and copy.read_text() == "<<<<<<< HEAD"


def test_the_table_of_versions_may_be_lost(course):
    refresh(course.notebooks)
    course.edit("01_tiling.ipynb", mine="mine")
    (course.notebooks / "mine" / "versions.json").write_text("{")
    (sentence,) = refresh(course.notebooks)  # none on the unchanged copy
    assert "--take 01_tiling" in sentence
    take("01_tiling", course.notebooks)
    assert set(course.copy("01_tiling.ipynb").values()) >= {STUB, "mine"}


def test_cells_are_merged_by_their_ids():
    old = notebook(prose="text", stub="...", gone="x", both="a", same="s")
    mine = notebook(prose="text", stub="mine", own="added", gone="changed", both="b", same="s", last="added too")
    newest = notebook(first="new", prose="better text", stub="...", both="c", same="s2")
    result, cells = merged(digests(old), mine, newest)
    texts = list(sources(result).values())
    assert texts == ["new", "better text", "mine", "added", "changed", "c", "b", "s2", "added too"]
    assert cells == 5 and len(sources(result)) == 9


def test_an_unknown_lesson_and_a_folder_that_cannot_be_written(course, monkeypatch, capsys):
    with pytest.raises(ValueError, match="expected one of 00_start, 01_tiling, got '7'"):
        take("7", course.notebooks)
    with pytest.raises(ValueError, match="make lab makes it"):
        take("01_tiling", course.notebooks)
    monkeypatch.setattr(copies, "refresh", lambda: (course.notebooks / "00_start.ipynb" / "x").write_text(""))
    assert "00_start.ipynb/x could not be written" in copies.main([])
