"""Run work in a thread of this process, with a time limit, where forking is not safe.

The thread is asked to stop when its time is over, and mostly does. Its patches of modules and the processes that it
started remain.
"""

import ctypes
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout

from flashlab.grading.poison import poisoned
from flashlab.grading.records import PRINTED, Run

BEAT = 0.05  # seconds between two looks at the work


def run(
    work: Callable[[], Iterator],
    patience: float,
    on_wait: Callable[[int], None] = lambda done: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Run:
    """Run work in a thread. Patches and redirections, which all threads see, are undone even if it never stops."""
    result, stop, printed = Run(end="patience"), threading.Event(), io.StringIO()

    def go():
        try:
            for value in work():
                if stop.is_set():
                    return
                result.printed[-1] = printed.getvalue()[: PRINTED + 1]
                result.printed.append("")
                printed.truncate(printed.seek(0))
                result.values.append(value)
            result.end = ""
        except BaseException as error:
            if not stop.is_set():
                result.end = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=go, daemon=True)
    start = time.monotonic()
    out, err = (_Apart(thread, printed, onward) for onward in (sys.stdout, sys.stderr))
    with poisoned(), redirect_stdout(out), redirect_stderr(err):
        thread.start()
        while thread.is_alive() and time.monotonic() - start <= patience and not interrupted():
            thread.join(BEAT)
            on_wait(len(result.values))
        stop.set()
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
            thread.join(1)  # most stop at once
    result.seconds = result.waited = time.monotonic() - start
    return result


class _Apart(io.TextIOBase):
    """A standard output that stores the output of one thread and passes on that of the others."""

    def __init__(self, thread, own, onward):
        self.thread, self.own, self.onward = thread, own, onward

    def write(self, text):
        return (self.own if threading.current_thread() is self.thread else self.onward).write(text)

    def flush(self):
        self.onward.flush()

    def close(self):
        """Leave ``onward`` alone: it may be closed when Python deletes this object, which would flush it."""
