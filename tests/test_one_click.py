"""What Google Colab and Codespaces are told to run: the first cell of each lesson there, and the devcontainer."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from docs import lessons
from figures import page, ring
from tests.test_setup import PINS, PROJECT, PYTHONS, ROOT, read

GIT = shutil.which("git")

# Of what the course imports, what Colab's machines had on 2026-08-19, by the lists that Google publishes
# (github.com/googlecolab/backend-info): Python 3.13, torch 2.11, on its machines with a GPU also Triton 3.6.
COLAB = {"anywidget", "ipython", "ipywidgets", "jupyterlab", "matplotlib", "numpy", "packaging", "pillow", "torch"}
COLAB |= {"traitlets"}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "colab"
    lessons.write_for_colab(folder)
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.iterdir())}


def test_every_lesson_opens_in_colab_with_the_same_first_cell(copies):
    assert set(copies) == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {lesson["cells"][0]["source"] for lesson in copies.values()} == {lessons.INSTALL}
    for name in sorted(set(copies) - {"notation.ipynb"}):
        link = lessons.links(name)["source"]
        assert f"({lessons.COLAB}/{name})" in link and f"({lessons.REPOSITORY}/blob/main/notebooks/{name})" in link


def test_readme_and_front_page_lead_to_the_same_places():
    project = lessons.REPOSITORY.removeprefix("https://github.com/")
    assert lessons.REPOSITORY == PROJECT["urls"]["Homepage"] and f"/github/{project}/" in lessons.COLAB
    for link in (f"{lessons.COLAB}/00_start_here.ipynb", lessons.CODESPACE, f"git clone {lessons.REPOSITORY}\n"):
        assert link in read("README.md")


def test_the_rest_of_a_copy_is_the_lesson_not_yet_run(copies):
    for name, copy in copies.items():
        stored = json.loads(read(f"notebooks/{name}"))
        assert [cell["source"] for cell in copy["cells"][1:]] == [cell["source"] for cell in stored["cells"]]
        assert not any(cell.get("outputs") for cell in copy["cells"])


def test_colab_has_or_gets_every_package_at_a_version_that_is_tested():
    assert {Requirement(text).name for text in PROJECT["dependencies"]} == COLAB | set(lessons.NEEDED)
    pins = {pin.name: str(pin.specifier) for pin in PINS}
    assert {name: pins[name] for name in lessons.NEEDED} == {name: f"=={it}" for name, it in lessons.NEEDED.items()}


# Prints where a process that a lesson starts finds the course, the working folder, and the states that a figure brings.
THEN = """
from figures import ring
html = ring.explore()._repr_mimebundle_()["text/html"]
there = subprocess.check_output([sys.executable, "-c", "import flashlab; print(flashlab.__file__)"], text=True)
print(there.strip(), os.getcwd(), html.count('"words":'), sep="\\n")
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(GIT is None or not (ROOT / ".git").exists(), reason="clones this checkout")
def test_the_first_cell_of_colab_runs_and_the_course_is_there(tmp_path):
    """In a fresh Python in another folder, with this checkout in the place of the repository."""
    here = tmp_path.resolve()
    cell = lessons.INSTALL.replace('"/content/', f'"{here.as_posix()}/')
    left = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FLASHLAB_FIGURES")}
    told = {"COUNT": "1", "KEY_0": f"url.{ROOT.as_uri()}.insteadOf", "VALUE_0": lessons.REPOSITORY}
    said = subprocess.check_output(
        [sys.executable, "-c", cell + THEN],
        cwd=here,
        env=left | {f"GIT_CONFIG_{name}": value for name, value in told.items()},
        text=True,
    )
    package, folder, states = said.splitlines()
    assert package == str(here / "flashlab" / "flashlab" / "__init__.py")
    assert folder == str(here / "flashlab" / "notebooks")
    assert int(states) == len(page.shipped(ring)) > 1


def test_the_devcontainer_sets_up_what_make_sets_up_and_shows_the_lab():
    told = json.loads(read(".devcontainer/devcontainer.json"))
    (stamp,) = re.fullmatch(r"make (\S+)", told["postCreateCommand"]).groups()
    assert f"STAMP := {stamp}\n" in read("Makefile")
    assert told["postAttachCommand"].startswith("make lab ")
    assert re.fullmatch(r".*/python:[\d.]*-?(\d\.\d+)-.*", told["image"])[1] in PYTHONS
    assert set(told["portsAttributes"]) == {str(port) for port in told["forwardPorts"]} == {"8888"}
