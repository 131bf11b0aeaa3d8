"""The page for teachers agrees with the course."""

import re
from pathlib import Path

from flashlab.course.lessons import CORE, LESSONS, WAYS, builds_on, duration, number, spans
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


def test_a_week_takes_the_minutes_that_the_page_states():
    least, most = map(int, re.search(r"A week takes (\d+) to (\d+) minutes", PAGE).groups())
    rows = [row.split("|")[2:5] for row in re.findall(r"^\| \d+ \|.*$", PAGE, re.MULTILINE)]
    weeks = [re.findall(r"\d\d", week.partition("or")[0]) for row in rows for week in row]
    *others, _, _ = minutes = sorted(sum(LESSONS[int(number)].minutes for number in week) for week in weeks if week)
    assert (others[0], others[-1]) == (least, most) and [round(it / 60) for it in minutes[-2:]] == [3, 4]


def test_the_page_has_the_core_and_the_electives_of_the_list():
    section = PAGE.partition("## Core and electives")[2].partition("## Three routes")[0]
    assert f"{spans(CORE).capitalize()} are the core" in section and duration(WAYS[2].minutes) in section
    electives = [f"| {number(it):02} {it.title} | {builds_on(it)} |" for it in LESSONS if it not in CORE]
    assert re.findall(r"^\| \d\d .*$", section, re.MULTILINE) == electives
