"""Code on the site is copied by keyboard and by touch."""

import pytest

from tests.browser.lab import SECONDS


@pytest.fixture
def opened(browser, site):
    """A function that opens a page of the site; figures stand still."""
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
