"""The process that runs what may never end: it is shared while all goes well, and replaced when something does not."""

import math
import os
import time

import pytest

from tests.tools.in_time import OneProcess

PATIENT = 600  # s, which end a hang


def test_one_process_runs_all_checks_until_one_fails_dies_or_never_ends():
    other = OneProcess(PATIENT)
    used = []

    def holds():
        other.run(math.sqrt, 4)
        used.append(other.process.pid)

    holds()
    holds()
    for check, argument, seconds, message in (
        (math.sqrt, -1, PATIENT, "ValueError"),
        (os._exit, 3, PATIENT, "the process died"),
        (time.sleep, 600, 0.5, "not done after 0.5 s"),
    ):
        other.seconds = seconds
        with pytest.raises(pytest.fail.Exception, match=message):
            other.run(check, argument)
        other.seconds = PATIENT
        holds()
    other.end()
    assert used[0] == used[1] and len(set(used)) == 4
