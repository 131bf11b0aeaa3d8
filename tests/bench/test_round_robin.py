"""The benchmark without a GPU: every implementation has a turn per round; none with wrong results is timed."""

import json
import re
import sys

import pytest
import torch
import torch.nn.functional as F

round_robin = pytest.importorskip("flashlab.bench.round_robin", reason="the kernels need triton, which is for Linux")

from flashlab.bench import hopper, record  # noqa: E402
from flashlab.bench.competitors import implementation  # noqa: E402
from flashlab.bench.round_robin import Cell  # noqa: E402

FORWARD = Cell("forward", d=16, causal=False, N=32, tokens=64, width=32)
BACKWARD = Cell("backward", d=16, causal=True, N=32, tokens=64, width=32)
SMALL = "--passes forward --d 16 --N 32 64 --masks full --tokens 64 --width 32 --gap 0".split()
ORIGIN = {"device": "a card", "driver": "1.2", "versions": {"torch": "3"}, "date": "2026-01-02", "command": "python"}


def right(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def same(q, k, v, causal):
    return right(q.float(), k.float(), v.float(), causal).to(q.dtype)


def wrong(q, k, v, causal):
    return 1.05 * right(q, k, v, causal)


def not_a_number(q, k, v, causal):
    return right(q, k, v, causal) * float("nan")


class NanGradient(torch.autograd.Function):
    """The identity, with a gradient that is NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy * float("nan")


def nan_in_the_last_gradient(q, k, v, causal):
    return right(q, k, NanGradient.apply(v), causal)


def detached(q, k, v, causal):
    return right(q, k, v.detach(), causal) + 0 * v


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares results on a GPU")
def test_results_on_a_gpu_are_compared():
    x = torch.ones(3, device="cuda")
    assert round_robin.doubt([x], ("right", [x])) is None
    assert "differ by 1 from right" in round_robin.doubt([2 * x], ("right", [x]))


class Clock:
    """A timer that calls its argument and returns 1, 2, 3, ... milliseconds; it raises at ``breaks_at``."""

    def __init__(self, breaks_at=None):
        self.ms, self.breaks_at, self.error = 0.0, breaks_at, RuntimeError("out of memory\nsince ...")

    def __call__(self, run):
        assert all(torch.is_tensor(x) for x in run())
        self.ms += 1
        if self.ms == self.breaks_at:
            raise self.error
        return self.ms


def measured(cell, functions, clock=None, **options):
    options = {"gap": 0, "timer": clock or Clock(), "device": "cpu"} | options
    return round_robin.measure(cell, functions, **options)


def test_the_grid_has_the_same_tokens_and_width_everywhere():
    for d in (64, 128):
        for N in (1024, 4096, 16384):
            B, H, N_, d_ = Cell("forward", d, False, N).shape
            assert (B * N_, H * d_) == (16384, 2048)


def test_flops_count_two_products_forward_and_five_backward_and_half_when_causal():
    B, H, N, d = 1, 32, 16384, 64
    forward = Cell("forward", d, False, N).flops
    assert forward == 2 * (2 * B * H * N * N * d)
    assert Cell("backward", d, False, N).flops == 2.5 * forward
    assert Cell("forward", d, True, N).flops == forward / 2


def test_the_time_is_the_median_over_the_rounds():
    rows, left_out = measured(FORWARD, {"right": right, "same": same})
    assert not left_out
    assert [row["rounds_ms"] for row in rows] == [[1, 4, 5], [2, 3, 6]]
    assert [row["ms"] for row in rows] == [4, 3]
    assert rows[0]["tflops"] == FORWARD.flops / 4e-3 / 1e12
    assert all(row["first_s"] > 0 for row in rows)


@pytest.mark.parametrize(
    "cell, function, message",
    [
        (FORWARD, wrong, r"results differ by 0\.05\d* from right's"),
        (BACKWARD, wrong, r"results differ by 0\.05\d* from right's"),
        (BACKWARD, detached, "results differ by 1 from right's"),
        (FORWARD, not_a_number, "results are not finite"),
        (BACKWARD, nan_in_the_last_gradient, "results are not finite"),
    ],
)
def test_wrong_results_are_not_timed(cell, function, message):
    rows, left_out = measured(cell, {"right": right, "odd": function})
    assert [row["impl"] for row in rows] == ["right"]
    assert list(left_out) == [f"{cell}: odd"] and re.fullmatch(message, left_out[f"{cell}: odd"])


def test_the_standard_is_the_first_result_that_is_finite():
    rows, left_out = measured(FORWARD, {"odd": not_a_number, "right": right, "same": same})
    assert [row["impl"] for row in rows] == ["right", "same"]
    assert left_out == {f"{FORWARD}: odd": "results are not finite"}


@pytest.mark.parametrize(
    "error, message",
    [
        (RuntimeError("No available kernel.\nAborting execution."), "No available kernel."),
        (ValueError("the Hopper kernels cannot do this: no Hopper"), "the Hopper kernels cannot do this: no Hopper"),
        (NotImplementedError(), "NotImplementedError"),
        (KeyError("d"), "'d'"),
    ],
)
def test_a_competitor_that_cannot_run_is_left_out_with_its_reason(error, message):
    def unable(q, k, v, causal):
        raise error

    rows, left_out = measured(FORWARD, {"unable": unable, "right": right, "same": same})
    assert [row["impl"] for row in rows] == ["right", "same"]
    assert left_out == {"forward d=16 full N=32: unable": message}


def test_a_competitor_that_breaks_while_it_is_timed_is_left_out_and_the_others_go_on():
    rows, left_out = measured(FORWARD, {"right": right, "same": same}, Clock(breaks_at=3))
    assert [row["impl"] for row in rows] == ["right"]  # turns: right, same, same (breaks), right, right
    assert len(rows[0]["rounds_ms"]) == 3
    assert left_out == {f"{FORWARD}: same": "out of memory"}


def test_where_nothing_runs_there_are_no_rows():
    rows, left_out = measured(FORWARD, {"nan": not_a_number})
    assert rows == [] and list(left_out) == [f"{FORWARD}: nan"]


@pytest.mark.parametrize("options", [{"rounds": 0}, {"rounds": -1}, {"gap": -1}, {"gap": float("nan")}], ids=str)
def test_impossible_rounds_and_gaps_are_refused(options):
    with pytest.raises(ValueError, match="expected at least one round and a gap of 0 s or more"):
        measured(FORWARD, {"right": right}, **options)


def test_backward_times_the_gradients_and_not_the_forward_pass():
    calls = []

    def counted(q, k, v, causal):
        calls.append(causal)
        return right(q, k, v, causal)

    rows, _ = measured(BACKWARD, {"counted": counted}, rounds=2)
    assert calls == [True] and rows[0]["pass"] == "backward"


def test_progress_counts_to_the_end():
    reports = []
    measured(FORWARD, {"right": right, "same": same}, rounds=2, tell=lambda *args: reports.append(args))
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    assert {total for _, total, _ in reports} == {4} and reports[-1][0] == 4


def test_rows_have_their_cell_and_fit_into_json():
    row = measured(BACKWARD, {"right": right}).rows[0]
    assert json.loads(json.dumps(row)) == row
    assert row.keys() == {"pass", "impl", "d", "causal", "N", "ms", "tflops", "rounds_ms", "first_s"}
    assert [row[key] for key in ("pass", "impl", "d", "causal", "N")] == ["backward", "right", 16, True, 32]


def test_table_has_a_line_per_cell_and_dashes_for_what_is_missing():
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
        O = implementation(name)(q, k, v, True)
    except RuntimeError:
        assert name != "math"
    else:
        torch.testing.assert_close(O, right(q, k, v, True))


@pytest.mark.parametrize("name", ["flashlab", "portable"])
def test_ours_is_found_by_name(name):
    from flashlab.kernels import DEVICE

    q, k, v = torch.randn(3, 1, 2, 32, 16, device=DEVICE)
    torch.testing.assert_close(implementation(name)(q, k, v, True), right(q, k, v, True))


def test_an_unknown_competitor_is_refused_by_name():
    with pytest.raises(ValueError, match="expected one of flashlab, .*, fa4, got 'fa1'"):
        implementation("fa1")


def test_without_flash_attention_4_it_is_left_out_and_the_reason_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    _, left_out = measured(FORWARD, {"right": right, "fa4": implementation("fa4")})
    assert left_out == {f"{FORWARD}: fa4": "FlashAttention-4 is not installed: pip install flash-attn-4"}


# The command line


def test_default_grid():
    options = round_robin.arguments([])
    assert options.passes == ["forward", "backward"] and options.masks == ["full", "causal"]
    assert (options.d, options.N, options.tokens, options.width) == ([64, 128], [1024, 4096, 16384], 16384, 2048)
    assert options.rounds == 3 and options.gap == 0.3 and options.dtype == "bfloat16"
    assert set(options.impls) == {"flashlab", "cudnn", "flash", "efficient", "math", "flex"}


@pytest.mark.parametrize(
    "line, message",
    [
        ("--rounds 0", "expected a whole number of at least 1, got 0"),
        ("--rounds 1.5", "expected a whole number of at least 1, got 1.5"),
        ("--d 64 0", "expected a whole number of at least 1, got 0"),
        ("--N 0", "expected a whole number of at least 1, got 0"),
        ("--gap=-1", "expected 0 seconds or more, got -1"),
        ("--gap nan", "expected 0 seconds or more, got nan"),
        ("--gap soon", "expected 0 seconds or more, got soon"),
        ("--d 64 --width 32", "--width 32 is less than one head of 64 columns"),
        ("--impls fa1", "invalid choice: 'fa1'"),
        ("--json /nonexistent/times.json", "there is no folder /nonexistent"),
        ("--json .", ". is a folder"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_measured(line, message, capsys):
    with pytest.raises(SystemExit) as exit:
        round_robin.main(line.split())
    assert exit.value.code == 2 and message in capsys.readouterr().err


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU, but measure ``right`` and ``same`` on the CPU; return the clock that is used."""
    monkeypatch.setattr(record, "need_gpu", lambda: None)
    monkeypatch.setattr(record, "origin", lambda module, argv: dict(ORIGIN))
    monkeypatch.setattr(round_robin, "implementation", lambda name: {"cudnn": right, "flashlab": same}[name])
    monkeypatch.setattr(round_robin.calls, "overhead", lambda functions: dict.fromkeys(functions, {"forward": 12.5}))
    real, clock = round_robin.measure, Clock()
    on_cpu = {"device": "cpu", "timer": clock}
    monkeypatch.setattr(round_robin, "measure", lambda *args, **options: real(*args, **(options | on_cpu)))
    return clock


def run(*argv):
    return round_robin.main([*SMALL, "--impls", "flashlab", "cudnn", *argv])


def test_main_prints_the_table_and_stores_all_with_its_origin(gpu, capsys, tmp_path):
    file = tmp_path / "times.json"
    assert run("--json", str(file)) == 0
    stored = json.loads(file.read_text())
    assert stored | ORIGIN == stored
    assert [(row["impl"], row["N"]) for row in stored["rows"]] == [
        ("flashlab", 32), ("cudnn", 32), ("flashlab", 64), ("cudnn", 64),
    ]  # fmt: skip
    assert (
        stored["launch_us"] == {"flashlab": {"forward": 12.5}, "cudnn": {"forward": 12.5}} and stored["left_out"] == {}
    )
    assert "interrupted" not in stored
    printed = capsys.readouterr().out
    assert printed.startswith("device a card, driver 1.2, date 2026-01-02\n") and "N=64" in printed


def test_ctrl_c_keeps_what_was_measured(gpu, capsys, tmp_path):
    gpu.breaks_at, gpu.error = 9, KeyboardInterrupt()  # in the second cell: each has six turns
    file = tmp_path / "times.json"
    assert run("--json", str(file)) == 130
    stored = json.loads(file.read_text())
    assert [row["N"] for row in stored["rows"]] == [32, 32] and stored["interrupted"] is True
    captured = capsys.readouterr()
    assert "N=32" in captured.out and "interrupted: 2 rows were measured" in captured.err


def test_the_file_has_each_cell_as_soon_as_it_is_measured(gpu, monkeypatch, tmp_path):
    file = tmp_path / "times.json"
    gpu.breaks_at, gpu.error = 9, SystemError("the process is killed")
    monkeypatch.setattr(record, "reason", lambda failure: (_ for _ in ()).throw(failure))  # no handler returns
    with pytest.raises(SystemError):
        run("--json", str(file))
    assert [row["N"] for row in json.loads(file.read_text())["rows"]] == [32, 32]


def test_where_the_file_cannot_be_written_the_results_are_printed(gpu, monkeypatch, capsys, tmp_path):
    def full(path, report):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write", full)
    assert run("--json", str(tmp_path / "times.json")) == 1
    captured = capsys.readouterr()
    assert "times.json could not be written: No space left on device." in captured.err
    assert len(json.loads(captured.out[captured.out.index("{\n") :])["rows"]) == 4


def test_a_competitor_without_a_row_is_named_on_standard_error(gpu, capsys):
    gpu.breaks_at = 2  # the second turn is that of cudnn, and there is one cell
    assert run("--N", "32") == 0
    assert capsys.readouterr().err == "not timed in any cell: cudnn\n"


def test_the_hopper_command_refuses_to_start_without_a_rival_of_its_command_line(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(SystemExit) as exit:
        hopper.main(["--json", str(tmp_path / "hopper.json"), "--impls", "hopper", "fa4"])
    message = capsys.readouterr().err
    assert exit.value.code == 2 and not list(tmp_path.iterdir())
    assert "FlashAttention-4 is not installed" in message and "leave fa4 out of --impls" in message


def test_the_hopper_command_measures_the_rungs_forward_alone(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(hopper, "implementation", lambda name: right)
    monkeypatch.setattr(hopper, "RUNGS", {"rung 1": same, "rung 2": same})
    monkeypatch.setattr(
        round_robin, "measure", lambda cell, functions, **_: ([{"pass": cell.direction, "n": len(functions)}], {})
    )
    monkeypatch.setattr(round_robin, "table", lambda rows: "")
    file = tmp_path / "hopper.json"
    assert hopper.main(["--json", str(file), "--impls", "hopper", "rungs"]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["pass"], row["n"]) for row in rows] == 12 * [("forward", 3)] + 12 * [("backward", 1)]
    assert hopper.main(["--json", str(file), "--impls", "rungs", "--passes", "forward"]) == 0
    assert len(json.loads(file.read_text())["rows"]) == 12
