"""Pages of the site by keyboard and by touch: the focus is visible, and targets are large enough."""

import pytest

from tests.browser.lab import SECONDS

PAGES = ["index.html", "figures.html", "lessons/06_tiling.html", "lessons/11_triton_forward.html"]
WIDTHS = [390, 1280, 1440]
EVERY = """const every = (root) => [...root.querySelectorAll('*')].flatMap(
    (it) => it.shadowRoot ? [it, ...every(it.shadowRoot)] : [it]);
const seen = (it) => it.checkVisibility({ visibilityProperty: true, opacityProperty: true });"""
# Targets below 24 × 24 px (WCAG 2.2, 2.5.8). Links in a text may be narrower; code and charts that scroll are exempt.
SMALL = f"""() => {{
    {EVERY}
    const targets = every(document).filter((it) => seen(it)
        && it.matches("a[href], button:enabled, summary, input, select, label[for], [role=button], [role=switch]"));
    return targets.map((it) => (it.closest('label') ?? it)).filter((it) => {{
        const {{ width, height, right, left }} = it.getBoundingClientRect();
        const isWord = it.matches('article a');
        return right > 0 && left < innerWidth && (height < 24 || (width < 24 && !isWord));
    }}).map((it) => it.outerHTML.slice(0, 120));
}}"""
# The element with the focus, and whether it is visible and has an outline. None at the end of the page.
FOCUSED = f"""() => {{
    {EVERY}
    let it = document.activeElement;
    while (it?.shadowRoot?.activeElement) it = it.shadowRoot.activeElement;
    if (!it || it === document.body) return null;
    const labels = it.matches('.sidebar-toggle') ? [...it.labels].filter(seen) : [it];
    const outlined = labels.some((one) => {{
        const {{ outlineStyle, outlineWidth }} = getComputedStyle(one);
        const {{ width, height, left, right }} = one.getBoundingClientRect();
        return seen(one) && outlineStyle !== 'none' && parseFloat(outlineWidth) > 0
            && width > 1 && height > 1 && right > 0 && left < innerWidth;
    }});
    return [it.outerHTML.slice(0, 120), outlined];
}}"""


@pytest.fixture
def opened(browser, site):
    """Return a function that opens a page of the site with reduced motion."""
    contexts = []

    def open(path, width, **options):
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        )
        contexts[-1].set_default_timeout(1000 * SECONDS)
        sheet = contexts[-1].new_page()
        sheet.goto(f"{site.as_uri()}/{path}")
        for host in sheet.locator("[data-figure]").all():
            host.locator("svg").first.wait_for()
        return sheet

    yield open
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_targets_have_24_pixels(opened, path, width):
    assert opened(path, width).evaluate(SMALL) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_tab_goes_through_the_page_and_the_focus_is_always_visible(opened, path, width):
    sheet = opened(path, width)
    stops = []
    while len(stops) < 500:
        sheet.keyboard.press("Tab")
        focused = sheet.evaluate(FOCUSED)
        if focused is None:
            break
        stops.append(focused)
    assert 20 < len(stops) < 500 and [what for what, is_seen in stops if not is_seen] == []


@pytest.mark.parametrize(("name", "drawer"), [("__navigation", ".sidebar-drawer"), ("__toc", ".toc-drawer")])
def test_the_drawers_of_a_narrow_window_open_from_the_keyboard(opened, name, drawer):
    sheet = opened("lessons/06_tiling.html", 390)
    link = sheet.locator(f"{drawer} a").last
    assert not link.is_visible()
    sheet.locator(f"#{name}").press("Space")
    link.wait_for()
    link.focus()
    assert link.evaluate("it => it === document.activeElement")
    sheet.locator(f"#{name}").press("Space")
    link.wait_for(state="hidden")


@pytest.mark.parametrize("width", [390, 1280])
def test_code_is_copied_by_keyboard_and_by_touch(opened, width):
    sheet = opened("lessons/06_tiling.html", width, has_touch=True, permissions=["clipboard-read", "clipboard-write"])
    codes = sheet.locator(".cell_input .highlight:visible")
    assert sheet.locator(".output.stream .copy").count() == 0
    for code, key in ((codes.nth(0), "Enter"), (codes.nth(1), None)):
        button = code.get_by_role("button", name="copy")
        button.press(key) if key else button.tap()
        code.get_by_role("button", name="copied").wait_for()
        assert sheet.evaluate("navigator.clipboard.readText()") == code.locator("pre").text_content().rstrip()
    assert sheet.get_by_role("button", name="copied").count() == 1


def test_code_is_selected_where_there_is_no_clipboard(opened):
    sheet = opened("lessons/06_tiling.html", 1280)
    sheet.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    code = sheet.locator(".cell_input .highlight:visible").first
    code.locator(".copy").click()
    code.get_by_role("button", name="selected").wait_for()
    assert sheet.evaluate("getSelection().toString()").strip() == code.locator("pre").text_content().strip()
