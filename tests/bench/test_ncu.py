"""The counters of Nsight Compute, read from its output, and the predicted bytes that are compared with them."""

import subprocess
import sys

import pytest

ncu = pytest.importorskip("flashlab.bench.ncu")
recomputation = pytest.importorskip("flashlab.bench.recomputation", reason="the kernels need triton")

from flashlab.bench import traffic  # noqa: E402
from flashlab.course import data  # noqa: E402

COUNTERS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}
PRINTED = """==PROF== Connected to process 12
"ID","Kernel Name","Metric Name","Metric Value"
"0","void (anonymous namespace)::softmax<float, 4>(float const*)","dram__bytes_read.sum","1,024"
"0","void (anonymous namespace)::softmax<float, 4>(float const*)","dram__bytes_write.sum","512"
"1","gemm","dram__bytes_read.sum","2048.0"
"1","gemm","dram__bytes_write.sum","0"
"""


def ncu_prints(monkeypatch, text="", code=0, error=None):
    """Replace ncu by a fake that prints a text or raises; return the list of its commands."""
    commands = []

    def run(command, **_):
        commands.append(command)
        if error:
            raise error
        return subprocess.CompletedProcess(command, code, text, "")

    monkeypatch.setattr(ncu.subprocess, "run", run)
    return commands


def test_each_kernel_has_its_name_and_its_counters(monkeypatch):
    commands = ncu_prints(monkeypatch, PRINTED)
    kernels = ncu.count("some.module", ["--once", "flash"], COUNTERS, options=["--cache-control", "none"])
    name = "void (anonymous namespace)::softmax<float, 4>(float const*)"
    assert kernels == [{"kernel": name, "read": 1024, "written": 512}, {"kernel": "gemm", "read": 2048, "written": 0}]
    assert commands[0][-5:] == [sys.executable, "-m", "some.module", "--once", "flash"]
    assert "dram__bytes_read.sum,dram__bytes_write.sum" in commands[0] and "--cache-control" in commands[0]


@pytest.mark.parametrize(
    "what, message",
    [
        ({"error": FileNotFoundError()}, "ncu is not installed"),
        ({"error": subprocess.TimeoutExpired("ncu", 120)}, "within two minutes"),
        ({"text": "no permission", "code": 1}, "ncu counted nothing: no permission"),
        ({"text": "no kernels"}, "ncu counted nothing: no kernels"),
    ],
)
def test_where_nothing_is_counted_the_error_names_the_reason(what, message, monkeypatch):
    ncu_prints(monkeypatch, **what)
    with pytest.raises(RuntimeError, match=message):
        ncu.count("some.module", [], COUNTERS)


def test_names_of_kernels_are_shortened(monkeypatch):
    ncu_prints(monkeypatch, PRINTED)
    assert [kernel["kernel"] for kernel in recomputation.count("standard")] == ["softmax", "gemm"]


def test_traffic_is_summed_over_the_kernels(monkeypatch):
    ncu_prints(monkeypatch, PRINTED.replace("dram__bytes_read", "l1tex__m_xbar2l1tex_read_bytes"))
    monkeypatch.setattr(traffic, "COUNTERS", {"read": "l1tex__m_xbar2l1tex_read_bytes.sum"})
    assert traffic.measured("standard") == {"read": 3072, "kernels": 2}


@pytest.mark.parametrize("N, d, Br, Bc", [(64, 16, 16, 32), (70, 16, 32, 16)])
def test_the_closed_form_and_the_counting_memory_predict_the_same_bytes(N, d, Br, Bc):
    predicted = traffic.predicted(Br, Bc, H=3, N=N, d=d)
    assert predicted["formula"] == predicted["counting_memory"]
    tiles = -(-N // Br)
    assert predicted["formula"]["load"] == 3 * 2 * (N * d + tiles * 2 * N * d)  # Q once, K and V once per tile of Q


def test_the_stored_prediction_has_todays_fields_and_equals_the_measured_bytes():
    stored = data.measured("h200_traffic")
    shape, ours = stored["configuration"], stored["measured"]["flashlab"]
    formula = traffic.predicted(shape["Br"], shape["Bc"], H=1, N=64, d=8)["formula"]
    assert formula.keys() == stored["predicted"]["formula"].keys()
    assert (ours["read"], ours["written"]) == tuple(stored["predicted"]["formula"][side] for side in ("load", "store"))
