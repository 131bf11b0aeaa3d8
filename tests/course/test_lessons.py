"""There is one list of lessons: the README, the map, notebooks, exercises and code agree with it."""

import json
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from flashlab.course import exercises, lessons
from flashlab.course.lessons import CORE, LESSONS, WAYS
from flashlab.course.registry import every
from tests.tools import renumber

ROOT = Path(__file__).resolve().parents[2]
NUMBERED = re.compile(r"\blessons?\s+\d|\bL\d\d\b", re.IGNORECASE)


def cells(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


def test_there_is_a_notebook_for_each_lesson_and_a_lesson_for_each_notebook():
    assert [path.name for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))] == [
        *map(lessons.notebook, LESSONS)
    ]


def test_numbers_links_and_tables_are_those_of_the_list():
    assert renumber.changes() == ({}, {}), "python -m tests.tools.renumber"


def test_the_lessons_after_a_new_one_get_new_numbers():
    new, *after = LESSONS[7:]
    now = {it: lessons.notebook(it).removesuffix(".ipynb") for it in LESSONS[:7]} | {new: new.name}
    now |= {it: f"{at:02}_{it.name}" for at, it in enumerate(after, 7)}
    for before, expected in (
        ("lessons 06 to 08, 07 and 06; in lesson 07, 12 loads", "lessons 06 to 09, 08 and 06; in lesson 08, 12 loads"),
        ("lessons 06 (12 loads), 07 (12 stores)", "lessons 06 (12 loads), 08 (12 stores)"),
        ("grade --lessons 06 07 --csv 07.csv", "grade --lessons 06 08 --csv 07.csv"),
        (
            f"[07 · R](../notebooks/07_{after[0].name}.ipynb), 07",
            f"[08 · R](../notebooks/08_{after[0].name}.ipynb), 07",
        ),
        (f"--take 07_{after[0].name}, 01_{after[0].name}", f"--take 08_{after[0].name}, 01_{after[0].name}"),
    ):
        assert renumber.renumbered(before, now) == expected


def test_the_readme_states_the_hours_of_the_whole_course():
    assert f" {lessons.duration(WAYS[-1].minutes).removesuffix(' h')} hours" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(0, "0 min"), (35, "35 min"), (60, "1 h"), (195, "3 h 15 min"), (1199, "19 h 59 min"), (2140, "36 h")],
)
def test_a_duration_is_written_in_hours_and_minutes(minutes, words):
    assert lessons.duration(minutes) == words


def test_the_ways_have_the_order_of_the_course_each_is_a_part_of_the_next_and_the_last_is_all():
    assert [way for way in WAYS if list(way.lessons) != sorted(way.lessons, key=LESSONS.index)] == []
    evening, weekend, core, everything = (set(way.lessons) for way in WAYS)
    assert evening < weekend < core == set(CORE) and core < everything == set(LESSONS)


def test_the_core_takes_18_hours_at_most_with_the_line_of_descent():
    core = WAYS[2]
    assert core.minutes + 20 <= 18 * 60
    assert f"The core takes {lessons.duration(core.minutes)}." in (ROOT / "README.md").read_text("utf-8")


def test_an_elective_builds_on_earlier_lessons_which_its_opening_names():
    for lesson in (it for it in LESSONS if it not in CORE):
        here = lessons.number(lesson)
        need = re.search(r"\*\*You need\*\* .*", cells(ROOT / "notebooks" / lessons.notebook(lesson))[0])[0]
        for number in map(int, lessons.builds_on(lesson).split(", ")):
            assert number < here
            assert f"{number:02}" in need or number == here - 1 and "the last lesson" in need, (lesson.name, number)


def test_every_exercise_module_belongs_to_a_lesson():
    modules = {it.name for it in pkgutil.iter_modules(exercises.__path__)}
    assert "tiling" in modules and modules <= {lesson.name for lesson in LESSONS}


def test_the_exercises_of_a_lesson_take_less_time_than_the_lesson():
    for lesson in LESSONS:
        inside = [exercise.minutes for name, exercise in every().items() if name.startswith(f"{lesson.name}.")]
        assert sum(inside) < lesson.minutes, lesson.name


def test_packages_of_exercises_have_the_order_of_the_notebook():
    packages = {it.name for it in pkgutil.iter_modules(exercises.__path__) if it.ispkg}
    for lesson in LESSONS:
        if lesson.name in packages:
            text = "\n".join(cells(ROOT / "notebooks" / lessons.notebook(lesson)))
            checked = [*dict.fromkeys(re.findall(rf'check\("({lesson.name}\.\w+)"', text))]
            listed = [name for name in every() if name in checked]
            assert checked and (listed == checked or not listed and find_spec("triton") is None)


def test_names_of_lessons_are_unique_and_the_lessons_of_a_part_are_neighbours():
    names, parts = [lesson.name for lesson in LESSONS], [lesson.part for lesson in LESSONS]
    assert len(set(names)) == len(names)
    assert len(set(parts)) == 1 + sum(a != b for a, b in zip(parts, parts[1:], strict=False))


def test_each_lesson_is_in_one_of_the_doctors_sentences_by_its_number():
    printed = " ".join(lessons.runs(needs) for needs in ("numpy", "triton", "hopper"))
    spans = re.findall(r"(\d\d)(?: to (\d\d))?", printed)
    assert sorted(n for a, b in spans for n in range(int(a), int(b or a) + 1)) == [*range(len(LESSONS))]
    assert lessons.runs("numpy").startswith("lessons 00 to ")


def test_code_names_lessons_and_never_numbers_them():
    """So a lesson can be inserted. ``lessons.runs`` and similar functions take numbers from the list."""
    numbered = {}
    for path in (path for wing in ("flashlab", "figures") for path in (ROOT / wing).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "lessons.py":
            text = text.replace('"lessons 00 to 09, 15 and 16" or "lesson 15"', "")
        numbered[path.relative_to(ROOT).as_posix()] = NUMBERED.findall(text)
    assert {path: numbers for path, numbers in numbered.items() if numbers} == {}
