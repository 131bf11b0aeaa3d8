"""The panels, which are the thumbnails of figures and lessons, cut no word of the stills from which they are taken."""

import importlib

import pytest

from docs import panels
from figures import page
from figures.figure import key, numbers
from tests.tools.drawn import WIDTH

WORDS = """() => {
    const { shadowRoot } = document.querySelector("[data-figure]");
    const { left, top } = shadowRoot.querySelector(".stage").getBoundingClientRect();
    const boxOf = it => it.getBoundingClientRect();
    return [...shadowRoot.querySelectorAll("svg text")].filter(it => it.textContent).map(it => [it.textContent,
        ...[boxOf(it).left - left, boxOf(it).top - top, boxOf(it).right - left, boxOf(it).bottom - top]]);
}"""
SLACK = 3  # pixels of a still by which a box may be cut: a line of text is higher than its letters


@pytest.fixture(scope="module")
def words(browser):
    """Return a function that returns the words of a figure's still, each with its box."""
    sheet = browser.new_page(viewport={"width": WIDTH + 16, "height": 1200}, reduced_motion="reduce")

    def of(name):
        figure = importlib.import_module(f"figures.{name}")
        state = figure.State()
        fragment = page.fragment(figure, state, {key(figure, state): numbers(figure, state)}, page=True)
        sheet.set_content(f'<meta charset="utf-8"><body style="margin: 0">{fragment}')
        sheet.locator("[data-figure] svg text").first.wait_for()
        return [(text, [2 * length for length in box]) for text, *box in sheet.evaluate(WORDS)]

    yield of
    sheet.close()


@pytest.mark.parametrize(("name", "figure", "box"), panels.boxes(), ids=[name for name, *_ in panels.boxes()])
def test_a_panel_cuts_no_word(words, name, figure, box):
    left, top, right, bottom = box
    for text, (a, b, c, d) in words(figure):
        outside = c <= left or a >= right or d <= top or b >= bottom
        inside = a >= left - SLACK and b >= top - SLACK and c <= right + SLACK and d <= bottom + SLACK
        assert outside or inside, text
