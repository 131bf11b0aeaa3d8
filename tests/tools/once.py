"""Results that several workers of a test run need, and that take minutes: ``Once``."""

import json
from pathlib import Path


class Once:
    """Call functions once for all processes that share a folder.

    The first process stores the result there as JSON, the others wait. After a failure, the next process tries again.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, function, *arguments: str):
        """Return function(*arguments). The result must fit in JSON, and the arguments in the name of a file."""
        import fcntl  # not on Windows, where nothing is compiled

        path = self.folder / f"{'-'.join([function.__name__, *arguments])}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                text = json.dumps(function(*arguments))
                path.write_text(text, encoding="utf-8")
            return json.loads(path.read_text(encoding="utf-8"))
