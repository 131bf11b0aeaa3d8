"""What a test leaves running."""

import os
from pathlib import Path


def children() -> list[str]:
    """Return the ids of the processes that this one has started and that still are.

    Compare with those before a test: other tests may have started helpers of ``multiprocessing``, which stay.
    """
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
