"""Every drawn figure on a page opened from a file, without network and kernel: each control by key, mouse and touch.

Stores a picture of each in tests/browser/screenshots, light and dark, wide and narrow: look at them.
"""

import importlib
import re

import pytest

from figures import page, schedules
from tests.browser.conftest import SCREENSHOTS, WIDTHS


def shown(sheet):
    """Return the drawing and its words."""
    return sheet.locator("svg").first.inner_html(), sheet.locator(".words").inner_text()


def move(control):
    """Move a control by a key."""
    control.focus()
    kind = control.evaluate("one => one.type")
    end = control.evaluate("one => one.value === one.max || one.selectedIndex === one.length - 1")
    keys = {"checkbox": "Space", "range": "Home" if end else "End", "select-one": "ArrowUp" if end else "ArrowDown"}
    control.press(keys[kind])


FITS = "document.documentElement.scrollWidth <= innerWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_and_nothing_is_small(sheet, file, width, scheme):
    figure = sheet(file, WIDTHS[width], color_scheme=scheme)
    SCREENSHOTS.mkdir(exist_ok=True)
    figure.screenshot(path=SCREENSHOTS / f"{file.stem}_{WIDTHS[width]}_{scheme}.png", full_page=True)
    assert figure.faults == []
    assert figure.evaluate(FITS), "the page is wider than the window"
    cut, small, covered = figure.locator("svg").first.evaluate(TEXTS)
    assert not cut, f"letters outside the drawing: {cut}"
    assert not small, f"letters below 12 pixels: {small}"
    assert not covered, f"letters over letters: {covered}"


@pytest.mark.parametrize("file", ["tiling"], indirect=True)
def test_what_is_cut_small_or_covered_is_found(sheet, file):
    drawing = sheet(file).locator("svg").first
    assert drawing.evaluate(TEXTS) == [[], [], []]
    for wrong, expected in WRONG.items():
        drawing.evaluate("(svg, wrong) => svg.insertAdjacentHTML('beforeend', wrong)", wrong)
        assert [bool(faults) for faults in drawing.evaluate(TEXTS)] == expected, wrong
        drawing.evaluate("svg => svg.lastChild.remove()")


# {markup that is added to a drawing: is something cut, small, covered?}
WRONG = {
    '<text x="-99" y="400">far left</text>': [True, False, False],
    '<rect x="-20" y="400" width="15" height="9"/>': [True, False, False],
    '<text x="1130" y="250" font-size="9">small</text>': [False, True, False],
    '<text x="0" y="9">over a title</text>': [False, False, True],
    '<rect x="0" y="0" width="300" height="30"/>': [False, False, True],
    '<rect x="0" y="0" width="300" height="30" fill="none" stroke="black"/>': [False, False, False],
}

ENDS = {"checkbox": ["Space"], "range": ["Home", "End"], "select-one": ["Home", "End"]}


@pytest.mark.parametrize("width", WIDTHS)
def test_every_control_moves_the_picture_by_key(sheet, file, width):
    """Keys move a control to both ends. There, too, nothing is cut, small or covered."""
    figure = sheet(file, WIDTHS[width], reduced_motion="reduce")
    for control in figure.locator("[data-field]").all():
        figure.get_by_role("button", name="reset").click()
        field, states = control.get_attribute("data-field"), [shown(figure)]
        for key in ENDS[control.evaluate("one => one.type")]:
            control.press(key)
            assert figure.locator("svg").first.evaluate(TEXTS) == [[], [], []], (field, key)
            states.append(shown(figure))
        assert any(drawing != states[0][0] and words != states[0][1] for drawing, words in states[1:]), field
        assert figure.locator(".message").inner_text() == ""
    assert figure.faults == []


