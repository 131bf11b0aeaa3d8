"""The files that set the course up agree with each other, and with what the README says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PLATFORMS = ["linux", "darwin"]


def ranges():
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]]


def applies(requirement, python, platform):
    machine = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": platform}
    return requirement.marker is None or requirement.marker.evaluate(machine)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_range_has_one_pin_that_lies_in_it(python, platform):
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


def test_conda_users_get_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, by_pip = environment["dependencies"]
    assert pip == "pip" and by_pip == {"pip": ["-c constraints.txt", "-e .[test]"]}
    pythons = SpecifierSet(python.removeprefix("python"))
    assert [version for version in ["3.9", *PYTHONS, "3.15"] if version in pythons] == PYTHONS
    assert PROJECT["requires-python"] == ">=3.10"


def test_make_accepts_the_same_pythons():
    lowest, highest = re.search(r"\((\d, \d+)\) <= sys.version_info\[:2\] <= \((\d, \d+)\)", read("Makefile")).groups()
    assert [lowest.replace(", ", "."), highest.replace(", ", ".")] == [PYTHONS[0], PYTHONS[-1]]


def read(name):
    return (ROOT / name).read_text()


def tracked():
    return subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]


def test_every_command_in_the_readme_exists():
    targets = set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))
    commands = re.findall(r"`[^`]*`|^    .*", read("README.md"), flags=re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(commands)))
    assert {"lab", "test"} <= named <= targets


def test_every_lesson_is_in_the_readme_and_every_link_leads_somewhere():
    readme = read("README.md")
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", readme) if not link.startswith("http")}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")} <= links
    assert [link for link in sorted(links) if not (ROOT / link).exists()] == []


def test_nothing_is_ever_installed_from_the_strangers_package():
    wrong = re.compile(r"pip3? +install +(-\S+ +)*[\"']?flashlab(?!-course)\b")
    assert wrong.search("pip install " + "flashlab")
    assert [name for name in tracked() if wrong.search((ROOT / name).read_bytes().decode(errors="ignore"))] == []
