"""The doctor names known bad pairs of versions, and says what each kind of machine can do."""

import subprocess
import sys
from dataclasses import replace

import pytest

from flashlab.course import doctor, versions
from flashlab.course.lessons import LESSONS, runs
from flashlab.machine.host import Machine

VERSIONS = {"numpy": "2.4.6", "torch": "2.13.0+cpu", "triton": "3.7.1"}
LAPTOP = Machine("Linux x86_64", "3.11.7", "a CPU", 8, 16 * 10**9, None, None, VERSIONS)
SERVER = replace(LAPTOP, gpu="NVIDIA H200", capability=(9, 0))
MAC = replace(LAPTOP, system="Darwin arm64", versions={"numpy": "2.4.6", "torch": "2.13.0"})


def test_a_machine_as_pinned_has_no_findings():
    for machine in (LAPTOP, SERVER, MAC):
        assert doctor.findings(machine) == []


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"triton": "3.6.0"}, "Triton 3.6 cannot interpret loops with numpy 2.4"),
        ({"triton": "3.6.0", "numpy": "2.3.5"}, None),
        ({"triton": "3.9.0"}, "no block pointers"),
        ({"triton": "3.10.0rc1"}, "no block pointers"),
        ({"triton": "3.8.0"}, None),
    ],
)
def test_bad_pairs_are_named_and_good_ones_not(changes, message):
    findings = doctor.findings(replace(LAPTOP, versions=VERSIONS | changes))
    assert len(findings) == (message is not None) and all(message in finding for finding in findings)


def test_old_python_old_gpu_and_missing_torch_are_named():
    assert "Python 3.9.18 is too old" in doctor.findings(replace(LAPTOP, python="3.9.18"))[0]
    assert "this GPU has 7.5" in doctor.findings(replace(SERVER, capability=(7, 5)))[0]
    assert "PyTorch is missing" in doctor.findings(replace(MAC, versions={"numpy": "2.4.6"}))[0]


@pytest.mark.parametrize(
    "machine, mode, why",
    [
        (LAPTOP, "interpreted", "interpreter"),
        (SERVER, "compiled", "NVIDIA H200"),
        (MAC, "not here", "no build for this system"),
        (replace(LAPTOP, versions={"numpy": "2.4.6"}), "not here", "make lab"),
    ],
)
def test_kernels_run_in_the_way_that_the_machine_allows(machine, mode, why):
    assert doctor.kernels(machine)[0] == mode and why in doctor.kernels(machine)[1]


@pytest.mark.parametrize(
    "machine, mode",
    [
        (LAPTOP, "interpreted"),
        (SERVER, "compiled"),
        (replace(SERVER, capability=(8, 0)), "interpreted"),
        (MAC, "not here"),
    ],
)
def test_the_kernels_for_hopper_are_compiled_on_hopper_only(machine, mode):
    assert doctor.hopper(machine)[0] == mode


def test_the_report_names_the_machine_its_mode_and_its_findings(capsys):
    doctor.doctor(replace(SERVER, ram_bytes=None, versions=VERSIONS | {"triton": "3.6.0"}))
    printed = capsys.readouterr().out
    assert "a CPU, 8 cores, unknown memory" in printed and "GPU: NVIDIA H200" in printed and "! Triton 3.6" in printed
    assert f"L{runs('triton')[1:]}: compiled" in printed and "Lessons 16 and 17: compiled" in printed
    assert printed.startswith(f"All {len(LESSONS)} lessons run here.\n") and "Missing" not in printed


def test_what_one_can_do_comes_before_what_is_missing(capsys):
    doctor.doctor(LAPTOP)
    first, *lessons, missing, _, machine, gpu, _ = capsys.readouterr().out.splitlines()
    assert first == f"All {len(LESSONS)} lessons run here." and len(lessons) == 3 and "interpreter" in lessons[1]
    assert missing.startswith("Missing: an NVIDIA GPU.") and "a CPU" in machine and gpu == "GPU: none"
    doctor.doctor(MAC)
    without = sum(lesson.needs == "numpy" for lesson in LESSONS)
    assert capsys.readouterr().out.startswith(f"{without} of {len(LESSONS)} lessons run here.\n")
    assert "a Hopper GPU" in doctor.lacks(replace(SERVER, capability=(8, 0)))[0]


def test_every_limit_is_printed_with_its_source(capsys):
    doctor.main(["--limits"])
    printed = capsys.readouterr().out
    limits = [limit for version in versions.VERSIONS for limit in version.limits]
    assert [limit for limit in limits if f"{limit.message} ({limit.source})" not in printed] == []
    with pytest.raises(SystemExit):
        doctor.main(["--limits", "--shape", "1", "1", "64", "64"])


@pytest.mark.parametrize("module", ["doctor", "check"])
@pytest.mark.parametrize(
    "argument, status, message", [("--help", 0, "usage: python -m"), ("nonsense", 2, "unrecognized")]
)
def test_the_commands_know_help_and_refuse_what_they_do_not_know(module, argument, status, message):
    command = [sys.executable, "-m", f"flashlab.course.{module}", argument]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == status and message in run.stdout + run.stderr
