"""What a learner has solved so far, in a small file that git ignores: ``progress.json`` beside the notebooks."""

import json
import os
from pathlib import Path

from flashlab.course.data import NOTEBOOKS

FILE = Path(os.environ.get("FLASHLAB_PROGRESS", NOTEBOOKS / "progress.json"))


def read() -> dict[str, dict]:
    """{"online_softmax.merge": {"solved": True, "said": "..."}}; empty without a readable file."""
    try:
        stored = json.loads(FILE.read_text(encoding="utf-8"))
        return {name: {"solved": bool(entry["solved"]), "said": str(entry["said"])} for name, entry in stored.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def note(name: str, solved: bool, said: str) -> None:
    """Remember how the last try at an exercise went. What was solved once stays solved."""
    entries = read()
    solved = solved or entries.get(name, {}).get("solved", False)
    entries[name] = {"solved": solved, "said": said}
    half = FILE.with_suffix(f".{os.getpid()}.tmp")
    try:
        half.write_text(json.dumps(entries, indent=1, ensure_ascii=False), encoding="utf-8")
        half.replace(FILE)  # all or nothing: a write that breaks off leaves the old file
    except OSError:
        half.unlink(missing_ok=True)  # a folder that cannot be written must not break a lesson
