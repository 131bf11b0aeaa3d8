"""The file of progress survives several writers, damage and a full disk, and only its owner can read it."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flashlab.course import progress
from flashlab.course.check import check
from flashlab.course.data import NOTEBOOKS

SOLVED = {"solved": True, "said": "", "answer": ""}


@pytest.fixture(autouse=True)
def file_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"online_softmax.merge": 3}', b'{"x": {"solved": 1}}'],
)
def test_a_file_that_cannot_be_read_stays_beside_the_new_one(broken):
    progress.FILE.write_bytes(broken)
    assert progress.read() == {}
    progress.note("online_softmax.merge", True, "")
    assert progress.read() == {"online_softmax.merge": SOLVED}
    backup = progress.FILE.with_suffix(".json.bak")
    assert backup.read_bytes() == broken if broken else not backup.exists()


def test_a_second_damaged_file_leaves_the_first_one_saved():
    for damaged in (b"{", b"[1]", b"{"):
        progress.FILE.write_bytes(damaged)
        progress.note("online_softmax.merge", True, "")
    saved = [progress.FILE.with_suffix(f".json.bak{number}").read_bytes() for number in ("", 2, 3)]
    assert saved == [b"{", b"[1]", b"{"]


@pytest.mark.parametrize("where", ["a full disk", "no folder", "a folder", "a pipe"])
def test_a_check_says_that_progress_could_not_be_stored(where, capsys, monkeypatch, tmp_path):
    paths = {"a full disk": "progress.json", "no folder": "absent/progress.json", "a folder": ".", "a pipe": "pipe"}
    monkeypatch.setattr(progress, "FILE", tmp_path / paths[where])
    if where == "a full disk":
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(progress, "_write", lambda *_: (_ for _ in ()).throw(full))
    if where == "a pipe":
        os.mkfifo(progress.FILE)
    check("online_softmax.keep", 2)
    verdict, sentence = capsys.readouterr().out.splitlines()
    assert verdict.startswith("✓ online_softmax.keep")
    assert sentence.startswith(f"Your progress could not be stored in {progress.FILE}: ")
    assert sentence.endswith(". Set FLASHLAB_PROGRESS to another file.")


def test_an_empty_variable_names_no_file():
    command = [sys.executable, "-c", "from flashlab.course import progress; print(progress.FILE)"]
    named = subprocess.run(command, env={**os.environ, "FLASHLAB_PROGRESS": ""}, capture_output=True, text=True)
    assert named.stdout.strip() == str(NOTEBOOKS / "progress.json")


def test_a_learner_may_choose_to_store_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "FILE", Path(os.devnull))
    check("online_softmax.keep", 2)
    assert len(capsys.readouterr().out.splitlines()) == 1 and progress.read() == {}


def test_good_entries_outlive_a_bad_one():
    progress.FILE.write_text(json.dumps({"start_here.first": SOLVED, "tiling.meet": 3}))
    progress.note("online_softmax.merge", False, "said")
    assert progress.read() == {
        "start_here.first": SOLVED,
        "online_softmax.merge": SOLVED | {"solved": False, "said": "said"},
    }
    assert "tiling.meet" in progress.FILE.with_suffix(".json.bak").read_text()


def test_a_file_saved_by_notepad_is_read():
    progress.FILE.write_text(json.dumps({"start_here.first": SOLVED}), encoding="utf-8-sig")
    assert progress.read() == {"start_here.first": SOLVED}


def test_a_solved_exercise_stays_solved():
    progress.note("tiling.meet", True, "")
    progress.note("tiling.meet", False, "wrong again")
    assert progress.read()["tiling.meet"] == SOLVED | {"said": "wrong again"}


WRITER = """
import sys
from pathlib import Path
from flashlab.course import progress
progress.FILE = Path(sys.argv[1])
for at in range(int(sys.argv[3])):
    progress.note(f"{sys.argv[2]}.{at}", True, "\\udc80")
"""


def test_four_processes_lose_nothing():
    command = [sys.executable, "-c", WRITER, str(progress.FILE)]
    writers = [subprocess.Popen([*command, str(who), "50"]) for who in range(4)]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    assert progress.read().keys() == {f"{who}.{at}" for who in range(4) for at in range(50)}
    assert {path.name for path in progress.FILE.parent.iterdir()} == {"progress.json", "progress.json.lock"}


def test_only_the_owner_can_read_the_file_and_a_link_stays_a_link(tmp_path, monkeypatch):
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("{}")
    there.chmod(0o644)
    link.symlink_to(there)
    monkeypatch.setattr(progress, "FILE", link)
    progress.note("tiling.meet", True, "")
    assert link.is_symlink() and stat.S_IMODE(there.stat().st_mode) == 0o600
    assert progress.read() == {"tiling.meet": SOLVED}


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "in no folder"])
def test_a_path_that_is_no_file_is_left_alone(kind, monkeypatch):
    if kind == "a pipe":
        os.mkfifo(progress.FILE)
    elif kind == "a folder":
        progress.FILE.mkdir()
    else:
        monkeypatch.setattr(progress, "FILE", progress.FILE / "absent" / "progress.json")
    with pytest.raises(OSError):
        progress.note("tiling.meet", True, "")
    assert progress.read() == {}


def test_a_write_that_breaks_off_leaves_the_old_file(monkeypatch):
    progress.note("online_softmax.merge", True, "")
    monkeypatch.setattr(type(progress.FILE), "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        progress.note("online_softmax.update", True, "")
    assert list(progress.read()) == ["online_softmax.merge"] and not list(progress.FILE.parent.glob("*.tmp"))


def test_a_lock_that_is_never_released_is_not_waited_for(monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(progress, "LOCK_WAIT", 0.1)
    with open(progress.FILE.with_name("progress.json.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        progress.note("tiling.meet", True, "")
    assert progress.read() == {"tiling.meet": SOLVED}
