"""The description of this machine, and its two measured speeds: copies and matrix products."""

import numpy as np
import pytest

from flashlab.machine import host


def test_this_machine_is_described():
    here = host.this_machine()
    assert here.cores >= 1 and here.cpu and here.versions["numpy"] == np.__version__
    assert (here.gpu is None) == (here.capability is None)


def test_a_package_that_is_not_installed_has_no_version():
    assert host.versions(["numpy", "no-such-package"]) == {"numpy": np.__version__}


def test_rates_count_both_directions_and_two_operations_per_product(monkeypatch):
    monkeypatch.setattr(host, "_shortest", lambda work, repeats: 2.0)
    assert host.copy_rate(8_000_000) == 8_000_000  # read and written in 2 seconds
    assert host.matmul_rate(10) == 1000  # 2 n^3 in 2 seconds


def test_a_small_copy_is_repeated_between_two_readings_of_the_clock(monkeypatch):
    copies = []
    monkeypatch.setattr(np, "copyto", lambda target, source: copies.append(source.nbytes))
    monkeypatch.setattr(host.time, "perf_counter", iter(range(2)).__next__)
    assert host.copy_rate(1_000_000, repeats=1) == 2 * 4_000_000
    assert copies == [1_000_000] * 8  # four to warm up, four that count


def test_the_fastest_attempt_counts_and_the_first_call_does_not(monkeypatch):
    clock = iter([0, 5, 10, 12, 20, 29])
    monkeypatch.setattr(host.time, "perf_counter", clock.__next__)
    calls = []
    assert host._shortest(lambda: calls.append(1), 3) == 2
    assert len(calls) == 4


@pytest.mark.parametrize(
    "measure, message",
    [
        (lambda: host.copy_rate(7), "nbytes must be a whole number from 8 on, got 7"),
        (lambda: host.matmul_rate(0), "n must be a whole number from 1 on, got 0"),
        (lambda: host.matmul_rate(4, repeats=0), "repeats must be a whole number from 1 on, got 0"),
    ],
)
def test_sizes_and_repeats_below_the_least_are_refused(measure, message):
    with pytest.raises(ValueError, match=message):
        measure()