@pytest.mark.parametrize("gesture", ["click", "tap"])
def test_every_control_moves_the_picture_by_mouse_and_touch(sheet, file, gesture):
    figure = sheet(file, WIDTHS["narrow"], has_touch=True)

    def press(mark, **where):
        getattr(mark, gesture)(**where)

    for control in figure.locator("[data-field]").all():
        press(figure.get_by_role("button", name="reset"))
        before, box, drawings = shown(figure)[0], control.bounding_box(), []
        for end in (4, box["width"] - 4):  # of a slider
            if (kind := control.get_attribute("type")) == "range":
                press(control, position={"x": end, "y": box["height"] / 2})
                drawings.append(shown(figure)[0])
        if kind == "checkbox":
            press(control)
        elif kind is None:  # the list of a menu is drawn by the system
            control.select_option(index=0 if control.evaluate("one => one.selectedIndex") else 1)
        assert {*drawings, shown(figure)[0]} != {before}, control.get_attribute("data-field")
    assert figure.faults == []


@pytest.mark.parametrize("file", ["first_triton_kernel"], indirect=True)
def test_a_control_without_effect_is_off_and_says_why(sheet, file):
    figure = sheet(file)
    block = figure.locator("[data-field=block]")
    for kernel, off in (("softmax", True), ("online softmax", False), ("add", False)):
        figure.locator("[data-field=kernel]").select_option(kernel)
        assert block.is_disabled() == off
        assert ("a row is one block" in figure.locator("label", has=block).inner_text()) == off
    assert figure.faults == []


def test_a_mouse_reaches_every_value(sheet, file):
    figure = sheet(file)
    for slider in figure.locator("input[type=range]").all():
        values = slider.evaluate("one => one.max - one.min + 1")
        assert slider.bounding_box()["width"] - 16 >= 2 * values, slider.get_attribute("data-field")


def test_the_clock_steps_and_goes_back(sheet, file):
    figure = sheet(file)
    if not figure.locator(".clock").count():
        pytest.skip("no clock")
    at = figure.locator(".clock input")
    figure.get_by_role("button", name="back to the beginning").click()
    assert at.input_value() == "0"
    states = [shown(figure)]
    for _ in range(3):
        figure.get_by_role("button", name="one step on").click()
        states.append(shown(figure))
    assert len({words for _, words in states}) == 4
    figure.get_by_role("button", name="one step back").click()
    assert shown(figure)[1] == states[2][1]
    figure.get_by_role("button", name="reset").click()
    assert figure.faults == []


def test_the_clock_plays_at_each_speed_and_pauses(sheet, file):
    """The test sets the clock of the page, so it waits for nothing."""
    figure = sheet(file)
    if not figure.locator(".clock").count():
        pytest.skip("no clock")
    figure.clock.install(time=0)
    figure.clock.pause_at(1)
    at, steps = figure.locator(".clock input"), []
    for speed in figure.get_by_label("speed").locator("option").all_inner_texts():
        figure.get_by_role("button", name="back to the beginning").click()
        figure.get_by_label("speed").select_option(speed)
        figure.get_by_role("button", name="play").click()
        figure.clock.run_for(2100)
        steps.append(int(at.input_value()))
    slow, normal, fast, fastest = steps
    assert 0 < slow < normal < fast <= fastest
    figure.get_by_role("button", name="back to the beginning").click()
    figure.get_by_label("speed").select_option("normal")
    figure.get_by_role("button", name="play").click()
    figure.clock.run_for(15_000)
    assert at.input_value() == at.get_attribute("max")
    figure.get_by_role("button", name="back to the beginning").click()
    figure.get_by_label("speed").select_option("slow")
    figure.get_by_role("button", name="play").click()
    figure.clock.run_for(0)
    figure.get_by_role("button", name="pause").click()
    stopped = at.input_value()
    figure.clock.run_for(60_000)
    assert at.input_value() == stopped == "1"
    assert figure.faults == []


