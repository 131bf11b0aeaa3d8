"""The order of turns, and the GPU timer with a fake GPU."""

import collections
import statistics

import pytest
import torch

from flashlab.machine import timing


def test_each_name_has_one_turn_per_round_and_each_round_starts_one_later():
    assert list(timing.round_robin("abc", 4)) == list("abcbcacababc")


@pytest.mark.parametrize("names, rounds", [("", 3), ("ab", 0)])
def test_without_names_or_rounds_there_is_no_turn(names, rounds):
    assert list(timing.round_robin(names, rounds)) == []


class Gpu:
    """A GPU whose calls take 8, 9, 10, 8, ... ms, and which logs what happens between the readings of its clock."""

    def __init__(self):
        self.now, self.log = 0, []

    def call(self):
        self.log.append("call")
        self.now += 8 + self.log.count("call") % 3

    def event(self, enable_timing):
        gpu = self

        class Event:
            def record(self):
                assert enable_timing
                gpu.log.append("clock")
                self.at = gpu.now

            def elapsed_time(self, end):
                return end.at - self.at

        return Event()


def test_gpu_timer_flushes_the_cache_before_each_call_and_takes_the_median(monkeypatch):
    gpu = Gpu()
    flush = type("Flush", (), {"zero_": lambda self: gpu.log.append("flush")})()
    monkeypatch.setattr(torch, "empty", lambda size, **options: flush)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "CALL_MS", 63)
    assert timing.gpu_timer(gpu.call) == statistics.median([9, 10, 8, 9, 10, 8, 9])  # 63 ms of calls of 9 ms
    assert gpu.log == ["flush", "clock", "call", "clock"] * (3 + 7)
    assert collections.Counter(gpu.log)["call"] == 10
    timing.gpu_timer(gpu.call, ms=90)
    assert collections.Counter(gpu.log)["call"] == 10 + 3 + 10
