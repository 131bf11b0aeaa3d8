"""A pytest plugin: print each failure as soon as it happens, for runs that may be cut off before they end."""

import pytest


class AtOnce:
    """Print failures between the dots of pytest's own reporter."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        """Print the report of a failure."""
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.line(f"FAILED {report.nodeid} ({report.when}, after {report.duration:.0f} s)", red=True)
            self.terminal.line(report.longreprtext)


@pytest.hookimpl(trylast=True)  # after pytest has registered its reporter
def pytest_configure(config):
    """Print failures in the main process, not in the workers of xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal and not hasattr(config, "workerinput"):
        config.pluginmanager.register(AtOnce(terminal))
