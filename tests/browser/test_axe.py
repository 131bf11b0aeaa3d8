"""What axe (Deque's checker, an npm package) finds on the page of every figure: nothing serious, light or dark."""

import pytest

from tests.browser.lab import ROOT
from tests.browser.test_page import WIDTHS, file, sheet  # noqa: F401  fixtures

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
FOUND = """async () => (await axe.run()).violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join('; ')}`)"""


@pytest.mark.skipif(not AXE.exists(), reason="needs `npm install --no-save axe-core@4.14.1`, run in the project's root")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious(sheet, file, width, scheme):  # noqa: F811
    figure = sheet(file, WIDTHS[width], color_scheme=scheme)
    figure.evaluate(AXE.read_text(encoding="utf-8"))
    assert figure.evaluate(FOUND) == []
