"""Measure how fast figures answer a key, pages show a picture and notebooks run: `make bench`. Not a test."""

import datetime
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

from figures import page
from tests.browser import website
from tests.browser.lab import ROOT, Lab, chromium, figures
from tests.browser.test_drawn import CELL, RUN
from tests.browser.test_page import DRAGS, middle
from tests.browser.test_site import FIGURES, LESSONS, OTHERS

PRESSES = 40
QUICK, NEW = (16, 33), 150  # limits in ms: median and 95th percentile if the page has the numbers; else one for both
VISITS, FIRST = 5, 1000  # visits of each page of the site; the limit in ms for its first picture
MEGABYTES = {"the site": 25, "its largest figure": 3}

# The ms from each key press, or move of a drag, to the painted picture that answers it.
WATCH = """host => {
    window.answers = [];
    let input = null;
    for (const kind of ['keydown', 'pointermove'])
        host.addEventListener(kind, () => { input = performance.now(); }, true);
    host.addEventListener('flashlab-shown', () => {
        const pressed = input;
        input = null;
        if (pressed === null) return;
        const drawn = performance.now();
        requestAnimationFrame(() => {
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => answers.push([drawn - pressed, performance.now() - pressed]);
            port2.postMessage(0);
        });
    });
}"""

# A promise of the ms from the start of the visit until a figure, or a page without figures, is on the screen.
PAINTED = """
globalThis.painted = new Promise((resolve) => {
  const after = () => requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
  document.addEventListener("flashlab-shown", after, { capture: true, once: true });
  addEventListener("load", () => document.querySelector("[data-figure]") ?? after());
});
"""