@pytest.mark.parametrize("file", ["tiling", "standard_attention", "online_softmax"], indirect=True)
def test_a_control_that_changes_keeps_the_moment(sheet, file):
    """The end stays the end, and a control that is moved and set back leads to the same step."""
    figure = sheet(file)
    at = figure.locator(".clock input")
    control = figure.locator("select[data-field], input[data-field]:not(.clock input)").first
    at.press("End")
    move(control)
    assert at.input_value() == at.get_attribute("max")
    figure.get_by_role("button", name="reset").click()
    before = at.input_value(), shown(figure)[1], control.input_value()
    fraction = int(at.input_value()) / int(at.get_attribute("max"))
    move(control)
    assert shown(figure)[1] != before[1] and (int(at.input_value()) > 0) == (fraction > 0)
    control.evaluate(SET, before[2])
    assert (at.input_value(), shown(figure)[1], control.input_value()) == before


# Set a control as a user does: with the events of the page.
SET = """(one, value) => {
    if (one.type === 'checkbox') return one.click();
    one.value = value;
    one.dispatchEvent(new Event(one.type === 'range' ? 'input' : 'change'));
}"""


def test_a_mark_answers_mouse_touch_and_arrows(sheet, file):
    figure = sheet(file, has_touch=True)
    tip = figure.locator(".tip")
    mark = figure.locator("svg [data-tip]:not([role=slider])").nth(3)
    name = mark.get_attribute("aria-label")
    mark.hover(force=True)
    assert tip.is_visible() and tip.inner_text()
    figure.mouse.move(1, 1)
    assert not tip.is_visible()
    mark.tap(force=True)
    assert tip.is_visible() and name.startswith(tip.locator("b").inner_text()[:5])
    figure.locator("svg").first.focus()
    labels = set()
    for key in ["Enter", *["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"] * 2]:
        figure.keyboard.press(key)
        labels.add(
            figure.evaluate(
                "document.querySelector('[data-figure]').shadowRoot.activeElement.getAttribute('aria-label')"
            )
        )
    assert len(labels) > 2
    figure.keyboard.press("Escape")
    assert not tip.is_visible()


