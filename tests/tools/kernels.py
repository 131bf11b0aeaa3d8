"""A pytest plugin for nbval: kernels start as forks, and a test fails as soon as its kernel has died."""

import sys
import time
from queue import Empty
from unittest import mock

sys.modules.setdefault("rfc3987_syntax", None)  # with it, jsonschema compiles 38 grammars: 2.5 s per worker

import nbval.plugin  # noqa: E402
from nbval.kernel import RunningKernel  # noqa: E402

from tests.tools import forked  # noqa: E402

ASK = 0.5  # seconds between two looks at a kernel that is silent


class WatchedKernel(RunningKernel):
    """A kernel of nbval. While a cell waits for a message, it checks that the kernel is alive."""

    def get_message(self, stream, timeout=None):
        """Return a stream's next message. Raises RuntimeError if the kernel has died, queue.Empty at the timeout."""
        end = time.monotonic() + (timeout or float("inf"))
        while True:
            alive = self.is_alive()  # before the read: the last messages of a dying kernel are read, too
            try:
                return super().get_message(stream, timeout=max(min(ASK, end - time.monotonic()), 0))
            except Empty:
                if not alive:
                    status = self.km.provisioner.process.returncode
                    raise RuntimeError(f"the notebook's kernel died in this cell (exit status {status})") from None
                if time.monotonic() >= end:
                    raise


def pytest_configure(config):
    """Let nbval use ``WatchedKernel``, and start kernels as forks on Linux, where forks are safe."""
    nbval.plugin.RunningKernel = WatchedKernel
    if sys.platform == "linux":
        mock.patch("jupyter_client.provisioning.local_provisioner.launch_kernel", forked.launch).start()
