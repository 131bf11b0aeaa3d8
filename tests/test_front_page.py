"""The front page: its minutes are those of the lessons, and its ways through are made of lessons."""

import re

import pytest

from docs import front, lessons
from figures import style, tiling
from flashlab.course.lessons import LESSONS
from tests.test_setup import read


def first_cell(words):
    return {"cells": [{"source": [f"# 00 · A lesson\n\n**Time** {words}\n"]}]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("about 35 minutes, with one exercise.", 35),
        ("about an hour, with one exercise.", 60),
        ("about two hours. Kernels are compiled.", 120),
        ("an hour and three quarters, with five exercises.", 105),
        ("about 2 hours 40 minutes, with five exercises.", 160),
    ],
)
def test_minutes_are_read_from_the_first_cell(monkeypatch, words, expected):
    monkeypatch.setattr(lessons, "_stored", lambda name: first_cell(words))
    assert lessons.minutes.__wrapped__(LESSONS[0]) == expected


@pytest.mark.parametrize("words", ["three hours, with a quiz.", "about 2 hours and 40 minutes, all in all.", "long."])
def test_minutes_in_another_form_raise(monkeypatch, words):
    monkeypatch.setattr(lessons, "_stored", lambda name: first_cell(words))
    with pytest.raises(ValueError, match="how long"):
        lessons.minutes.__wrapped__(LESSONS[0])


@pytest.mark.parametrize(
    ("total", "words"), [(35, "35 min"), (60, "1 h"), (195, "3 h 15 min"), (1199, "19 h 59 min"), (2140, "36 h")]
)
def test_a_duration_is_written_in_hours_and_minutes(total, words):
    assert front.duration(total) == words


def test_the_ways_are_lessons_each_a_part_of_the_next_and_the_last_is_all():
    evening, weekend, everything = (set(names) for _, names in front.WAYS.values())
    assert evening < weekend < everything == {lesson.name for lesson in LESSONS}
    page = front.page()
    for way in front.WAYS:
        total = front.duration(sum(map(lessons.minutes, front.lessons_of(way))))
        assert f"<summary>{way} <small>{total}</small></summary>" in page


def test_the_readme_states_the_hours_of_the_whole_course():
    (stated,) = re.findall(r"about (\d+) hours", read("README.md"))
    assert abs(60 * int(stated) - sum(map(lessons.minutes, LESSONS))) <= 60  # minutes


def test_the_race_ends_with_the_bytes_of_its_runs():
    moved = [style.amount(run["moved"]) for run in tiling.trace(tiling.State())["runs"]]
    (result,) = re.findall(r"<output>(.*?)</output>", front.page())
    assert re.findall(r"<b>(.*?)</b>", result.replace("&nbsp;", " ")) == moved
