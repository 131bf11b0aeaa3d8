"""`make` sets the course up in a copy of its files, with a fake pip that installs a fake JupyterLab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import install
from tests.tools.long import long

ROOT = Path(__file__).resolve().parents[1]
FILES = ("Makefile", "pyproject.toml", "constraints.txt", "tests/tools/install.py", ".jupyter/workspace.json")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# The fake pip: write its arguments to the file `calls`, and install a fake JupyterLab, which prints `lab`.
PIP = """
import importlib.metadata, os, sys
from pathlib import Path
with open("calls", "a") as file:
    print("pip", *sys.argv[1:], f"HOME={os.environ['HOME']}", sep="\\t", file=file)
site = Path(__file__).parents[1]
if sys.argv[1] == "install":
    try:
        importlib.metadata.version("jupyterlab")
        there = True
    except importlib.metadata.PackageNotFoundError:
        there = False
    if not there:
        files = {f"jupyterlab/{name}.py": "" for name in ("__init__", "labextensions")}
        files["jupyterlab/__main__.py"] = "print('lab')"
        files["jupyterlab-1.dist-info/METADATA"] = "Metadata-Version: 2.1\\nName: jupyterlab\\nVersion: 1\\n"
        for name, text in files.items():
            (site / name).parent.mkdir(exist_ok=True)
            (site / name).write_text(text)
"""
# Python, except that its venv has the fake pip in place of the real one, whose installation takes seconds.
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
        copies = folder / "flashlab/course/copies.py"  # empty: the copies of lessons have a test of their own
        copies.parent.mkdir(parents=True)
        copies.write_text("")

    def make(self, *arguments, **environment):
        variables = {"PATH": os.environ["PATH"], "REAL": sys.executable, "HOME": self.fakes, "FAKES": self.fakes}
        return subprocess.run(
            ["make", *arguments, f"PYTHON={self.fakes}/python"],
            cwd=self.folder,
            env=variables | environment,
            capture_output=True,
            text=True,
            timeout=600,  # ends a hang
        )

    def calls(self):
        """Return the arguments and HOME of each installation by pip since this method was last called."""
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


def test_the_first_layout_of_jupyterlab_is_stored_once(checkout):
    checkout.make("lab")
    (stored,) = (checkout.folder / ".venv/workspaces").iterdir()
    assert stored.read_text() == (ROOT / ".jupyter/workspace.json").read_text()
    stored.write_text("what a learner has opened")
    checkout.make("lab")
    assert stored.read_text() == "what a learner has opened"


@pytest.mark.parametrize(
    "name",
    [
        "Anna's course",
        *map(long, ('a "course"', "課程  für", "a&b;(c)")),
    ],
)
def test_any_path_is_set_up_once(tmp_path, fakes, name):
    assert_set_up_once(Checkout(tmp_path / name, fakes))


@pytest.mark.exhaustive
def test_a_checkout_that_was_moved_is_set_up_again(checkout):
    assert_set_up_once(checkout)
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert_set_up_once(checkout)


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
    fake.write_text(fake.read_text().replace('.py": ""', '.py": "raise OSError(5)"'))
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


@pytest.mark.parametrize("version", ["3, 10", "3, 15"])
def test_another_python_is_refused_in_a_sentence(checkout, version):
    """The fake Python runs the Makefile's own check with another ``sys.version_info``."""
    python = checkout.fakes / "python"
    script = f'shift; exec {sys.executable} -c "import sys; sys.version_info = ({version}, 0); $1"'
    python.write_text(f"#!/bin/sh\n{script}\n")
    run = checkout.make("lab")
    assert run.returncode != 0 and "needs Python 3.11 to 3.14" in run.stdout and checkout.calls() == []


def test_a_target_that_does_not_exist_is_named(checkout):
    run = checkout.make("tset")
    assert run.returncode != 0 and "There is no 'make tset'" in run.stdout and "make test " in run.stdout


def test_clean_removes_what_the_set_up_made_and_nothing_else(tmp_path, fakes):
    checkout = Checkout(tmp_path / "a 'quoted' course", fakes)
    note = checkout.folder / "my notes/a file.txt"
    cache = checkout.folder / "my notes/__pycache__/x.pyc"
    for path in (note, cache):
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert checkout.make("lab").returncode == 0
    assert checkout.make("clean").returncode == 0
    assert note.exists() and not cache.parent.exists() and not (checkout.folder / ".venv").exists()


LINES = """Collecting torch==2.13.0
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (30 kB)
Collecting numpy>=2.0
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (62 kB)
Using cached numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.0 MB)
Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)
Installing collected packages: numpy, torch
"""


@pytest.mark.parametrize(
    "lines, sentence",
    [
        (0, "looked up 0 packages"),
        (4, "looked up 2 packages"),
        (5, "package 1, numpy (16.0 MB): 16 MB with it"),
        (6, "package 2, torch (526.6 MB): 543 MB with it"),
        (7, "unpacked 1 of 2 packages"),
    ],
)
def test_progress_says_how_far_pip_is(lines, sentence):
    assert install.progress("".join(LINES.splitlines(keepends=True)[:lines]), new=1) == sentence


def test_progress_says_that_the_network_does_not_answer():
    waiting = "WARNING: Retrying (Retry(total=4)) after connection broken"
    assert install.progress(f"{LINES.partition('Using')[0]}{waiting}\n", new=0) == waiting.partition(" ")[2]


def test_an_install_says_how_far_it_is_and_why_it_failed(tmp_path, monkeypatch, capfd):
    """This pip ends as soon as ``install`` has printed its first line of progress."""
    (tmp_path / "pip.py").write_text(
        "import sys, time\nprint('Collecting torch', flush=True)\n"
        "while not __import__('os').path.exists('go on'): time.sleep(0.01)\n"
        "print('ERROR: no room on the disk', file=sys.stderr)\nsys.exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(install, "LOG", tmp_path / "pip.log")
    monkeypatch.setattr(install, "PACE", 0.01)
    monkeypatch.setattr(install, "progress", lambda log, new: (tmp_path / "go on").touch() or "as far as that")
    assert install.install(["--editable", "."]) == 3
    out = capfd.readouterr().out
    assert "0:00  as far as that\n" in out and "ERROR: no room on the disk\nAll that pip printed is in" in out


def test_make_prints_what_it_does_and_not_its_recipe(checkout):
    run = checkout.make("lab")
    assert run.stdout.startswith("The first set-up installs the course's packages in .venv: about 500 MB to download")
    assert "could not be installed" not in run.stdout and "||" not in run.stdout
    assert ".[course]" in checkout.calls()[0]
    assert "The first set-up" not in checkout.make("lab").stdout


def test_a_failed_install_ends_with_one_sentence(checkout):
    fake = checkout.fakes / "pip/__main__.py"
    fake.write_text(fake.read_text() + "if sys.argv[1] == 'install': sys.exit('ERROR: no route to host')\n")
    run = checkout.make("lab")
    assert run.returncode != 0 and "ERROR: no route to host" in run.stdout
    assert run.stdout.count("The packages could not be installed, for the reason above") == 1


def test_an_extra_is_installed_once(checkout):
    for _ in range(2):
        assert checkout.make(".venv/.stamp-test").returncode == 0
    assert [call[-2] for call in checkout.calls()] == [".[course]", ".[test]"]
