"""Charts on a page opened from a file, without network and kernel: values by pointer and by key, in both themes."""

import html
import re

import numpy as np
import pytest

from figures import charts, whole
from tests.browser.conftest import SCREENSHOTS
from tests.browser.test_axe import AXE, FOUND
from tests.browser.test_page import TEXTS

CHARTS = {
    "bars": lambda: charts.bars({"ours": 812, "<theirs> & 'others'": 31}, unit="TFLOP/s", title="speeds"),
    "lines": lambda: charts.lines(
        [128, 256, 512], {"flash": [3, 8, 17], "standard": [5, 20, 80]}, xlabel="N", log=True
    ),
    "weights": lambda: charts.weights(
        np.eye(3) * 0.7 + 0.1, ["a", "b", "c"], ["river", "bank", "money"], title="looks"
    ),
    "dots": lambda: charts.dots({"error": {"one": 0.5, "two": [1, 2]}, "MB": {"one": 3, "two": 4}}, title="costs"),
    "whole": whole.picture,
}
FIRST = {  # chart: title and value of its first mark, an arrow key, and the title of the mark to which the key leads
    "bars": ("ours", "812 TFLOP/s", "ArrowDown", "<theirs> & 'others'"),
    "lines": ("N 128", "flash 3", "ArrowRight", "N 256"),
    "weights": ("a → river", "0.80", "ArrowRight", "a → bank"),
    "dots": ("one: error", "0.5", "ArrowRight", "one: MB"),
    "whole": ("Q", "in slow memory, loaded in tiles", "ArrowRight", "S and P"),
}


@pytest.fixture(params=CHARTS)
def kind(request):
    return request.param


@pytest.fixture
def file(tmp_path, kind, monkeypatch):
    """Return the path of a page with one chart, as a cell shows it."""
    monkeypatch.setenv("FLASHLAB_FIGURES", "live")
    shown = CHARTS[kind]()._repr_mimebundle_()["text/html"]
    path = tmp_path / f"{kind}.html"
    words = '<!doctype html><html lang="en"><meta charset="utf-8"><title>a chart</title>'
    path.write_text(f"{words}<main><h1>{kind}</h1>{shown}</main></html>", encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chart_is_drawn_in_the_theme_with_all_its_words(sheet, file, scheme):
    page = sheet(file, color_scheme=scheme)
    drawing = page.locator(".flashlab-chart svg")
    drawing.wait_for()
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"chart_{file.stem}_{scheme}.png")
    assert page.faults == [] and page.locator("img").count() == 0
    assert drawing.evaluate(TEXTS) == [[], [], []], "cut, small, covered"
    paper = page.locator(".flashlab").evaluate("it => getComputedStyle(it).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
    assert page.locator(".flashlab-chart").evaluate("it => getComputedStyle(it).filter") == "none"
    if AXE.exists():
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(FOUND) == []


def test_a_chart_says_the_same_by_pointer_and_by_keyboard(sheet, file, kind):
    title, value, arrow, second = FIRST[kind]
    page = sheet(file)
    tip, marks = page.locator(".tip"), page.locator("svg [data-tip]")
    marks.first.hover()
    assert tip.locator("b").inner_text() == title and tip.locator("span").first.inner_text() == value
    box = tip.bounding_box()
    page.mouse.move(1, 1)
    assert tip.is_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert tip.locator("b").inner_text() == title and tip.bounding_box() == box
    page.keyboard.press(arrow)
    assert tip.locator("b").inner_text() == second
    page.keyboard.press("Escape")
    assert tip.is_hidden() and page.faults == []


def test_without_scripts_there_is_the_picture_with_its_words(sheet, file, kind):
    page = sheet(file, java_script_enabled=False)
    picture = page.locator("img")
    assert picture.get_attribute("alt") == repr(CHARTS[kind]()) and picture.evaluate("it => it.naturalWidth") > 0
    assert page.locator("main").inner_text().strip() == kind  # the data is not visible


def test_on_a_narrow_screen_a_chart_keeps_its_least_width(sheet, file):
    page = sheet(file, 390)
    assert page.locator(".flashlab-chart").bounding_box()["width"] == 640


def test_the_scripts_of_several_charts_go_together(sheet, file, kind):
    text = file.read_text(encoding="utf-8")
    shown = re.search("<img.*</script>", text, re.S)[0]
    file.write_text(text.replace("</main>", f"{shown}</main>"), encoding="utf-8")
    page = sheet(file)
    page.locator(".flashlab-chart svg").nth(1).wait_for()
    labels = [svg.get_attribute("aria-label") for svg in page.locator(".flashlab-chart svg").all()]
    assert labels == [html.unescape(re.search('alt="([^"]*)"', text)[1])] * 2 and page.faults == []
