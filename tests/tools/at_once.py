"""A pytest plugin: print why a test failed as soon as it has, for runs that may be cut off before they end."""

import pytest


class AtOnce:
    """What prints failures, beside pytest's own reporter, whose dots go on below."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        """Print a report that says of a failure."""
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.line(f"FAILED {report.nodeid} ({report.when}, after {report.duration:.0f} s)", red=True)
            self.terminal.line(report.longreprtext)


@pytest.hookimpl(trylast=True)  # pytest's reporter is there
def pytest_configure(config):
    """Print failures where results come together, not in the workers of xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal and not hasattr(config, "workerinput"):
        config.pluginmanager.register(AtOnce(terminal))
