"""The measurement of float8 without a GPU: every implementation has a turn, and wrong outputs are not timed."""

import pytest

pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")
from flashlab.bench import float8 as bench  # noqa: E402
from flashlab.bench import round_robin  # noqa: E402
from flashlab.kernels.configurations import Configuration  # noqa: E402

CELL = round_robin.Cell("forward", d=16, causal=True, N=256, tokens=256, width=32)


class Clock:
    """A timer that calls its argument and returns 1, 2, 3, ... milliseconds."""

    def __init__(self):
        self.ms = 0.0

    def __call__(self, run):
        run()
        self.ms += 1
        return self.ms


@pytest.mark.exhaustive
def test_every_cell_is_swept_and_compared(monkeypatch):
    monkeypatch.setattr(bench, "NARROW", bench.NARROW[:2])
    report = {"rows": [], "sweep": [], "left_out": {}}
    bench.measure(CELL, "portable", report, 2, timer=Clock(), device="cpu", gap=0)
    assert [row["launch"] for row in report["sweep"]] == [[64, 64, 4, 3], [64, 128, 4, 2]]
    assert [row["ms"] for row in report["sweep"]] == [1, 2]
    timed = {row["impl"]: row for row in report["rows"]}
    implementations = {*bench.competitors("portable", Configuration(64, 64, 4, 3)), "quantise"}
    assert timed.keys() == implementations - {"cudnn"}  # cuDNN needs a GPU
    assert list(report["left_out"]) == [f"{CELL}: cudnn"]
    assert all(len(row["rounds_ms"]) == 2 for row in timed.values()) and timed["quantise"]["tflops"] is None
    assert "float8" in bench.table(report["rows"]) and "–" in bench.table(report["rows"])


def test_a_launch_that_fails_is_named(monkeypatch):
    def refused(*_):
        raise RuntimeError("out of resource: shared memory\nmore")

    monkeypatch.setattr(bench, "attend", refused)
    report = {"sweep": [], "left_out": {}}
    assert bench.sweep(CELL, "portable", report, Clock(), "cpu") is None
    assert len(report["left_out"]) == len(bench.NARROW)
    assert set(report["left_out"].values()) == {"out of resource: shared memory"}


@pytest.mark.parametrize(
    "wrong", [lambda x: 0 * x, lambda x: x.flip(2), lambda x: x.mean(2, keepdim=True).expand_as(x)]
)
def test_wrong_outputs_are_not_timed(wrong):
    functions = {"flashlab": bench.implementation("flashlab"), "wrong": lambda *a: wrong(bench.float8("portable")(*a))}
    run = round_robin.measure(CELL, functions, rounds=1, gap=0, timer=Clock(), device="cpu", tolerance=bench.TOLERANCE)
    assert "results differ" in run.left_out[f"{CELL}: wrong"]


def test_tiles_lie_within_blocks_of_one_scale():
    for d in (64, 128, 256):
        assert all(128 % c.Br == 0 and 128 % c.Bc == 0 for c in bench.launches(d))


def test_the_table_has_the_cost_of_two_levels_and_of_quantising():
    place = {"d": 128, "causal": False, "N": 16384}
    rows = [
        place | {"impl": impl, "ms": ms, "tflops": tflops}
        for impl, ms, tflops in (
            ("fastest", 2.0, 1100), ("fastest, one level", 1.6, 1375), ("flashlab", 4.0, 550), ("quantise", 0.1, None),
        )
    ]  # fmt: skip
    line = bench.table(rows).splitlines()[1]
    assert line.split() == ["d=128", "full", "N=16384", "–", "550", "–", "–", "1100", "25.0%", "5.0%"]
