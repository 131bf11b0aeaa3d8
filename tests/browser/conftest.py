"""One browser, one JupyterLab, a page of each figure, and a screenshot for each test that fails in JupyterLab."""

import importlib
from pathlib import Path

import pytest

from figures import page
from tests.browser import website
from tests.browser.lab import SECONDS, Lab, chromium

SCREENSHOTS = Path(__file__).parent / "screenshots"
NAMES = page.drawn()
WIDTHS = {"wide": 1280, "narrow": 390}
UNPACKED = "Promise.all(Object.values(globalThis.flashlab?.figures ?? {}).flat().map(({ coming }) => coming))"


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(browser):
    with Lab(browser) as lab:
        yield lab


@pytest.fixture(scope="session", params=NAMES)
def file(request, tmp_path_factory):
    """Return the path of a figure's page, which has the numbers of all states or, if these are too many, of some."""
    path = tmp_path_factory.mktemp("pages") / f"{request.param}.html"
    path.write_text(page.page(importlib.import_module(f"figures.{request.param}")), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Return the folder of the site."""
    return website.site(tmp_path_factory.mktemp("web") / "site")


@pytest.fixture
def sheet(browser):
    """Return a function that opens a page; ``faults`` of the page lists its errors and its requests to other places."""
    contexts = []

    def open(path, width=1280, hash="", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(1000 * SECONDS)
        sheet = context.new_page()
        sheet.faults = []
        sheet.on("pageerror", lambda error: sheet.faults.append(str(error)))
        sheet.on("console", lambda line: sheet.faults.append(line.text) if line.type == "error" else None)
        sheet.on("request", lambda request: sheet.faults.append(request.url) if not ours(request.url) else None)
        sheet.goto(path.as_uri() + hash)
        if options.get("java_script_enabled", True):
            sheet.evaluate(UNPACKED)
        return sheet

    def ours(url):
        return url.startswith(("file:", "data:", "blob:"))

    yield open
    for context in contexts:
        context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and "lab" in item.funcargs:
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{item.name}.png"
        item.funcargs["lab"].page.screenshot(path=path)
        report.sections.append(("screenshot", str(path)))
    return report
