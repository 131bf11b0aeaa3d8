"""axe, Deque's accessibility checker (an npm package), finds nothing serious on any figure's page, light or dark."""

import pytest

from tests.browser.conftest import WIDTHS
from tests.browser.lab import ROOT

AXE = ROOT / ".venv" / "node_modules" / "axe-core" / "axe.min.js"
FOUND = """async () => (await axe.run()).violations.filter(({ impact }) => ['serious', 'critical'].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join('; ')}`)"""


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: `make test-browser` installs it if npm is there")
@pytest.mark.parametrize("width, scheme", [("wide", "light"), ("narrow", "dark")])
def test_axe_finds_nothing_serious(sheet, file, width, scheme):
    figure = sheet(file, WIDTHS[width], color_scheme=scheme)
    figure.evaluate(AXE.read_text(encoding="utf-8"))
    assert figure.evaluate(FOUND) == []
