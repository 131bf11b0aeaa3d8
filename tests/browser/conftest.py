"""One browser and one JupyterLab for all browser tests, and a picture of the page of each test that fails."""

from pathlib import Path

import pytest

from tests.browser.lab import Lab, chromium

SCREENSHOTS = Path(__file__).parent / "screenshots"


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(browser):
    with Lab(browser) as lab:
        yield lab


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and "lab" in item.funcargs:
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{item.name}.png"
        item.funcargs["lab"].page.screenshot(path=path)
        report.sections.append(("screenshot", str(path)))
    return report
