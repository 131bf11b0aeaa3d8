"""The page for teachers agrees with the course."""

import re
from pathlib import Path

from flashlab.course.lessons import LESSONS
from flashlab.course.registry import every

PAGE = (Path(__file__).parents[1] / "docs" / "teach.md").read_text(encoding="utf-8")


def test_the_graded_exercises_have_the_minutes_of_the_course():
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (\d+) \|", PAGE, re.MULTILINE))
    exercises = every()
    assert len(listed) == 12
    assert listed == {name: str(exercises[name].minutes) for name in listed}


def test_a_route_meets_lessons_in_their_order_and_each_once():
    rows = [row.split("|")[2:5] for row in re.findall(r"^\| \d+ \|.*$", PAGE, re.MULTILINE)]
    for route in zip(*rows, strict=True):
        lessons = [int(number) for week in route for number in re.findall(r"\d\d", week)]
        if "or" in " ".join(route):
            lessons = lessons[:-1]
        assert lessons == sorted(set(lessons)) and lessons[-1] < len(LESSONS)


def test_electives_are_all_lessons_after_the_core():
    names = [lesson.title for lesson in LESSONS[15:]]
    table = PAGE.partition("## Core and electives")[2].partition("## Three routes")[0]
    assert [name for name in names if name not in table] == []
