"""The first screen of the site: the sentence, the ways through the course, and the race, which plays once by itself."""

import re

import pytest

from docs import front
from flashlab.course.lessons import WAYS, duration
from tests.browser.conftest import SCREENSHOTS, UNPACKED
from tests.browser.lab import SECONDS

HEIGHTS = {390: 844, 1024: 900, 1280: 900, 1920: 900}
RESULT, BUTTON = ".race > p output", ".race > p button"
STAGE = ".race [data-figure] .stage"
CONTROLS = ".race [data-figure] .head"
CHANGE = ".race [data-figure] button[aria-expanded]"
KEY, BELOW = ".race .key >> nth=0", ".race .key >> nth=1"
PLACES = STAGE, CHANGE, BELOW, KEY
FIGURE = "flashlab.figures['figure-tiling'][0]"
STEP = f"document.querySelector('.race [data-figure]') && {FIGURE}.state.step"
SETTINGS = f"JSON.stringify({{ ...{FIGURE}.state, step: 0 }}) === JSON.stringify({{ ...{FIGURE}.data.state, step: 0 }})"
TRAVELS = """it => it.getAnimations({ subtree: true }).map(one => one.transitionProperty)
    .filter(name => ["x", "y", "transform"].includes(name))"""
INSIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture
def opened(browser, site):
    """Return a function that opens the front page. The page's clock stands still; its ``faults`` lists its errors."""
    contexts = []

    def open(width=1280, hash="", **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": HEIGHTS[width]}, **options))
        contexts[-1].set_default_timeout(1000 * SECONDS)
        sheet = contexts[-1].new_page()
        sheet.faults = []
        sheet.on("pageerror", lambda error: sheet.faults.append(str(error)))
        sheet.clock.install(time=0)
        sheet.goto(f"{(site / 'index.html').as_uri()}{hash}")
        sheet.clock.pause_at(1000)
        sheet.evaluate(UNPACKED)
        return sheet

    yield open
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", HEIGHTS)
def test_the_first_screen_has_the_sentence_the_ways_in_and_the_whole_race(opened, width, scheme):
    sheet = opened(width, color_scheme=scheme)
    assert sheet.evaluate(INSIDE)
    for part in [".lead", ".start", ".begin details", BUTTON, KEY, ".race .compared"]:
        for one in sheet.locator(part).all():
            box = one.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
            assert box["y"] >= 0 and box["y"] + box["height"] <= HEIGHTS[width], part
    assert sheet.locator(".race .compared").count() == 3
    assert re.fullmatch(r"Start \d+ min", sheet.locator(".start").inner_text())
    places = [sheet.locator(part).bounding_box() for part in PLACES]
    assert places[3]["y"] + places[3]["height"] <= places[0]["y"]
    assert places[2]["y"] - places[0]["y"] - places[0]["height"] < 60  # no empty space between them
    sheet.clock.run_for(8500)
    assert sheet.locator(RESULT).is_visible()
    assert [sheet.locator(part).bounding_box() for part in PLACES] == places  # nothing moves when the race ends
    SCREENSHOTS.mkdir(exist_ok=True)
    sheet.screenshot(path=SCREENSHOTS / f"front-{width}-{scheme}.png")
    assert sheet.evaluate(INSIDE) and sheet.faults == []


def test_the_race_plays_once_by_itself_and_then_shows_its_result_and_unfolds_its_controls(opened):
    sheet = opened()
    assert sheet.get_by_role("button", name="pause").is_visible()
    assert not sheet.locator(CONTROLS).is_visible() and not sheet.locator(RESULT).is_visible()
    sheet.clock.run_for(6000)
    assert 0 < sheet.evaluate(STEP) < 142 and sheet.locator(".race[data-state=running]").count()
    sheet.clock.run_for(2500)
    assert sheet.locator(RESULT).is_visible() and not sheet.locator(CONTROLS).is_visible()
    sheet.locator(CHANGE).press("Enter")
    assert sheet.locator(CONTROLS).is_visible() and sheet.locator(CHANGE).get_attribute("aria-expanded") == "true"
    last = sheet.evaluate(STEP)
    sheet.clock.run_for(10_000)
    assert sheet.evaluate(STEP) == last
    sheet.get_by_role("button", name="play again").click()
    sheet.clock.run_for(1000)
    assert 0 < sheet.evaluate(STEP) < last and sheet.faults == []


def test_nothing_travels_in_a_picture_without_fast_memory(opened):
    sheet = opened()
    for _ in range(20):
        sheet.clock.run_for(400)
        assert sheet.locator(STAGE).evaluate(TRAVELS) == []
    assert sheet.locator(RESULT).is_visible()


def test_pause_holds_the_race_where_it_is(opened):
    sheet = opened()
    sheet.clock.run_for(2000)
    sheet.locator(BUTTON).press("Enter")
    step = sheet.evaluate(STEP)
    sheet.clock.run_for(10_000)
    assert sheet.evaluate(STEP) == step
    sheet.locator(BUTTON).press("Enter")
    sheet.clock.run_for(1000)
    assert sheet.evaluate(STEP) > step


def test_a_reader_who_prefers_reduced_motion_sees_the_end_at_once(opened):
    sheet = opened(reduced_motion="reduce")
    assert sheet.locator(RESULT).is_visible() and sheet.locator(CHANGE).is_enabled()
    assert sheet.get_by_role("button", name="play again").is_visible()


def test_an_address_with_a_state_shows_that_state(opened):
    sheet = opened(hash="#tiling?step=30&N=256")
    sheet.clock.run_for(3000)
    assert sheet.evaluate(STEP) == 30 and sheet.locator(CONTROLS).is_visible()
    assert not sheet.locator(RESULT).is_visible()


@pytest.mark.parametrize(("field", "key"), [("N", "End"), ("causal", "Space"), ("step", "ArrowLeft")])
def test_the_result_is_visible_only_while_the_figure_shows_it(opened, field, key):
    sheet = opened(reduced_motion="reduce")
    sheet.locator(CHANGE).click()
    sheet.locator(f"{CONTROLS} [data-field={field}]").press(key)
    assert not sheet.locator(RESULT).is_visible()
    sheet.locator(BUTTON).click()
    sheet.clock.run_for(8500)
    assert sheet.locator(RESULT).is_visible() and sheet.evaluate(SETTINGS)


def test_both_buttons_of_the_race_say_whether_it_plays(opened):
    sheet = opened()
    sheet.locator(CHANGE).click()
    inner = sheet.locator(f"{CONTROLS} .clock button").nth(2)
    sheet.clock.run_for(1000)
    for button, expected in [
        (inner, "play"),
        (inner, "pause"),
        (sheet.locator(BUTTON), "play"),
        (sheet.locator(BUTTON), "pause"),
    ]:
        button.click()
        assert inner.inner_text() == sheet.locator(BUTTON).inner_text() == expected
    sheet.locator(f"{CONTROLS} [data-field=step]").press("ArrowRight")
    step = sheet.evaluate(STEP)
    sheet.clock.run_for(1000)
    assert sheet.evaluate(STEP) == step and sheet.locator(BUTTON).inner_text() == "play"


def test_without_scripts_the_result_is_there_and_no_button(opened):
    sheet = opened(java_script_enabled=False)
    assert sheet.locator(RESULT).is_visible() and sheet.locator(".race img").is_visible()
    caption = sheet.locator(".race figcaption").inner_text()  # it describes the end, as the result does
    assert all(it.replace("\xa0", " ") in caption for it in sheet.locator(f"{RESULT} b").all_inner_texts())
    assert not sheet.locator(BUTTON).is_visible() and not sheet.locator(".sidebar-search").is_visible()


def test_an_address_that_is_edited_ends_the_race(opened):
    sheet = opened()
    sheet.clock.run_for(1000)
    sheet.evaluate("location.hash = '#tiling?step=30'")
    sheet.locator(".race[data-state=held]").wait_for()
    sheet.clock.run_for(3000)
    assert sheet.evaluate(STEP) == 30 and sheet.locator(CONTROLS).is_visible()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_way_is_a_list_of_lessons_with_its_sum(opened, way):
    sheet = opened(390)
    summary = sheet.locator("summary", has_text=way.name)
    summary.click()
    links = sheet.locator(f".begin details:has(summary:text('{way.name}')) li a")
    pages = [link.get_attribute("href") for link in links.all()]
    assert pages == [f"lessons/{front.page_of(lesson)}" for lesson in way.lessons]
    assert links.first.is_visible() and sheet.evaluate(INSIDE)
    assert summary.inner_text().split("\n")[-1].endswith(duration(way.minutes))


@pytest.mark.parametrize("close", ["Escape", "outside"])
def test_an_open_way_pauses_the_race_and_closes_as_a_menu_does(opened, close):
    sheet = opened()
    way = sheet.locator(".begin details").first
    way.locator("summary").press("Enter")
    sheet.locator(".race[data-state=held]").wait_for()
    way.locator("a").first.focus()
    if close == "Escape":
        sheet.keyboard.press("Escape")
        assert way.locator("summary").evaluate("it => it === document.activeElement")
    else:
        sheet.locator(".lead").click(position={"x": 2, "y": 2})
    assert way.get_attribute("open") is None and sheet.faults == []
