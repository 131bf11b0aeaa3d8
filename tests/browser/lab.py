"""A real JupyterLab in a real browser: ``with chromium() as browser, Lab(browser) as lab: lab.open("06_tiling")``."""

import ast
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HIDES = ["--hide-scrollbars"]  # a default of Playwright; a learner's browser shows them
SECONDS = 300  # longest wait for the server and for what a page shows; no test measures a speed


def figures() -> dict[str, str | None]:
    """Return {module of a figure: its notebook}, the one of the same name or else the first that shows the figure."""
    names = [path.stem for path in sorted((ROOT / "figures").glob("*.py")) if _explores(path)]
    return {name: _notebook_of(name) for name in names}


def _notebook_of(name):
    showing = [
        path.stem
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if any(_shows(cell, name) for cell in nbformat.read(path, as_version=4).cells)
    ]
    return next((notebook for notebook in showing if notebook.endswith(name)), showing[0] if showing else None)


def _explores(path):
    """Return whether a module assigns CONTROLS, and so is a figure."""
    assigned = [node.targets[0] for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    return any(isinstance(target, ast.Name) and target.id == "CONTROLS" for target in assigned)


def _shows(cell, name):
    return cell.cell_type == "code" and f"{name}.explore(" in cell.source


class Lab:
    """JupyterLab on a copy of the notebooks, with its own settings, and a page in a browser."""

    def __init__(self, browser):
        self.browser = browser

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="flashlab-"))
        shutil.copytree(ROOT / "notebooks", self.folder / "notebooks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.token = secrets.token_hex(16)
        self.log = (self.folder / "server.log").open("w")
        self.server = subprocess.Popen(
            self._command(), cwd=self.folder, env=self._environment(), stdout=self.log, stderr=self.log
        )
        try:
            self._await_server()
            self.page = self.browser.new_page(viewport={"width": 1280, "height": 900})
            self.page.set_default_timeout(1000 * SECONDS)
            self.page.on("dialog", lambda dialog: dialog.accept())  # such as: leave a notebook that is not saved?
            self.outside = []  # requests that left this machine
            self.page.on("request", lambda request: self._note(request.url))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if hasattr(self, "page"):
            self.page.close()
        self.server.terminate()
        self.server.wait()
        self.log.close()
        shutil.rmtree(self.folder)

    def open(self, name, run=True, kernel=True, reset=True) -> "Notebook":
        """Open the notebook of this name, and return it.

        run: run all its cells; kernel: wait until it has a kernel, which ``run`` also does; reset: forget the stored
        layout.
        """
        address = f"http://127.0.0.1:{self.port}/lab/tree/notebooks/{name}.ipynb?token={self.token}"
        self.page.goto(address + "&reset" * reset)
        self.page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.context")
        self.page.evaluate(READY if run or kernel else OPENED)
        if run:
            self.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
        return Notebook(self.page)

    def _command(self):
        return [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={self.port}",
                "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}", "--ServerApp.root_dir=.",
                "--LabApp.expose_app_in_browser=True"]  # fmt: skip

    def _environment(self):
        files = {
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "FLASHLAB_PROGRESS": "progress.json",
        }
        variables = {name: str(self.folder / file) for name, file in files.items()}
        return {**os.environ, **variables, "FLASHLAB_FIGURES": "live"}

    def _await_server(self):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self.server.poll() is None:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=SECONDS)
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("JupyterLab did not start:\n" + (self.folder / "server.log").read_text()[-2000:])

    def _note(self, url):
        if not url.startswith((f"http://127.0.0.1:{self.port}/", f"ws://127.0.0.1:{self.port}/", "data:", "blob:")):
            self.outside.append(url)


@contextmanager
def chromium():
    """Yield a browser: that of the environment variable CHROMIUM, or one on PATH, or Playwright's own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=FLAGS, ignore_default_args=HIDES, timeout=1000 * SECONDS
        )
        yield browser
        browser.close()


class Notebook:
    """An open notebook."""

    def __init__(self, page):
        self.page = page

    def errors(self) -> list[str]:
        """Return the errors in its cells."""
        return self.page.evaluate(ERRORS)


OPENED = """async () => {
    await jupyterapp.restored;
    await jupyterapp.shell.currentWidget.context.ready;
}"""

READY = """async () => {
    await jupyterapp.restored;
    const { context, sessionContext } = jupyterapp.shell.currentWidget;
    await context.ready;
    await sessionContext.ready;
    await sessionContext.session.kernel.info;
}"""

ERRORS = """() => {
    const texts = [];
    for (const cell of jupyterapp.shell.currentWidget.content.model.cells)
        for (const output of cell.type === 'code' ? cell.outputs.toJSON() : [])
            if (output.output_type === 'error') texts.push(`${output.ename}: ${output.evalue}`);
    return texts;
}"""