# {figure: [(mark, pixels to drag it, fields that change, key that does the same, None if the mark is no handle)]}
DRAGS = {
    "block_size": [
        ("[aria-label*='pull the line']", (60, 0), {"step"}, None),
        ("[role=slider]", (-60, 0), {"step"}, "ArrowLeft"),
    ],
    "crossover": [
        ("[role=slider]", (60, 0), {"step"}, "ArrowRight"),
        ("[aria-label*='pull the line'] >> nth=2", (-30, 0), {"step"}, None),
    ],
    "decoding": [("[role=slider]", (200, 0), {"step"}, "ArrowRight")],
    "eight_bits": [("[role=slider]", (0, -30), {"outlier"}, "ArrowUp")],
    "first_triton_kernel": [("[data-drag] >> nth=1", (0, 0), {"step"}, None)],
    "io_complexity": [
        ("[aria-label*='corner']", (-80, -80), {"step"}, None),
        ("[role=slider]", (-100, 0), {"step"}, "ArrowLeft"),
    ],
    "kv_cache": [("[role=slider]", (120, 0), {"page"}, "ArrowRight")],
    "layouts": [
        ("[role=slider]", (60, 0), {"step"}, "ArrowRight"),
        ("[data-drag][aria-label^='thread 22'] >> nth=0", (0, 0), {"step"}, None),
    ],
    "masks": [("[role=slider]", (-60, 0), {"size"}, "ArrowLeft")],
    "memory_hierarchy": [
        ("[role=slider]", (100, 0), {"zoom"}, "ArrowRight"),
        ("[data-drag][aria-label^='HBM2: '] >> nth=0", (0, 100), {"zoom"}, None),
        ("[data-drag][aria-label^='L2 cache'] >> nth=1", (0, 0), {"zoom"}, None),
    ],
    "next_machine": [
        ("[role=slider]", (200, 0), {"share"}, "ArrowRight"),
        ("[data-drag][aria-label^='share 5/16']", (0, 0), {"share"}, None),
    ],
    "online_softmax": [("[role=slider]", (0, 40), {"lift"}, "ArrowDown")],
    "pipeline": [
        ("[role=slider]", (100, 0), {"step"}, "ArrowRight"),
        ("[aria-label^='time']", (-100, 0), {"step"}, None),
    ],
    "recomputation": [
        ("[role=slider][aria-label*=P]", (0, -60), {"step"}, "ArrowUp"),
        ("[role=slider][aria-label*=Br]", (0, 60), {"Br"}, "ArrowDown"),
        ("[role=slider][aria-label*=Bc]", (-30, 0), {"Bc"}, "ArrowLeft"),
    ],
    "ring": [("[role=slider]", (-60, -60), {"step"}, "ArrowRight")],
    "roofline": [("[role=slider]", (90, 0), {"step"}, "ArrowRight")],
    "safe_softmax": [
        ("[data-drag][aria-label^='score 100 in float32']", (-300, 0), {"shift"}, None),
        ("[data-drag][aria-label^='score 100 in float16']", (-300, 0), {"shift", "dtype"}, None),
        ("[role=slider]", (60, 0), {"shift"}, "ArrowRight"),
    ],
    "schedules": [
        ("[role=slider][aria-label*=clock]", (-100, 0), {"step"}, "ArrowLeft"),
        ("[role=slider][aria-label*=programs]", (0, 25), {"programs"}, "ArrowDown"),
        ("[aria-label^='time, in blocks']", (-100, 0), {"step"}, None),
        ("[data-drag][aria-label^='longest first'] >> nth=0", (0, 0), {"order"}, None),
    ],
    "standard_attention": [
        ("[role=slider]", (200, 0), {"step"}, "ArrowRight"),
        ("[data-drag] >> nth=1", (100, 0), {"step"}, None),
    ],
    "tiling": [
        ("[role=slider][aria-label*=Br]", (0, 60), {"Br"}, "ArrowDown"),
        ("[role=slider][aria-label*=Bc]", (-30, 0), {"Bc"}, "ArrowLeft"),
        ("[data-drag] >> nth=0", (0, -30), {"Br"}, None),
    ],
}
BOTH_WAYS = {"ArrowRight": 30, "ArrowLeft": -30}  # key: pixels that do the same
FIELDS = "all => Object.fromEntries(all.map(one => [one.dataset.field, one.value]))"


def middle(mark):
    """Return the middle of a mark, (x, y) in the window."""
    box = mark.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def pull(page, mark, across, down):
    """Drag a mark by its middle."""
    x, y = middle(mark)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + across, y + down, steps=8)
    page.mouse.up()


def assert_drags_and_keys(page, figure, drags, place="svg"):
    """Assert that a drag of each mark changes its fields, and that its key, if it has one, leads to the same words."""
    reset = figure.get_by_role("button", name="reset")
    for selector, (across, down), fields, key in drags:
        reset.click()
        mark = figure.locator(f"{place} {selector}")
        before = figure.locator("[data-field]").evaluate_all(FIELDS)
        pull(page, mark, across, down)
        now, dragged = figure.locator("[data-field]").evaluate_all(FIELDS), shown(figure)
        changed = {field for field in now if now[field] != before[field]}
        assert fields <= changed <= fields | {"step"}, selector  # the clock keeps its moment, whose number may change
        if key is None:
            continue
        box = mark.bounding_box()
        assert min(box["width"], box["height"]) >= 24, f"{selector}: {box}"
        reset.click()
        words = []
        while shown(figure)[1] != dragged[1] and words[-1:] != [shown(figure)[1]]:
            words.append(shown(figure)[1])
            mark.press(key)
        assert shown(figure)[1] == dragged[1], f"{selector}: {key} does not lead there"
        (field,) = fields
        assert figure.locator(f"[data-field={field}]").evaluate_all(FIELDS)[field] == now[field]
        assert figure.locator(".message").inner_text() == ""


