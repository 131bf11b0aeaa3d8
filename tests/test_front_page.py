"""The front page: its ways through are those of the list of lessons, and its race ends with the bytes of its runs."""

import re

from docs import front
from figures import style, tiling
from flashlab.course.lessons import WAYS, duration


def test_each_way_has_its_sum_and_its_lessons():
    shown = re.findall(r"<summary>(.*?) <small>(.*?)</small></summary>\n.*?<ol>(.*?)</ol>", front.page(), re.DOTALL)
    assert [(name, total) for name, total, _ in shown] == [(way.name, duration(way.minutes)) for way in WAYS]
    for way, (*_, rows) in zip(WAYS, shown, strict=True):
        assert re.findall(r'href="lessons/(\S+)"', rows) == [front.page_of(lesson) for lesson in way.lessons]


def test_the_race_ends_with_the_bytes_of_its_runs():
    moved = [style.amount(run["moved"]) for run in tiling.trace(tiling.State())["runs"]]
    (result,) = re.findall(r"<output>(.*?)</output>", front.page())
    assert re.findall(r"<b>(.*?)</b>", result.replace("&nbsp;", " ")) == moved
