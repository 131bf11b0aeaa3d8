"""What Google Colab and Codespaces run: the first cell of each lesson's copy for Colab, and the devcontainer."""

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
from tests.test_setup import PINS, PROJECT, PYTHONS, ROOT, read, workflow

GIT = shutil.which("git")

# The packages of the course that Colab's machines had on 2026-08-19, by Google's lists
# (github.com/googlecolab/backend-info): Python 3.13, torch 2.11; machines with a GPU have Triton 3.6, too.
COLAB = {"anywidget", "ipython", "ipywidgets", "jupyterlab", "matplotlib", "numpy", "pillow", "torch", "traitlets"}


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "colab"
    lessons.write_for_colab(folder)
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.iterdir())}


def test_every_lesson_opens_in_colab_with_the_same_first_cell(copies):
    assert set(copies) == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {lesson["cells"][0]["source"] for lesson in copies.values()} == {lessons.install(lessons.this_commit())}
    for name in sorted(set(copies) - {"notation.ipynb"}):
        link = lessons.links(name)["source"]
        assert f"({lessons.COLAB}/{name})" in link and f"({lessons.REPOSITORY}/blob/main/notebooks/{name})" in link


def test_the_readme_links_to_colab_codespaces_and_the_repository():
    project = lessons.REPOSITORY.removeprefix("https://github.com/")
    assert lessons.REPOSITORY == PROJECT["urls"]["Homepage"] and f"/github/{project}/" in lessons.COLAB
    for link in (f"{lessons.COLAB}/00_start_here.ipynb", lessons.CODESPACE, f"git clone {lessons.REPOSITORY}\n"):
        assert link in read("README.md")


OF_A_FORK = """
from docs import front, lessons, pages, sharing
print(lessons.links("06_tiling.ipynb")["source"], lessons.install("HEAD"), front.page(), pages.written("set_up"))
print(sharing.ADDRESS)
"""


def test_the_site_of_a_fork_leads_to_the_fork():
    variables = os.environ | {"FLASHLAB_REPOSITORY": "https://github.com/uni/attention"}
    text = subprocess.check_output([sys.executable, "-c", OF_A_FORK], cwd=ROOT, env=variables, text=True)
    assert "git clone https://github.com/uni/attention" in text
    assert (
        "/github/uni/attention/blob/gh-pages/colab/06_tiling.ipynb" in text and "codespaces.new/uni/attention" in text
    )
    assert text.endswith("https://uni.github.io/attention/\n") and "git clone https://github.com/flashlab" not in text
    (build,) = [job for job in workflow("site.yml")["jobs"].values() if "make site" in str(job)]
    assert build["env"]["FLASHLAB_REPOSITORY"] == "${{ github.server_url }}/${{ github.repository }}"


def test_the_other_cells_of_a_copy_are_the_lesson_without_outputs(copies):
    for name, copy in copies.items():
        stored = json.loads(read(f"notebooks/{name}"))
        assert [cell["source"] for cell in copy["cells"][1:]] == [cell["source"] for cell in stored["cells"]]
        assert not any(cell.get("outputs") for cell in copy["cells"])


def test_colab_has_or_gets_every_package_at_a_version_that_is_tested():
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["course"]]
    assert {Requirement(text).name for text in wanted} == COLAB | set(lessons.NEEDED)
    pins = {pin.name: str(pin.specifier) for pin in PINS}
    assert {name: pins[name] for name in lessons.NEEDED} == {name: f"=={it}" for name, it in lessons.NEEDED.items()}


# Prints the course's file in a process that a lesson starts, the working folder, and how many states a figure ships.
THEN = """
import base64, re, zlib
from figures import ring
html = ring.explore()._repr_mimebundle_()["text/html"]
there = subprocess.check_output([sys.executable, "-c", "import flashlab; print(flashlab.__file__)"], text=True)
packed = base64.b64decode(re.search('"packed":"(.+?)"', html)[1])
print(there.strip(), os.getcwd(), 1 + zlib.decompress(packed).count(b'"words":'), sep="\\n")
"""
COMMIT = lessons.this_commit()
clones = pytest.mark.skipif(GIT is None or COMMIT == "HEAD", reason="clones this checkout")


def run_first_cell(folder, then, source=ROOT):
    """Return what the cell and ``then`` print in a fresh Python, with ``source`` in the place of the repository."""
    cell = lessons.install(COMMIT).replace('"/content/', f'"{folder.as_posix()}/')
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FLASHLAB_FIGURES")}
    config = {"COUNT": "1", "KEY_0": f"url.{source.as_uri()}.insteadOf", "VALUE_0": lessons.REPOSITORY}
    return subprocess.check_output(
        [sys.executable, "-c", cell + then],
        cwd=folder,
        env=inherited | {f"GIT_CONFIG_{name}": value for name, value in config.items()},
        text=True,
    )


@pytest.mark.exhaustive
@clones
def test_the_first_cell_of_colab_runs_and_the_course_is_there(tmp_path):
    here = tmp_path.resolve()
    package, folder, states = run_first_cell(here, THEN).splitlines()
    course = here / f"flashlab-{COMMIT[:12]}"
    assert package == str(course / "flashlab" / "__init__.py")
    assert folder == str(course / "notebooks")
    assert int(states) == len(page.shipped(ring)) > 1


@clones
def test_the_first_cell_of_colab_fetches_its_own_commit_whole(tmp_path):
    """The repository has a later commit, and an earlier run of the cell was killed while it fetched."""
    moved, content = tmp_path / "moved", tmp_path / "content"
    subprocess.run([GIT, "clone", "--quiet", "--shared", "--no-checkout", ROOT, moved], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([GIT, *identity, "commit", "--quiet", "--allow-empty", "-m", "later"], cwd=moved, check=True)
    subprocess.run([GIT, "init", "--quiet", content / f"flashlab-{COMMIT[:12]}.part"], check=True)
    (content / f"flashlab-{COMMIT[:12]}.part/.git/shallow.lock").touch()
    commit = """print(subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip())"""
    assert run_first_cell(content, commit, moved) == f"{COMMIT}\n"
    assert [path.name for path in content.iterdir()] == [f"flashlab-{COMMIT[:12]}"]


def test_the_devcontainer_sets_up_what_make_sets_up_and_shows_the_lab():
    container = json.loads(read(".devcontainer/devcontainer.json"))
    (stamp,) = re.fullmatch(r"make (\S+)", container["postCreateCommand"]).groups()
    assert f"STAMP := {stamp}\n" in read("Makefile")
    assert re.fullmatch(r".*/python:[\d.]*-?(\d\.\d+)-.*", container["image"])[1] in PYTHONS
    assert set(container["portsAttributes"]) == {str(port) for port in container["forwardPorts"]} == {"8888"}


def test_the_devcontainer_admits_its_own_address_and_no_other():
    """The pages of other codespaces have the same domain, and must not reach the lab."""
    command = json.loads(read(".devcontainer/devcontainer.json"))["postAttachCommand"]
    words = subprocess.check_output(
        ["sh", "-c", """make() { printf "%s\\n" "$@"; }; """ + command],
        env={"CODESPACE_NAME": "my-space", "GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN": "app.github.dev"},
        text=True,
    )
    target, options = words.splitlines()
    assert target == "lab" and options.removeprefix("LAB_ARGS=").split() == [
        "--no-browser",
        "--ServerApp.local_hostnames=localhost",
        "--ServerApp.local_hostnames=my-space-8888.app.github.dev",
        "--ServerApp.allow_origin=https://my-space-8888.app.github.dev",
    ]
