"""Checks that may never end share a process until one of them fails. The next check gets a new process."""

import math
import os
import time

import pytest

from tests.tools.in_time import OneProcess

PATIENT = 600  # seconds, after which a hang ends


def test_one_process_runs_all_checks_until_one_fails_dies_or_never_ends():
    other = OneProcess(PATIENT)
    pids = []

    def runs():
        other.run(math.sqrt, 4)
        pids.append(other.process.pid)

    runs()
    runs()
    for check, argument, seconds, message in (
        (math.sqrt, -1, PATIENT, "ValueError"),
        (os._exit, 3, PATIENT, "the process died"),
        (time.sleep, 600, 0.5, "not done after 0.5 s"),
    ):
        other.seconds = seconds
        with pytest.raises(pytest.fail.Exception, match=message):
            other.run(check, argument)
        other.seconds = PATIENT
        runs()
    other.end()
    assert pids[0] == pids[1] and len(set(pids)) == 4