def main():
    print(f"{datetime.date.today()}, {platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with chromium() as browser, Lab(browser) as lab, tempfile.TemporaryDirectory() as folder:
        print(f"JupyterLab {version('jupyterlab')}, anywidget {version('anywidget')}, Chromium {browser.version}")
        print(f"\nFrom input to picture in ms, {PRESSES} presses or moves: drawn, painted (median, 95th percentile).")
        print(f"Limits: {QUICK[0]} and {QUICK[1]} painted for numbers that the page has, {NEW} for new ones; !: beyond")
        print(f"{'figure':24}{'where':10}{'control':12}{'drawn':>12}{'painted':>14}")
        sheet = browser.new_page(viewport={"width": 1280, "height": 900})
        for name, notebook in figures().items():
            path = Path(folder) / f"{name}.html"
            path.write_text(page.page(importlib.import_module(f"figures.{name}")), encoding="utf-8")
            sheet.goto(path.as_uri())
            report(name, "page", sheet.locator("[data-figure]"))
            print_times(name, "page", "drags", drag_times(sheet.locator("[data-figure]"), DRAGS[name]))
            lab.open(notebook, run=False)
            lab.page.evaluate(RUN, lab.page.evaluate(CELL, name))
            report(name, "lab", lab.page.locator(f"[data-figure={name}]"))
        report_site(browser, website.site(Path(folder) / "site"))
    print("\nNotebooks under nbval, each with a pytest of its own; limits: 15 s, 400 kB")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        seconds, outcome = nbval(path)
        print(f"{path.stem:40}{seconds:7.1f} s{path.stat().st_size / 1000:7.0f} kB  {outcome}", flush=True)


def report(name, where, host):
    """Print how fast a drawn figure answers: its last slider (the clock), and in JupyterLab all other controls."""
    host.locator("svg").first.wait_for()
    host.evaluate(WATCH)
    if where == "lab":  # each press asks the kernel for numbers that the page does not have
        print_times(name, where, "new numbers", new_times(host), (NEW, NEW))
    clock = host.locator("input[type=range][data-field]").last
    clock.focus()
    there, back = "ArrowRight", "ArrowLeft"
    presses = host.evaluate("() => answers.length = 0")
    while presses < PRESSES:
        before = clock.input_value()
        clock.press(there)
        host.page.wait_for_timeout(60)
        if clock.input_value() == before:
            there, back = back, there  # the slider was at its end
        presses += 1
    print_times(name, where, clock.get_attribute("data-field"), host.evaluate("() => answers"))


def new_times(host):
    """Press every control except the clock, a slider to both ends; return the ms of the answers."""
    host.evaluate("() => answers.length = 0")
    for control in host.locator("[data-field]:not(.clock input)").all():
        control.focus()
        keys = {"checkbox": ["Space"], "range": ["Home", "End"]}.get(
            control.get_attribute("type"), ["ArrowUp", "ArrowDown"]
        )
        for key in keys:
            control.press(key)
            host.locator(".stage:not(.busy)").wait_for()
            host.page.wait_for_timeout(120)
    return host.evaluate("() => answers")


def drag_times(host, drags):
    """Return the ms of moves that pull each handle there and back."""
    host.evaluate("() => answers.length = 0")
    mouse = host.page.mouse
    for selector, (across, down), _, key in drags:
        if key is None:
            continue
        host.get_by_role("button", name="reset").click()
        host.page.wait_for_timeout(500)  # the handle travels back
        x, y = middle(host.locator(f"svg {selector}"))
        mouse.move(x, y)
        mouse.down()
        for move in range(PRESSES):
            part = 1 - abs(1 - 2 * (move + 1) / PRESSES)
            mouse.move(x + part * across, y + part * down)
            host.page.wait_for_timeout(60)
        mouse.up()
    return host.evaluate("() => answers")


def print_times(name, where, field, answers, limits=QUICK):
    """Print the medians and the 95th percentiles of [drawn, painted] in ms, and ! where the painted are too high."""
    if len(answers) < 2:
        return
    columns = [(median(ms), quantiles(ms, n=20, method="inclusive")[-1]) for ms in zip(*answers, strict=True)]
    words = "".join(f"{usual:6.1f} {high:6.1f} " for usual, high in columns)
    beyond = any(ms > limit for ms, limit in zip(columns[-1], limits, strict=True))
    print(f"{name:24}{where:10}{field:12}{words}{'!' if beyond else ''}".rstrip(), flush=True)


def report_site(browser, site):
    """Print when each page of the site, opened from its file, shows its first picture, and how large the site is."""
    print(f"\nThe site: ms until a first picture answers, quickest and slowest of {VISITS} visits; limit: {FIRST}")
    for path in LESSONS + OTHERS + FIGURES:
        times = [visited(browser, f"{site.as_uri()}/{path}") for _ in range(VISITS)]
        # The quickest is the page's own time: other work of the machine only adds to it.
        print(f"{path:44}{min(times):7.0f}{max(times):7.0f} {'!' if min(times) > FIRST else ''}".rstrip(), flush=True)
    sizes = {path: path.stat().st_size / 10**6 for path in site.rglob("*") if path.is_file()}
    largest = max(size for path, size in sizes.items() if path.parent.name == "figures")
    for (what, limit), size in zip(MEGABYTES.items(), (sum(sizes.values()), largest), strict=True):
        print(f"{what}: {size:.1f} MB, limit {limit} {'!' if size > limit else ''}".rstrip())


def visited(browser, address):
    """Return the ms from the beginning of a visit to the first picture."""
    sheet = browser.new_page(viewport={"width": 1280, "height": 900})
    sheet.add_init_script(PAINTED)
    sheet.goto(address)
    ms = sheet.evaluate("painted")
    sheet.close()
    return ms


def nbval(path):
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-sanitize-with",
               "tests/tools/sanitize.cfg", "--nbval-cell-timeout", "600", str(path)]  # fmt: skip
    begun = time.perf_counter()
    run = subprocess.run(command, cwd=ROOT, capture_output=True)
    return time.perf_counter() - begun, run.stdout.decode().strip().splitlines()[-1]


if __name__ == "__main__":
    main()
