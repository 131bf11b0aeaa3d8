"""A wheel of the project works where there is no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Print the file of each package, then the mean of attention's output for a V of ones, which is 1.
USE = """
import importlib, pkgutil
import figures, flashlab, torch
from flashlab.kernels import flash_attention
for package in (flashlab, figures):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith("flashlab.bench"):  # scripts that import models and competitors
            importlib.import_module(module.name)
print(flashlab.__file__)
print(figures.__file__)
Q = torch.randn(1, 1, 8, 16)
print(flash_attention(Q, Q, torch.ones_like(Q)).mean().item())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by the setuptools that is installed: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    source = folder / "source"
    source.mkdir()
    for name in ("flashlab", "figures", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        subprocess.run(["cp", "-R", str(ROOT / name), str(source)], check=True)
    run = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=source, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    shipped = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for package in ("flashlab", "figures")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(files - shipped) == []
    assert {name.partition("/")[0] for name in shipped} <= {"flashlab", "figures"} | {
        name.partition("/")[0] for name in shipped if ".dist-info/" in name
    }


@pytest.mark.exhaustive
def test_the_kernels_run_from_the_wheel_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-P", "-c", USE],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(tmp_path / "site"),
            "TRITON_INTERPRET": "1",
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    *files, mean = run.stdout.splitlines()
    assert all(file.startswith(str(tmp_path / "site")) for file in files), files
    assert float(mean) == pytest.approx(1, abs=1e-6)
