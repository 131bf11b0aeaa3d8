"""The page for teachers agrees with the course."""

from pathlib import Path

import pytest

from docs import drawn, teaching
from flashlab.course.graded import GRADED
from flashlab.course.lessons import CORE, LESSONS, WAYS, duration, runs, spans
from flashlab.course.registry import find
from flashlab.grading.exercise import Exercise

PAGE = (Path(__file__).parents[1] / "docs" / "teach.md").read_text(encoding="utf-8")
TABLES = {"all exercises": teaching.checked(), "exercises": teaching.exercises(), "questions": teaching.questions()} | {
    f"{route} weeks": teaching.weeks(route) for route in teaching.ROUTES
}


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_tables_of_the_lists(table):
    assert "\n".join(TABLES[table]) in PAGE  # python -m docs.teaching prints them


@pytest.mark.parametrize("route", teaching.ROUTES)
def test_a_route_has_lessons_once_in_order_and_with_their_prerequisites(route):
    weeks = teaching.ROUTES[route]
    names = " ".join(weeks).split()
    lessons = [it for it in LESSONS if it.name in names]
    assert len(weeks) == route and names == [it.name for it in lessons]
    assert {needed for lesson in lessons for needed in lesson.prerequisites} <= set(names)
    assert {it.exercise.partition(".")[0] for it in GRADED} <= set(names)


def test_the_graded_exercises_are_functions_of_the_core():
    names = [it.exercise for it in GRADED]
    assert len(set(names)) == len(names)
    assert all(isinstance(find(name), Exercise) for name in names)
    assert {name.partition(".")[0] for name in names} <= {lesson.name for lesson in CORE}


def test_the_page_says_how_long_the_core_is_what_lessons_need_and_which_have_no_slide():
    words = " ".join(PAGE.split())
    assert f"{spans(CORE).capitalize()} are the core. They take {duration(WAYS[2].minutes)}" in words
    assert f"{runs('triton').capitalize()} need Triton, and {runs('hopper')} need Linux" in words
    without = spans([it for it in LESSONS if it not in map(drawn.lesson_of, drawn.names())])
    assert f"{without.capitalize()} have no figure" in words
