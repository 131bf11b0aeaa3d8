"""The front page: its ways through the course are ``WAYS``, and its race ends with the bytes of its three runs."""

import re
import struct

import pytest

from docs import drawn, front, lessons, panels
from figures import page, style, tiling
from flashlab.course.data import NOTEBOOKS
from flashlab.course.lessons import LESSONS, WAYS, duration, number
from flashlab.reference.published import RUNS


def test_each_way_has_its_sum_and_its_lessons():
    shown = re.findall(r"<summary>(.*?) <small>(.*?)</small></summary>\n.*?<ol>(.*?)</ol>", front.page(), re.DOTALL)
    assert [(name, total) for name, total, _ in shown] == [(way.name, duration(way.minutes)) for way in WAYS]
    for way, (*_, rows) in zip(WAYS, shown, strict=True):
        assert re.findall(r'href="lessons/(\S+)"', rows) == [front.page_of(lesson) for lesson in way.lessons]


def test_the_race_ends_with_the_bytes_of_its_runs():
    moved = [style.amount(run["moved"]) for run in tiling.trace(tiling.State())["runs"]]
    (result,) = re.findall(r"<output>(.*?)</output>", front.page(), re.DOTALL)
    assert re.findall(r"<b>(.*?)</b>", result.replace("&nbsp;", " ")) == moved


def test_larger_tiles_save_more_as_the_page_says():
    small, large = re.findall(r"([\d.]+)× less", front.page())
    assert 1 < float(small) < float(large)


def test_the_lead_has_the_published_numbers_that_the_first_lesson_has():
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', front.page(), re.DOTALL)
    opening = (NOTEBOOKS / "00_start_here.ipynb").read_text(encoding="utf-8")
    for run in RUNS.values():
        gigabytes, milliseconds = f"{run.nbytes / 1e9:.1f}", str(run.milliseconds)
        assert gigabytes in lead and f"{gigabytes} GB" in opening
        assert milliseconds in lead and f"{milliseconds} ms" in opening


def test_a_way_names_the_prerequisites_that_it_leaves_out():
    left_out = {}
    for way in WAYS:
        (panel,) = re.findall(rf"<summary>{way.name} .*?</details>", front.page(), re.DOTALL)
        left_out[way.name] = re.findall(r'<a href="lessons/\d\d_(\w+)', panel.partition("To be taken on trust")[2])
    evening = ["standard_attention", "safe_softmax"]
    assert left_out == {"An evening": evening, "A weekend": [], "The core": [], "All of it": []}


def test_a_lesson_needs_only_earlier_lessons():
    for lesson in LESSONS:
        assert all(number(it) < number(lesson) for it in lessons.needed(lesson)), lesson.name
    (lesson,) = [it for it in LESSONS if it.name == "io_complexity"]
    assert {it.name for it in lessons.needed(lesson)} == {"tiling", "block_size", "recomputation"}


def test_every_figure_has_a_panel_and_every_lesson_a_picture_of_its_own():
    assert set(panels.OF_FIGURE) == set(drawn.names())
    assert len({panels.of(lesson)[0] for lesson in LESSONS}) == len(LESSONS)


@pytest.mark.parametrize(("name", "figure", "box"), panels.boxes(), ids=lambda it: it if isinstance(it, str) else "")
def test_a_panel_is_a_part_of_the_still(name, figure, box):
    whole = drawn.figure(figure)
    png = page.still(whole, whole.State())
    width, height = struct.unpack(">II", png[16:24])
    left, top, right, bottom = box
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert max(right - left, bottom - top) <= 1060  # letters stay legible in a card
