"""The answers are those of the stored measurements. Without a measurement, an answer says so and names the nearest."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from flashlab.course import data, doctor
from flashlab.course.measurements import READERS, capability_of, card_of, cells, rows
from flashlab.course.versions import BY_NAME, DTYPES, VERSIONS, Call
from flashlab.course.which_version_when import PUBLISHED, TIE, advice, neighbours, sentence, table, which
from flashlab.machine.host import this_machine
from tests.tools.long import long

CALL = Call(1, 16, 16384, 128, 16384, 16, mask="causal")


def stored(file, **wanted):
    """Return the rows of a file that have these values."""
    return [row for row in data.measured(file)["rows"] if all(row.get(name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("step", [7, long(1)], ids=["some", "all"])
def test_every_measured_call_is_answered_by_its_fastest_row(step):
    calls = {cell[0].call: cell for cell in cells()}
    for call, cell in list(calls.items())[::step]:
        answer = which(call)
        assert answer.measured and answer.version == answer.cell[0].version, call
        assert answer.cell[0].us == min(row.us for row in answer.cell)
        assert len(answer.cell) >= len(cell) and {row.call for row in answer.cell} == {call}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("d, causal, N", [(64, False, 1024), (64, True, 16384), (128, True, 4096)])
def test_the_answers_are_those_of_the_file(direction, d, causal, N):
    shape = stored("h200_hopper", **{"pass": direction, "d": d, "causal": causal, "N": N})
    fastest = max((row for row in shape if row["impl"] in ("hopper", "portable", "cudnn", "fa4")),
                  key=lambda row: row["tflops"])  # fmt: skip
    names = {"hopper": "flashlab Hopper", "portable": "flashlab portable", "cudnn": "SDPA cuDNN",
             "fa4": "FlashAttention-4"}  # fmt: skip
    H, mask = 2048 // d, "causal" if causal else "full"
    answer = which(Call(16384 // N, H, N, d, N, H, mask=mask, direction=direction))
    assert answer.version == names[fastest["impl"]]
    assert answer.cell[0].us == pytest.approx(1e3 * fastest["ms"])
    assert answer.cell[0].date == data.measured("h200_hopper")["date"]


def test_training_is_both_passes_of_one_version():
    (forward,) = stored("h200_hopper", **{"pass": "forward", "d": 128, "causal": True, "N": 16384, "impl": "fa4"})
    (backward,) = stored("h200_hopper", **{"pass": "backward", "d": 128, "causal": True, "N": 16384, "impl": "fa4"})
    answer = which(CALL._replace(direction="both"))
    (row,) = [row for row in answer.cell if row.version == "FlashAttention-4"]
    assert row.us == 1e3 * (forward["ms"] + backward["ms"])
    assert row.date == data.measured("h200_hopper")["date"]


def test_a_step_of_decoding_and_several_gpus():
    answer = which(Call(1, 32, 1, 128, 131072, 8))
    times = {row["impl"]: row["us"] for row in stored("h200_decoding", part="plain", N=131072)}
    assert {row.version: row.us for row in answer.cell} == {
        "SDPA cuDNN": times["cudnn"], "SDPA FlashAttention-2": times["flash"],
        "FlexAttention": times["flex"], "flashlab decoding": times["flashlab"],
    }  # fmt: skip
    assert which(Call(1, 32, 1, 128, 131072, 8, mask="causal")).cell == answer.cell  # one query sees all keys
    many = which(Call(1, 32, 4 * 32768, 128, 4 * 32768, 8, mask="causal", gpus=4))
    (fastest,) = stored("h200_ring_before", P=4, tokens=32768, direction="forward", variant="all-to-all")
    assert many.measured and many.version == "flashlab all-to-all" and many.cell[0].us == 1e3 * fastest["ms"]


@pytest.mark.parametrize("file, B, H, N, d, options, version", [  # a call of every format
    ("h200_wide", 1, 8, 16384, 256, {}, "flashlab"), ("h200_wide", 1, 10, 16384, 192, {}, "flashlab"),
    ("h200_float8_hopper", 1, 16, 16384, 128, {"dtype": "float8"}, "flashlab float8"),
    ("h200_choice", 2, 16, 4096, 96, {"mask": "causal"}, "flashlab Hopper"),
    ("h200_recomputation", 64, 16, 1024, 64, {"dtype": "float16", "mask": "dropout", "direction": "both"},
     "SDPA FlashAttention-2"),
    ("h200_masks", 1, 16, 16384, 128, {"mask": "window", "window": 1023}, "flashlab Hopper"),
    ("models", 1, 32, 65536, 128, {"mask": "causal", "Hk": 8, "direction": "both"}, None),
    ("models", 1, 128, 4096, 192, {"mask": "causal", "dv": 128}, None),
    ("models", 1, 64, 2048, 64, {"mask": "window and sinks", "Hk": 8, "window": 127}, None),
])  # fmt: skip
def test_a_stored_call_counts_as_measured(file, B, H, N, d, options, version):
    answer = which(Call(B, H, N, d, **{"Nk": N, "Hk": H} | options))
    assert answer.measured and answer.cell[0].file == file and version in (None, answer.version)
    assert "not measured" not in sentence(answer)


def test_every_stored_file_is_read_or_has_no_time_of_a_version():
    without = {  # bytes, code, times of the host, trials with kernels that no call runs, and the rungs
        "shared_memory", "h200_traffic", "hopper_instructions", "blackwell_instructions", "llama", "h200_calls",
        "h200_sweep", "h200_rescaling", "h200_forward_tried", "h200_backward_tried", "h200_backward_limits",
        "h200_portable_tried", "h200_ring_trace", "h200_rungs", "rung_exponentials",
    }  # fmt: skip
    assert set(READERS) | without == set(data.names(".json")) and not set(READERS) & without


def test_every_row_of_the_models_is_read():
    read = [row for row in rows() if row.file == "models" and row.call.direction != "both"]
    assert sorted(row.us for row in read) == sorted(row["gpu_us"] for row in stored("models"))
    assert all(row.host_us for row in read)


def test_times_from_before_a_change_of_the_kernel_are_marked():
    old, day = which(CALL), BY_NAME["flashlab Hopper"].since
    new = which(next(cell for cell in cells() if not any(row.outdated for row in cell))[0].call)
    assert {row.version for row in old.cell if row.outdated} == {"flashlab Hopper", "flashlab portable"}
    assert f"with flashlab's kernels of before {day}, which have changed" in sentence(old) and old.outdated == day
    assert not new.outdated and "have changed" not in sentence(new)
    assert "2026-11-23, before flashlab's kernels changed" in table("both", files=["h200_hopper"])
    assert not any(row.outdated for row in rows() if not row.version.startswith("flashlab"))


def test_the_sentence_says_where_the_gpu_waits_for_python():
    slow = [row for row in rows() if row.host_us and row.host_us > row.us]
    answer = which(min(slow, key=lambda row: row.us).call)
    waits = [f"{row.version} {row.host_us:,.0f} µs" for row in answer.cell if row in slow]
    assert waits and f"the GPU waits for Python: {', '.join(waits)}." in sentence(answer)
    assert "Python" not in sentence(which(Call(1, 32, 65536, 128, 65536, 8, mask="causal")))


def test_another_size_takes_its_neighbour_and_says_which():
    answer = which(CALL._replace(Nq=15000, Nk=15000))
    assert not answer.measured and answer.version == which(CALL).version and answer.cell == which(CALL).cell
    assert answer.differs == ("Nq = 16,384", "Nk = 16,384")
    printed = sentence(answer)
    assert "this call was not measured, and it was the fastest for its neighbour" in printed
    assert "its neighbour, B = 1, H = 16, N = 16,384, d = 128: " in printed and "h200_hopper.json" in printed


def test_a_neighbour_with_a_rival_is_worth_more_than_a_nearer_one_without():
    answer = which(Call(2, 16, 1100, 128, 1100, 16))
    assert not answer.measured and {row.version for row in answer.cell} > {"flashlab Hopper", "flashlab portable"}


@pytest.mark.parametrize("changes, near", [
    ({"B": 3, "Nq": 777, "Nk": 999}, True), ({"H": 8, "Hk": 2}, True), ({"dtype": "float16"}, True),
    ({"d": 96}, False), ({"dv": 64}, False), ({"mask": "full"}, False), ({"direction": "backward"}, False),
    ({"Nq": 1}, False), ({"card": "H100"}, False), ({"gpus": 2}, False), ({"dtype": "float32"}, False),
])  # fmt: skip
def test_neighbours_may_differ_in_batch_heads_lengths_and_16_bit_dtype(changes, near):
    assert neighbours(CALL, CALL._replace(**changes)) == neighbours(CALL._replace(**changes), CALL) == near


@pytest.mark.parametrize("changes, differs", [
    ({"mask": "dropout"}, "mask causal"), ({"dtype": "float32"}, "bfloat16"), ({"card": "L4"}, "card H200"),
    ({"Nq": 8}, "Nq = "), ({"d": 100}, "d = "), ({"mask": "softcap and sinks"}, "mask causal"),
])  # fmt: skip
def test_another_mask_dtype_or_card_is_no_choice_but_names_the_nearest(changes, differs):
    answer = which(CALL._replace(**changes, capability=(8, 9) if "card" in changes else (9, 0)))
    assert answer.version is None and answer.cell and not answer.published
    assert any(it.startswith(differs) or "mask" in it for it in answer.differs)
    printed = sentence(answer)
    assert "no choice" in printed and "neither this nor a neighbour was measured; the nearest was, with" in printed
    assert answer.able and all(name in printed for name in answer.able)


def test_float16_is_as_fast_as_bfloat16():
    answer = which(CALL._replace(dtype="float16"))
    assert answer.version == which(CALL).version and answer.differs == ("bfloat16",)
    assert "d = 128, bfloat16: " in sentence(answer)


def test_a_version_that_cannot_compute_a_call_is_never_the_answer():
    dropped = which(CALL._replace(mask="dropout", direction="backward"))
    assert "flashlab Hopper" in dropped.refused and dropped.version not in dropped.refused
    wide = which(CALL._replace(d=192, direction="backward"))
    assert not {"SDPA cuDNN", "flashlab Hopper"} & wide.refused.keys()  # torch 2.11 computed it
    assert "SDPA cuDNN" in which(CALL._replace(d=192, card="A100", capability=(8, 0))).refused
    assert all(row.version not in wide.refused for row in wide.cell)
    nothing = which(CALL._replace(dtype="float8", mask="sinks"))
    assert nothing.version is None and nothing.able == () and "no version that is known here" in sentence(nothing)


def test_for_a_card_without_measurements_the_answer_is_that_of_a_paper_if_there_is_one():
    for paper in PUBLISHED:
        here = CALL._replace(card=f"{paper.card} SXM", capability=capability_of(paper.card),
                             direction=paper.direction, dtype=paper.dtypes[0])  # fmt: skip
        answer = which(here)
        assert answer.published == paper and answer.version == paper.version and not answer.measured
        assert paper.source in sentence(answer) and "nothing was measured here on this card" in sentence(answer)
    assert which(CALL._replace(card="B200", capability=(10, 0), mask="window")).published is None
    assert which(CALL._replace(card="A100", capability=(8, 0))).version == "FlashAttention-2"


def test_only_installed_versions_are_chosen():
    torch_only = [it.name for it in VERSIONS if it.comes_with_torch]
    answer = which(CALL, installed=torch_only)
    assert {row.version for row in answer.cell} == {"SDPA cuDNN", "FlexAttention", "SDPA FlashAttention-2"}
    assert answer.version == "SDPA cuDNN"
    assert any(line.startswith("With torch alone: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)") for line in advice(CALL))


def test_ties_are_named():
    answer = which(Call(64, 32, 1, 128, 8192, 8))
    assert {answer.version, *answer.ties} == {"flashlab decoding", "SDPA cuDNN"}
    assert all(row.us <= TIE * answer.cell[0].us for row in answer.cell if row.version in answer.ties)
    assert f"As fast, within 3%: {', '.join(answer.ties)}." in sentence(answer)


def test_every_file_that_is_read_has_rows_of_known_versions():
    for file in READERS:
        assert [row for row in rows() if row.file == file], file
    for row in rows():
        assert row.version in BY_NAME or row.call.gpus > 1
        assert json.loads(json.dumps(row.us)) > 0 and row.date >= "2026-11-20" and "H200" in row.device


def test_the_table_has_a_line_per_measured_call_and_says_where_it_is_from():
    lines = table("forward", ("causal",)).splitlines()
    calls = {cell[0].call for cell in cells()}
    listed = [call for call in calls if (call.direction, call.mask, call.gpus) == ("forward", "causal", 1)]
    files = sorted({which(call).cell[0].file for call in listed})
    assert len(lines) == 1 + len(listed) + len(files)
    assert all(f"{file}.json, NVIDIA H200, 2026-11-2" in table("forward", ("causal",)) for file in files)
    some = table("forward", ("causal",), files=["h200_hopper"])
    line = next(line for line in some.splitlines() if " 16,384  128 " in line)
    assert "flashlab Hopper" in line and "× 1.04 FlashAttention-4" in line
    assert "from h200_hopper.json, NVIDIA H200, 2026-11-23" in some.splitlines()[-1] and len(some.splitlines()) == 8
    assert max(map(len, table("forward").splitlines())) <= 98


def test_cards_are_known_by_their_first_words():
    assert card_of("NVIDIA H200") == card_of("H200 SXM") == "H200" and card_of("NVIDIA GeForce RTX 4090") == "RTX 4090"
    assert card_of("NVIDIA A100-SXM4-80GB") == card_of("A100 40 GB") and card_of(None) is None
    assert capability_of("A100-SXM4-80GB") == (8, 0) and capability_of("something") is None


# the command


def ask(*arguments):
    command = [sys.executable, "-m", "flashlab.course.doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_doctor_answers_for_a_shape(capsys):
    doctor.main(["--shape", "1", "16", "16384", "128", "--mask", "causal", "--card", "H200 SXM"])
    printed = capsys.readouterr().out
    assert printed.startswith("On the H200 SXM, for B = 1, H = 16, N = 16,384, d = 128, bfloat16, causal, forward: ")
    assert "flashlab Hopper 1,451 µs; FlashAttention-4 1,511" in printed and "2026-11-23, h200_hopper.json" in printed


def test_the_doctor_answers_for_this_machine(capsys, monkeypatch):
    server = replace(this_machine(), gpu="NVIDIA H200", capability=(9, 0))
    monkeypatch.setattr(doctor, "this_machine", lambda: server)
    doctor.main(["--shape", "16", "64", "1", "128", "--keys", "16384", "--kv-heads", "8"])
    assert capsys.readouterr().out.startswith("On the H200, for B = 16, H = 64, Hk = 8, Nq = 1, Nk = 16,384")
    monkeypatch.setattr(doctor, "this_machine", lambda: replace(server, gpu=None, capability=None))
    doctor.main(["--shape", "1", "2", "64", "16", "--dtype", "float32"])
    printed = capsys.readouterr().out
    assert (
        printed.startswith("Without a GPU, for B = 1, H = 2") and "Can compute it: SDPA math, SDPA on a CPU" in printed
    )


@pytest.mark.parametrize("arguments, message", [
    (["1", "16", "1024", "128", "--card", "X9"], "card must be one of A100 40 GB, "),
    (["1", "16", "0", "128", "--card", "T4"], "number from 1 on"),
    (["1", "16", "64", "128", "--kv-heads", "5", "--card", "T4"], "multiple of the kv-heads"),
    (["1", "16", "64", "128", "--kv-heads", "0"], "number from 1 on"),
    (["1", "16", "64", "128", "--keys", "0"], "number from 1 on"),
    (["1", "16", "64", "128", "--gpus", "0"], "number from 1 on"),
    (["1", "16", "64", "128", "--card", ""], "card must be one of A100 40 GB, "),
    (["1", "16", "64", "128", "--values", "0"], "number from 1 on"),
    (["1", "16", "64", "128", "--window", "9"], "a window needs the mask window"),
    (["1", "16", "64", "128", "--mask", "causal", "sinks"], "full or causal stands alone"),
])  # fmt: skip
def test_the_doctor_refuses_impossible_shapes(arguments, message, capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--shape", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option, value", [
    ("--mask", "causal"), ("--mask", "full"), ("--gpus", "1"), ("--card", "H200"), ("--card", ""), ("--keys", "0"),
    ("--kv-heads", "2"), ("--dtype", "bfloat16"), ("--direction", "forward"), ("--window", "8"), ("--values", "64"),
])  # fmt: skip
def test_the_doctor_ignores_no_option(option, value, capsys):
    """This also holds for an option with its default value."""
    with pytest.raises(SystemExit):
        doctor.main([option, value])
    assert "--shape" in capsys.readouterr().err.splitlines()[-1]


def test_the_doctor_knows_every_dtype_that_was_measured():
    assert {row.call.dtype for row in rows()} <= set(DTYPES)
    with pytest.raises(SystemExit):
        doctor.main(["--shape", "1", "1", "16", "16", "--dtype", "bf16"])
    cached = which(Call(16, 64, 1, 128, 16384, 8, dtype="int8 cache"))
    assert cached.measured and cached.able == ("flashlab decoding",)


def test_the_doctor_takes_several_masks_in_any_order(capsys):
    gpt_oss = ["--shape", "1", "64", "2048", "64", "--kv-heads", "8", "--window", "127", "--card", "H200 SXM"]
    doctor.main([*gpt_oss, "--mask", "sinks", "window"])
    printed = capsys.readouterr().out
    assert (
        "a window of 127, bfloat16, window and sinks, forward: " in printed and "because it was the fastest" in printed
    )


@pytest.mark.exhaustive
def test_the_command_runs():
    run = ask("--shape", "1", "16", "16384", "128", "--card", "B200", "--direction", "forward")
    assert run.returncode == 0 and "flash_attn.cute.flash_attn_func" in run.stdout and "2603.05451" in run.stdout


@pytest.mark.parametrize("wrong, sentence", [
    ({"mask": "round"}, "mask must be one of full, causal.* got 'round'"),
    ({"direction": "sideways"}, "direction must be one of forward, backward, both, got 'sideways'"),
    ({"dtype": "float13"}, "dtype must be one of .* got 'float13'"),
    ({"B": -1}, "B must be a whole number from 1 on, got -1"),
    ({"d": "128"}, "d must be a whole number from 1 on, got '128'"),
    ({"Hk": 3}, "the heads must be a multiple of the kv-heads, got 16 and 3"),
    ({"capability": "9.0"}, "capability must be of type tuple, got str"),
    ({"card": "H300"}, "card must be one of A100 40 GB, .*, L4, a name that begins with NVIDIA, or None, got 'H300'"),
    ({"card": 3}, "card must be the name of a card or None, got 3"),
    ({"card": "NVIDIA B999", "capability": (-1, 0)}, r"the capability of a card must be two .* got \(-1, 0\)"),
    ({"card": "L4"}, r"the capability of the card L4 is \(8, 9\), got \(9, 0\)"),
    ({"card": None}, r"the capability of the card None is None, got \(9, 0\)"),
    ({"mask": ["causal"]}, "mask must be one of .* got .*causal.*"),
])  # fmt: skip
def test_a_call_that_cannot_be_is_refused(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}$"):
        which(CALL._replace(**wrong))


@pytest.mark.parametrize("call", [
    lambda: which("causal"), lambda: which(CALL, installed="SDPA math"), lambda: which(CALL, installed=["cuDNN"]),
    lambda: table("sideways"), lambda: table("forward", ["round"]), lambda: table("forward", gpus=0),
    lambda: doctor.call_of([1, 16, 4096], {}, this_machine()),
    lambda: doctor.call_of([1, 16, 64, 128], {"mask": ["round"]}, this_machine()),
])  # fmt: skip
def test_other_names_are_refused(call):
    with pytest.raises((TypeError, ValueError), match=", got "):
        call()


def test_a_card_that_is_not_in_our_table_has_the_name_of_its_driver():
    machine = replace(this_machine(), gpu="NVIDIA GH200 480GB", capability=(9, 0))
    call = doctor.call_of([1, 16, 4096, 128], {}, machine)
    assert call.card == "NVIDIA GH200 480GB" and sentence(which(call)).startswith(
        "On the NVIDIA GH200 480GB, for B = 1"
    )
    machine = replace(machine, gpu="NVIDIA H100 PCIe")
    assert doctor.call_of([1, 16, 4096, 128], {}, machine).card == "H100 PCIe"


def test_a_table_of_a_file_that_does_not_exist_gets_a_sentence():
    with pytest.raises(ValueError, match="files must be one of .*, got 'modles'"):
        table("forward", files=["modles"])
