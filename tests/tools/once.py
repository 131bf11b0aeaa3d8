"""Results that several workers of a test run need, and that take minutes: ``Once``."""

import json
from pathlib import Path


class Once:
    """Call functions once for all who have this folder in common: the first keeps the result, as JSON, for the others.

    They wait while it is made. What failed is not kept: the next one tries again.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, function, *arguments: str):
        """Return function(*arguments), which JSON can hold. The arguments name a file."""
        import fcntl  # not on Windows, where nothing is compiled

        kept = self.folder / f"{'-'.join([function.__name__, *arguments])}.json"
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                text = json.dumps(function(*arguments))
                kept.write_text(text, encoding="utf-8")
            return json.loads(kept.read_text(encoding="utf-8"))