def test_every_mark_can_be_dragged_and_keys_do_the_same(sheet, file):
    page = sheet(file, reduced_motion="reduce")  # no mark moves while the test looks for it
    drags = DRAGS.get(file.stem, [])
    assert bool(drags) == bool(page.locator("svg [data-drag]").count()), "each drag has a test"
    assert page.locator("svg [role=slider]").count() == sum(key is not None for *_, key in drags)
    assert_drags_and_keys(page, page.locator("[data-figure]"), drags)
    assert page.faults == []


def test_a_number_in_the_words_is_pulled_and_keys_do_the_same(sheet, file):
    module = importlib.import_module(f"figures.{file.stem}")
    fields = re.findall(r"\]\((\w+)\)", getattr(module.describe(module.State()), "template", ""))
    if not fields:
        pytest.skip("no numbers to pull")
    page = sheet(file, reduced_motion="reduce")
    numbers = page.locator(".words [role=slider]").all()
    drags = []
    for at, (number, field) in enumerate(zip(numbers, fields, strict=True)):
        value, last = (number.get_attribute(f"aria-value{which}") for which in ("now", "max"))
        ways = {"ArrowRight": 30} if value == "0" else {"ArrowLeft": -30} if value == last else BOTH_WAYS
        drags += [(f"[role=slider] >> nth={at}", (across, 0), {field}, key) for key, across in ways.items()]
    assert_drags_and_keys(page, page.locator("[data-figure]"), drags, ".words")
    assert page.faults == []


@pytest.mark.parametrize("file", ["memory_hierarchy"], indirect=True)
def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl(sheet, file):
    page = sheet(file, reduced_motion="reduce")
    page.set_viewport_size({"width": 1280, "height": 500})  # lower than the page
    page.locator("svg [role=slider]").hover(force=True)
    zoom = page.locator("[data-field=zoom]")
    before = zoom.input_value()
    page.mouse.wheel(0, 40)
    page.wait_for_function("() => scrollY === 40")
    assert zoom.input_value() == before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -40)
    page.wait_for_function(f"one => one.value === '{int(before) + 2}'", arg=zoom.element_handle())
    assert page.evaluate("scrollY") == 40


@pytest.mark.parametrize("file", ["first_triton_kernel", "recomputation", "ring", "tiling"], indirect=True)
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_what_moves_travels_when_the_clock_goes_on(sheet, file, motion):
    figure = sheet(file, reduced_motion=motion)
    figure.get_by_role("button", name="back to the beginning").click()
    travelled = []
    for _ in range(3):
        figure.get_by_role("button", name="one step on").click()
        travelled += figure.locator("svg").first.evaluate(TRAVELS)
    assert set(travelled) == ({200} if motion == "no-preference" else set())


# The ms that each moving mark takes.
TRAVELS = """svg => svg.getAnimations({ subtree: true })
    .filter(({ transitionProperty }) => transitionProperty === 'transform')
    .map(({ effect }) => effect.getTiming().duration)"""


def test_a_link_opens_the_state_that_it_was_taken_from(sheet, file):
    figure = sheet(file)
    field = figure.locator("[data-field]").first
    field.focus()
    field.press("Home" if field.evaluate("one => one.type") == "range" else "Space")
    figure.get_by_role("button", name="copy a link to this state").click()
    figure.wait_for_function("() => location.hash.length > 1")
    link = figure.evaluate("location.hash")
    assert shown(sheet(file, hash=link))[1] == shown(figure)[1]


# Callbacks of requestAnimationFrame wait for go().
WAIT = """const waiting = [];
globalThis.requestAnimationFrame = then => waiting.push(then);
globalThis.go = () => waiting.splice(0).forEach(then => then(performance.now()));
"""


@pytest.mark.parametrize("file", ["ring"], indirect=True)
def test_a_change_waits_for_numbers_that_come_after_the_first_picture(sheet, file):
    figure = sheet(file)
    figure.add_init_script(WAIT)
    figure.reload()
    before, control = shown(figure), figure.locator("[data-field]:not(.clock input)").first
    move(control)
    figure.set_viewport_size({"width": 700, "height": 900})
    assert figure.locator(".busy").count() == 1 and shown(figure)[1] == before[1]
    figure.evaluate("go()")
    figure.locator(".stage:not(.busy)").wait_for()
    assert shown(figure)[1] != before[1] and figure.faults == []


