"""Store which exercises are solved, with the answers, in ``progress.json`` beside the notebooks, which git ignores.

The variable FLASHLAB_PROGRESS names another file, or ``os.devnull`` to store nothing. Only the learner may read the
file. A damaged file is copied to ``progress.json.bak``, the next to ``.bak2``. Several notebooks may write at once.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flashlab.course.data import NOTEBOOKS

FILE = Path(os.environ.get("FLASHLAB_PROGRESS") or NOTEBOOKS / "progress.json")
LOCK_WAIT = 5.0  # seconds that a writer waits for another one, before it goes on without a lock


def read() -> dict[str, dict]:
    """Return {"online_softmax.merge": {"solved": True, "said": "…", "answer": "def …"}}; {} without a readable file.

    answer: the source of the newest right function, as ``self_contained`` writes it; "" if there is none.
    """
    return _parsed(_bytes(FILE))[0]


def note(name: str, solved: bool, message: str, answer: str = "") -> None:
    """Store the result of the last attempt at an exercise. A solved exercise stays solved, and an answer stays stored.

    Raises OSError if the file cannot be written, and leaves it as it was.
    """
    if FILE == Path(os.devnull):
        return
    file = Path(os.path.realpath(FILE))  # if FILE is a link, the file that it leads to is replaced
    with _locked(file):
        stored = _bytes(file)
        if stored is None:
            raise OSError(errno.EINVAL, "It is not a file that can be read")
        entries, whole = _parsed(stored)
        if not whole:
            _write(_unused(file), stored)
        before = entries.get(name, {"solved": False, "answer": ""})
        entries[name] = {"solved": solved or before["solved"], "said": message, "answer": answer or before["answer"]}
        _write(file, json.dumps(entries, indent=1, ensure_ascii=False).encode("utf-8", "replace"))


def _unused(file):
    """Return the first of ``.bak``, ``.bak2``, ``.bak3``, … that does not exist."""
    paths = (file.with_suffix(f".json.bak{number}") for number in ("", *range(2, 1000)))
    return next(path for path in paths if not os.path.lexists(path))


def _bytes(file):
    """Return the bytes of a file; b"" if there is none, None if it is no file (a folder, a pipe) or may not be read."""
    try:
        return file.read_bytes() if stat.S_ISREG(file.stat().st_mode) else None
    except FileNotFoundError:
        return b""
    except OSError:
        return None


def _parsed(stored):
    """Return the valid entries of a file, and whether all entries are valid."""
    if not stored:
        return {}, True
    try:
        found = json.loads(stored.decode("utf-8-sig"))  # Windows' Notepad writes a byte order mark first
        good = {name: _entry(it) for name, it in found.items() if _entry(it) is not None}
        return good, len(good) == len(found)
    except (ValueError, AttributeError, RecursionError):
        return {}, False


def _entry(found):
    try:
        return {"solved": bool(found["solved"]), "said": str(found["said"]), "answer": str(found.get("answer", ""))}
    except (TypeError, KeyError, AttributeError):
        return None


def _write(file, data):
    """Replace a file by one that only its owner may read; all or nothing: after an error, the old file remains."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            target.write(data)
        temporary.replace(file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other writers out. After ``LOCK_WAIT`` a writer goes on without the lock: a lesson must not wait."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(os.open(file.with_name(f"{file.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        until = time.monotonic() + LOCK_WAIT
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
        yield
