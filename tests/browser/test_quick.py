"""Short browser tests for every push: two controls of each figure, three lessons, and two figures in JupyterLab.

`make test-browser` has every control, mouse and touch, all pages, and all figures in JupyterLab.
"""

import pytest

from docs import drawn
from tests.browser.conftest import WIDTHS
from tests.browser.test_in_view import assert_whole, open_figures
from tests.browser.test_in_view import shown as scrolled_to
from tests.browser.test_page import DRAGS, FITS, assert_drags_and_keys, move, shown

FIGURES = [f"figures/{name}.html" for name in drawn.names()]
# Lessons with: two figures and charts; code, and menus in the figure; tables.
LESSONS = ["01_memory_hierarchy", "10_first_triton_kernel", "26_linear_attention"]
CONTROL = {"wide": 0, "narrow": -1}  # index of the control to move; the last one is the clock if there is one


@pytest.mark.parametrize("path", FIGURES + [f"lessons/{name}.html" for name in LESSONS])
def test_a_page_opens_fits_and_answers_the_keyboard(sheet, site, path):
    for width, which in CONTROL.items():
        page = sheet(site / path, WIDTHS[width])
        assert page.faults == []
        figures = page.locator("[data-figure]").all()
        assert figures
        for figure in figures:
            drawing, words = shown(figure)
            control = figure.locator("[data-field]").nth(which)
            move(control)
            now = shown(figure)
            assert now[0] != drawing and now[1] != words, control.get_attribute("data-field")
        assert page.evaluate(FITS), f"wider than a window of {WIDTHS[width]} pixels"
        assert page.faults == []


@pytest.mark.parametrize("name", ["tiling", "crossover"])
def test_drags_and_keys_do_the_same(sheet, site, name):
    page = sheet(site / f"figures/{name}.html", reduced_motion="reduce")
    assert_drags_and_keys(page, page.locator("[data-figure]"), DRAGS[name])
    assert page.faults == []


def test_figures_are_whole_on_the_screen_in_jupyterlab(lab):
    names = ["tiling", "ring"]  # three runs side by side
    open_figures(lab, names)
    for name in names:
        assert_whole(lab, scrolled_to(lab, names, name))
