"""The set-up goes on after whatever befalls it. `make` runs in a copy, with a pip that installs three lines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ("Makefile", "pyproject.toml", "constraints.txt", "tests/tools/environment.py")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# Instead of pip: note how it was called, and install a JupyterLab of three lines.
PIP = """
import importlib.metadata, os, sys
from pathlib import Path
with open("calls", "a") as file:
    print("pip", *sys.argv[1:], f"HOME={os.environ['HOME']}", sep="\\t", file=file)
site = Path(__file__).parents[1]
if sys.argv[1] == "install":
    try:
        importlib.metadata.version("jupyterlab")
        there = "--force-reinstall" not in sys.argv
    except importlib.metadata.PackageNotFoundError:
        there = False
    for name in () if there else ("jupyterlab/__init__.py", "jupyterlab/labextensions.py", "jupyterlab/__main__.py"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("print('lab')" if "main" in name else "")
    if not there:
        info = site / "jupyterlab-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: jupyterlab\\nVersion: 1\\n")
        (info / "RECORD").write_text("jupyterlab/__init__.py,,\\njupyterlab/labextensions.py,,\\n")
"""
# Python, but for its venv: without the real pip, whose set-up takes seconds.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    shift 2
    "$REAL" -m venv --without-pip "$@" && cp -R "$FAKES/pip" "$(.venv/bin/python -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')"
else
    exec "$REAL" "$@"
fi
"""


class Checkout:
    """A copy of the files that the set-up needs."""

    def __init__(self, folder, fakes):
        self.folder, self.fakes = folder, fakes
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)

    def make(self, *arguments, **environment):
        known = {"PATH": os.environ["PATH"], "HOME": str(self.fakes), "REAL": sys.executable, "FAKES": str(self.fakes)}
        return subprocess.run(
            ["make", *arguments, f"PYTHON={self.fakes}/python"],
            cwd=self.folder,
            env=known | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self):
        """Return the calls of pip since the last look, each as a list of words."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line.split("\t")[1:] for line in lines if "--version" not in line]

    def site(self):
        (path,) = self.folder.glob(".venv/lib/python3*/site-packages")
        return path


@pytest.fixture
def fakes(tmp_path):
    folder = tmp_path / "fakes"
    (folder / "pip").mkdir(parents=True)
    (folder / "pip/__init__.py").write_text("")
    (folder / "pip/__main__.py").write_text(PIP)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    return folder


@pytest.fixture
def checkout(tmp_path, fakes):
    return Checkout(tmp_path / "course", fakes)


def assert_set_up_once(checkout, **environment):
    first = checkout.make("lab", **environment)
    assert first.returncode == 0 and first.stdout.endswith("lab\n"), first.stderr
    assert len(checkout.calls()) == 1
    again = checkout.make("lab", **environment)
    assert again.returncode == 0 and checkout.calls() == [], "set up twice"


@pytest.mark.parametrize(
    "name",
    [
        "Anna's course",
        *(pytest.param(it, marks=pytest.mark.exhaustive) for it in ('a "course"', "課程  für", "a&b;(c)")),
    ],
)
def test_any_path_is_set_up_once(tmp_path, fakes, name):
    assert_set_up_once(Checkout(tmp_path / name, fakes))


@pytest.mark.exhaustive
def test_a_checkout_that_was_moved_is_set_up_again(checkout):
    assert_set_up_once(checkout)
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert_set_up_once(checkout)


def test_packages_that_are_gone_come_back(checkout):
    assert_set_up_once(checkout)
    shutil.rmtree(checkout.site() / "jupyterlab")  # pip believes that it is there: its metadata is
    run = checkout.make("lab")
    assert run.returncode == 0 and run.stdout.endswith("lab\n"), run.stderr
    assert "Files are missing from .venv; installing again: jupyterlab==1" in run.stdout
    assert ["--force-reinstall" in call for call in checkout.calls()] == [False, True]
    assert checkout.make("lab").returncode == 0 and checkout.calls() == []


@pytest.mark.exhaustive
def test_a_package_without_a_file_comes_back_when_something_else_makes_the_set_up_run(checkout):
    assert_set_up_once(checkout)
    (checkout.site() / "jupyterlab/labextensions.py").unlink()
    (checkout.folder / ".venv/.stamp").unlink()
    assert checkout.make("lab").returncode == 0
    assert (checkout.site() / "jupyterlab/labextensions.py").exists()


@pytest.mark.exhaustive
def test_a_venv_without_its_python_is_made_anew(checkout):
    assert_set_up_once(checkout)
    shutil.rmtree(checkout.folder / ".venv/bin")
    assert_set_up_once(checkout)


@pytest.mark.exhaustive
def test_a_package_installed_by_hand_is_no_damage(checkout):
    assert_set_up_once(checkout)
    (checkout.site() / "mine.py").write_text("")
    assert checkout.make("lab").returncode == 0 and checkout.calls() == []


def test_a_reason_is_given_when_jupyterlab_does_not_start(checkout):
    fake = checkout.fakes / "pip/__main__.py"
    fake.write_text(fake.read_text().replace('else "")', 'else "raise OSError(5)")'))
    run = checkout.make("lab")
    assert run.returncode != 0
    assert "OSError: 5" in run.stdout and "run make clean, then the same command again" in run.stdout


def test_a_home_that_cannot_be_written_is_not_needed(checkout):
    assert checkout.make("lab", HOME="/nonexistent/home").returncode == 0
    (call,) = checkout.calls()
    assert call[-1] == f"HOME={checkout.folder}/.venv/home"
    assert checkout.make("lab", HOME=str(checkout.fakes)).returncode == 0 and checkout.calls() == []


@pytest.mark.exhaustive
def test_a_home_that_can_be_written_is_left_alone(checkout):
    assert checkout.make("lab").returncode == 0
    assert checkout.calls()[0][-1] == f"HOME={checkout.fakes}"


@pytest.mark.parametrize("found", ["3, 10", "3, 15"])
def test_another_python_is_refused_in_a_sentence(checkout, found):
    """The Makefile's own question, asked of a Python that calls itself so."""
    python = checkout.fakes / "python"
    python.write_text(f'#!/bin/sh\nshift; exec {sys.executable} -c "import sys; sys.version_info = ({found}, 0); $1"\n')
    run = checkout.make("lab")
    assert run.returncode != 0 and "needs Python 3.11 to 3.14" in run.stdout and checkout.calls() == []


def test_a_target_that_does_not_exist_is_named(checkout):
    run = checkout.make("tset")
    assert run.returncode != 0 and "There is no 'make tset'" in run.stdout and "make test " in run.stdout


def test_clean_removes_what_the_set_up_made_and_nothing_else(tmp_path, fakes):
    checkout = Checkout(tmp_path / "a 'quoted' course", fakes)
    kept = checkout.folder / "my notes/a file.txt"
    cache = checkout.folder / "my notes/__pycache__/x.pyc"
    for path in (kept, cache):
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert checkout.make("lab").returncode == 0
    assert checkout.make("clean").returncode == 0
    assert kept.exists() and not cache.parent.exists() and not (checkout.folder / ".venv").exists()