@pytest.mark.parametrize("file", ["ring"], indirect=True)
def test_a_browser_that_cannot_unpack_numbers_says_so(sheet, file):
    figure = sheet(file)
    figure.add_init_script("delete globalThis.DecompressionStream")
    figure.reload()
    before, control = shown(figure), figure.locator("[data-field]:not(.clock input)").first
    move(control)
    figure.locator(".message", has_text=re.compile("This browser cannot unpack the numbers for .+ = ")).wait_for()
    assert shown(figure) == before and figure.faults == []
    figure.get_by_role("button", name="one step on").click()
    assert shown(figure)[1] != before[1] and figure.locator(".message").inner_text() == ""


@pytest.mark.parametrize("file", ["io_complexity"], indirect=True)
def test_a_link_to_numbers_that_are_not_there_says_so(sheet, file):
    figure = sheet(file, hash="#io_complexity?batch=64&heads=64")
    message = figure.locator(".message").inner_text()
    assert message.startswith("This page has no numbers for batch = 64 with heads = 64.")
    assert shown(figure) == shown(sheet(file))


@pytest.mark.parametrize("width", WIDTHS)
def test_larger_type_is_larger_and_nothing_is_lost(sheet, file, width):
    figure = sheet(file, WIDTHS[width])
    parts = [figure.locator("svg text").first, figure.locator(".words")]
    size = "one => parseFloat(getComputedStyle(one).fontSize) * (one.getScreenCTM?.().a ?? 1)"
    before = [part.evaluate(size) for part in parts]
    for _ in range(4):
        figure.get_by_role("button", name="larger type").click()
        assert figure.locator("svg").first.evaluate(TEXTS) == [[], [], []]
        assert figure.evaluate(FITS)
    assert [part.evaluate(size) for part in parts] == pytest.approx([2 * one for one in before], rel=0.1)


@pytest.mark.parametrize("file", ["ring"], indirect=True)
def test_a_finger_moves_a_picture_that_is_wider_than_the_page(sheet, file):
    figure = sheet(file, WIDTHS["narrow"], has_touch=True)
    for _ in range(3):
        figure.get_by_role("button", name="larger type").click()
    hand = figure.context.new_cdp_session(figure)
    box = figure.locator(".stage").bounding_box()
    from_right = [{"x": x, "y": box["y"] + 60} for x in range(330, 80, -25)]
    for kind, points in (("Start", from_right[:1]), *(("Move", [at]) for at in from_right[1:]), ("End", [])):
        hand.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    stage = "document.querySelector('[data-figure]').shadowRoot.querySelector('.stage')"
    figure.wait_for_function(f"() => {stage}.scrollLeft > 0")


def test_no_width_cuts_a_letter(sheet, file):
    figure = sheet(file)
    for width in (375, 440, 560, 680, 800, 840, 880, 960, 1040, 2560):
        figure.set_viewport_size({"width": width, "height": 900})
        figure.wait_for_function(REDRAWN)
        assert figure.locator("svg").first.evaluate(TEXTS) == [[], [], []], width
        assert figure.evaluate(FITS), width


def test_everything_has_a_name(sheet, file):
    figure = sheet(file)
    names = figure.locator("button, input, select, svg[role]").evaluate_all(
        "all => all.map(one => one.ariaLabel || one.labels?.[0]?.textContent || one.textContent)"
    )
    assert all(names)
    assert figure.locator("svg").first.get_attribute("aria-label") == figure.locator(".words").inner_text()
    assert figure.locator(".words").get_attribute("aria-live") == "polite"


