"""The benchmark without a GPU: everyone has a turn in every round, wrong results are not timed, and it says so."""

import json
import re

import pytest
import torch
import torch.nn.functional as F

from flashlab.bench import round_robin
from flashlab.bench.round_robin import Cell

FORWARD = Cell("forward", d=16, causal=False, N=32, tokens=64, width=32)
BACKWARD = Cell("backward", d=16, causal=True, N=32, tokens=64, width=32)


def right(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def same(q, k, v, causal):
    return right(q.float(), k.float(), v.float(), causal).to(q.dtype)


def wrong(q, k, v, causal):
    return 1.05 * right(q, k, v, causal)


def not_a_number(q, k, v, causal):
    return right(q, k, v, causal) * float("nan")


def unable(q, k, v, causal):
    raise RuntimeError("No available kernel.\nAborting execution.")


class Clock:
    """A timer that runs what it is given, and says 1, 2, 3, ... milliseconds."""

    def __init__(self):
        self.ms = 0.0

    def __call__(self, run):
        assert all(torch.is_tensor(x) for x in run())
        self.ms += 1
        return self.ms


def measured(cells, functions, rounds=3, tell=lambda *_: None):
    options = {"gap": 0, "timer": Clock(), "device": "cpu", "dtype": torch.bfloat16}
    return round_robin.measure(cells, functions, rounds=rounds, tell=tell, **options)


def test_the_grid_has_the_same_tokens_and_width_everywhere():
    for d in (64, 128):
        for N in (1024, 4096, 16384):
            B, H, N_, d_ = Cell("forward", d, False, N, 16384, 2048).shape
            assert (B * N_, H * d_) == (16384, 2048)


def test_flops_count_two_products_forward_and_five_backward_and_half_when_causal():
    B, H, N, d = 1, 32, 16384, 64
    forward = Cell("forward", d, False, N, 16384, 2048).flops
    assert forward == 2 * (2 * B * H * N * N * d)
    assert Cell("backward", d, False, N, 16384, 2048).flops == 2.5 * forward
    assert Cell("forward", d, True, N, 16384, 2048).flops == forward / 2


def test_reported_is_the_median_over_the_rounds():
    rows, left_out = measured([FORWARD], {"right": right, "same": same})
    assert not left_out
    assert [row["rounds_ms"] for row in rows] == [[1, 4, 5], [2, 3, 6]]
    assert [row["ms"] for row in rows] == [4, 3]
    assert rows[0]["tflops"] == FORWARD.flops / 4e-3 / 1e12
    assert all(row["first_s"] > 0 for row in rows)


@pytest.mark.parametrize("cell", [FORWARD, BACKWARD], ids=str)
@pytest.mark.parametrize("function", [wrong, not_a_number])
def test_wrong_results_are_not_timed(cell, function):
    rows, left_out = measured([cell], {"right": right, "wrong": function})
    assert [row["impl"] for row in rows] == ["right"]
    assert re.fullmatch(r"results differ by [0-9.a-z]+ from right's", left_out[f"{cell}: wrong"])


def test_what_cannot_run_is_left_out_with_its_reason():
    rows, left_out = measured([FORWARD], {"unable": unable, "right": right, "same": same})
    assert [row["impl"] for row in rows] == ["right", "same"]
    assert left_out == {"forward d=16 full N=32: unable": "No available kernel."}


def test_backward_times_the_gradients_and_not_the_forward_pass():
    calls = []

    def counted(q, k, v, causal):
        calls.append(causal)
        return right(q, k, v, causal)

    rows, _ = measured([BACKWARD], {"counted": counted}, rounds=2)
    assert calls == [True] and rows[0]["pass"] == "backward"


def test_backward_that_differs_is_noticed_where_the_forward_agrees():
    def detached(q, k, v, causal):
        return right(q, k, v.detach(), causal) + 0 * v

    _, left_out = measured([BACKWARD], {"right": right, "detached": detached})
    assert list(left_out) == [f"{BACKWARD}: detached"]


def test_progress_counts_to_the_end():
    told = []
    measured([FORWARD, BACKWARD], {"right": right, "same": same}, rounds=2, tell=lambda *args: told.append(args))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert {total for _, total, _ in told} == {8} and told[-1][0] == 8


def test_rows_fit_the_schema_and_json():
    rows, _ = measured([FORWARD, BACKWARD], {"right": right})
    assert json.loads(json.dumps(rows)) == rows
    assert rows[1].keys() == {"pass", "impl", "d", "causal", "N", "ms", "tflops", "rounds_ms", "first_s"}
    assert (rows[1]["pass"], rows[1]["impl"], rows[1]["d"], rows[1]["causal"], rows[1]["N"]) == (
        "backward", "right", 16, True, 32,
    )  # fmt: skip


def test_table_has_a_line_a_cell_and_dashes_for_what_is_missing():
    speeds = [("forward", "flashlab", 90), ("forward", "cudnn", 100), ("backward", "cudnn", 50)]
    rows = [{"pass": p, "impl": name, "d": 64, "causal": True, "N": 1024, "tflops": t} for p, name, t in speeds]
    head, forward, backward = round_robin.table(rows).splitlines()
    assert head.split() == ["TFLOP/s", "flashlab", "cudnn", "ours/cudnn"]
    assert forward.split()[-3:] == ["90", "100", "0.90"]
    assert backward.split()[-2:] == ["–", "50"]


@pytest.mark.parametrize("name", ["math", "efficient", "flash", "cudnn"])
def test_a_backend_of_torch_computes_attention_or_refuses(name):
    q, k, v = torch.randn(3, 1, 2, 32, 16)
    try:
        O = round_robin.implementation(name)(q, k, v, True)
    except RuntimeError:
        assert name != "math"
    else:
        torch.testing.assert_close(O, right(q, k, v, True))


def test_default_grid():
    options = round_robin.arguments([])
    assert options.passes == ["forward", "backward"] and options.masks == ["full", "causal"]
    assert (options.d, options.N, options.tokens, options.width) == ([64, 128], [1024, 4096, 16384], 16384, 2048)
    assert options.rounds == 3 and options.gap == 0.3 and options.dtype == "bfloat16"
    assert set(options.impls) == {"flashlab", "cudnn", "flash", "efficient", "math", "flex"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_nothing_is_measured_and_a_sentence_says_so(capsys, tmp_path):
    assert round_robin.main(["--json", str(tmp_path / "times.json")]) == 2
    captured = capsys.readouterr()
    assert "its times are not performance, so nothing is measured" in captured.err and not captured.out
    assert not list(tmp_path.iterdir())


def test_main_prints_the_table_and_stores_all_with_its_origin(monkeypatch, capsys, tmp_path):
    origin = {
        "device": "a card",
        "driver": "1.2",
        "versions": {"torch": "3"},
        "date": "2026-01-02",
        "command": "python",
    }
    kernels = pytest.importorskip("flashlab.kernels")
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(round_robin, "environment", lambda argv: origin)
    monkeypatch.setattr(round_robin, "implementation", lambda name: {"cudnn": right, "flashlab": same}[name])
    monkeypatch.setattr(round_robin, "launch_overhead", lambda functions: dict.fromkeys(functions, 12.5))
    real = round_robin.measure
    monkeypatch.setattr(
        round_robin, "measure", lambda *args, **o: real(*args, **(o | {"device": "cpu", "timer": Clock()}))
    )
    small = "--passes forward --d 16 --N 32 64 --masks full --tokens 64 --width 32 --gap 0".split()
    file = tmp_path / "times.json"
    assert round_robin.main([*small, "--impls", "flashlab", "cudnn", "--json", str(file)]) == 0
    stored = json.loads(file.read_text())
    assert stored | origin == stored
    assert [(row["impl"], row["N"]) for row in stored["rows"]] == [
        ("flashlab", 32), ("cudnn", 32), ("flashlab", 64), ("cudnn", 64),
    ]  # fmt: skip
    assert stored["launch_us"] == {"flashlab": 12.5, "cudnn": 12.5} and stored["left_out"] == {}
    printed = capsys.readouterr().out
    assert printed.startswith("device a card, driver 1.2, date 2026-01-02\n") and "N=64" in printed


def test_origin_names_device_driver_versions_date_and_command(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    origin = round_robin.environment(["--N", "1024"])
    assert (origin["device"], origin["driver"]) == ("a card", "unknown")
    assert origin["versions"].keys() >= {"torch", "cuda", "cudnn"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", origin["date"])
    assert origin["command"] == "python -m flashlab.bench --N 1024"
