"""The sweep over short sequences and few heads, with a fake timer: its calls and its rows."""

import pytest

choice = pytest.importorskip("flashlab.bench.choice", reason="the kernels need triton, which is for Linux")


def test_no_call_is_there_twice_and_grid_and_between_share_no_length():
    places = list(choice.places())
    assert len(places) == len(set(places))
    grid, between = ({place.shape[2] for place in places if place.set == name} for name in ("grid", "between"))
    assert not grid & between
    for place in places:
        B, H, N, d = place.shape
        assert B * H == place.heads and N == place.N and d == place.d and B * H * N <= choice.MOST


def test_the_better_of_two_rounds_counts(monkeypatch):
    times = iter([2e-3, 3e-3, 9e-3, 5e-3, 4e-3, 1e-3, 8e-3, 1e-3])  # ms: round 2 begins with hopper
    monkeypatch.setattr(choice, "replayed", lambda function, place: function)
    monkeypatch.setattr(choice.timing, "gpu_timer", lambda run, ms: next(times))
    row = choice.row(choice.Place("between", "backward", 64, True, 1, 333, 12))
    assert (row["set"], row["pass"], row["B"], row["H"], row["N"]) == ("between", "backward", 1, 12, 333)
    assert [row[name] for name in ("portable", "hopper", "cudnn", "flash")] == [1.0, 3.0, 1.0, 5.0]


def test_an_implementation_that_cannot_compute_a_call_is_left_out(monkeypatch):
    def replayed(function, place):
        if function == "hopper":
            raise ValueError("the Hopper kernels cannot do this")
        return function

    monkeypatch.setattr(choice, "implementation", lambda name: name)
    monkeypatch.setattr(choice, "replayed", replayed)
    monkeypatch.setattr(choice.timing, "gpu_timer", lambda run, ms: 1.0)
    row = choice.row(choice.Place("widths", "forward", 192, False, 2, 1000, 16))
    assert "hopper" not in row and row["portable"] == row["flash"] == 1000 and (row["H"], row["Hk"]) == (16, 8)