def test_without_scripts_picture_and_words_are_there(sheet, file):
    figure = sheet(file, java_script_enabled=False)
    assert figure.locator("figure img").get_attribute("alt") == figure.locator("figcaption").inner_text()
    assert figure.locator("figure img").bounding_box()["height"] > 100


def test_where_steps_have_times_another_control_keeps_the_time(sheet, tmp_path):
    path = tmp_path / "schedules.html"
    path.write_text(page.page(schedules), encoding="utf-8")
    figure, first = sheet(path, reduced_motion="reduce"), schedules.State()
    for programs in (5, 9):
        figure.locator("[data-field=programs]").press("Home" if programs == 5 else "End")
        last = schedules.end(schedules.run(first.order, first.mask, programs))
        assert figure.locator(".count").inner_text() == f"time, in blocks {min(first.step, last)} of {last}"


@pytest.mark.parametrize("file", ["io_complexity"], indirect=True)
def test_numbers_that_are_not_there_are_refused_in_words(sheet, file):
    figure = sheet(file)
    fields = figure.locator("input[type=range][data-field]:not(.clock input), input[type=checkbox]")
    top = figure.locator("svg").first.bounding_box()["y"]
    for at in range(fields.count()):
        fields.nth(at).focus()
        fields.nth(at).press("Home" if fields.nth(at).get_attribute("type") == "range" else "Space")
        if message := figure.locator(".message").inner_text():
            assert re.match(r"This page has no numbers for .+ = .+ with .+ = .+\. Set one of them back", message)
            assert figure.locator("svg").first.bounding_box()["y"] == top
            assert figure.faults == []
            return
    pytest.fail("the page has all numbers")


# Whether the drawing is as wide as its place allows.
REDRAWN = """() => {
    const root = document.querySelector('[data-figure]').shadowRoot;
    const wanted = Math.max(Math.min(root.querySelector('.stage').clientWidth - 16, 1160), 340);
    return root.querySelector('svg').viewBox.baseVal.width === wanted;
}"""

# Three lists: texts and marks outside the drawing (a dot to drag may reach into the margin), texts smaller than 12
# pixels, and texts over another text or under a mark.
TEXTS = """svg => {
    const whole = svg.getBoundingClientRect();
    const scale = whole.width / svg.viewBox.baseVal.width;
    const boxed = all => all.map(one => [one, one.getBoundingClientRect()]);
    const boxes = boxed([...svg.querySelectorAll('text')].filter(one => one.textContent.trim()));
    const filled = ({ fill, fillOpacity }) => !/^(none|url|rgba\\(0, 0, 0, 0\\))/.test(fill) && fillOpacity >= 0.5;
    const marks = boxed([...svg.querySelectorAll(':is(rect, circle, path):not(defs *)')]
        .filter(one => filled(getComputedStyle(one)))).filter(([, box]) => box.width * box.height);
    const beyond = (box, edge) => box.left < whole.left - edge || box.right > whole.right + edge
        || box.top < whole.top - edge || box.bottom > whole.bottom + edge;
    const cut = boxes.filter(([one, box]) => beyond(box, 1.5 * scale) || one.parentNode.localName === 'rect')
        .concat(marks.filter(([, box]) => beyond(box, 8 * scale)));
    const small = boxes.filter(([one]) => parseFloat(getComputedStyle(one).fontSize) * scale < 11.9);
    const label = one => one.textContent || one.closest('[data-tip]')?.getAttribute('aria-label') || one.outerHTML;
    const over = (a, b, high) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > high;
    const after = (one, other) => one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
    const upright = boxes.filter(([one]) => !one.hasAttribute('transform'));
    const covered = upright.flatMap(([one, a], at) => [
        ...upright.slice(at + 1).filter(([, b]) => over(a, b, 5)),
        ...marks.filter(([other, b]) => over(a, b, 4) && after(one, other)),
    ].map(([other]) => `${one.textContent} | ${label(other)}`));
    return [cut.map(([one]) => label(one)), small.map(([one]) => label(one)), covered];
}"""
