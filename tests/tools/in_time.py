"""Run checks that may hang, in a process of their own: ``OneProcess``."""

import multiprocessing
import sys
import traceback

import pytest


class OneProcess:
    """A process that runs one check after the other, so that torch is imported, and a kernel compiled, only once.

    After a check that failed or did not end, the next one gets a new process: the GPU may be in any state.
    """

    def __init__(self, seconds):
        self.seconds = seconds  # for one check
        self.process = self.connection = None

    def run(self, check, *args):
        """Run a function of a module in the process. Fail if it fails, or after ``seconds``."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, its_end = context.Pipe()
            self.process = context.Process(target=_serve, args=(its_end,), daemon=True)
            self.process.start()
            its_end.close()  # so that the end of the process is the end of the connection
        self.connection.send((check, args))
        if not self.connection.poll(self.seconds):
            self.end()
            pytest.fail(f"not done after {self.seconds} s: a warp waits at a barrier, or the compiler is slow")
        try:
            failure = self.connection.recv()
        except EOFError:
            failure = "the process died: see what it wrote"
        if failure:
            self.end()
            pytest.fail(failure)

    def end(self):
        """End the process, whatever it does. The next check gets a new one."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def _serve(connection):
    """Run the checks that come, and answer each with None or the traceback of its failure."""
    while True:
        check, args = connection.recv()
        try:
            check(*args)
            if "torch" in sys.modules:  # the other workers need the GPU's memory, too
                sys.modules["torch"].cuda.empty_cache()
        except Exception:
            connection.send(traceback.format_exc())
        else:
            connection.send(None)
