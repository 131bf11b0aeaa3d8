"""The processes that a test leaves running."""

import os
from pathlib import Path


def children() -> list[str]:
    """Return the ids of the processes that this one has started and that still run.

    Compare with the list before a test: helpers of ``multiprocessing`` stay, and other tests may have started them.
    """
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
