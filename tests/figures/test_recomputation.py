"""The figure on recomputation shows the numbers that the counting memory recorded."""

import re
from dataclasses import replace

import numpy as np
import pytest

from figures import recomputation as figure
from figures import style
from flashlab.machine import costs
from flashlab.machine.memory import Memory
from flashlab.reference import masks, recomputation, standard_attention, tiling
from flashlab.reference.rules import Rules
from tests.tools import drawn

SQUARE = figure.State(step=72, Br=128, Bc=128)  # tiles
STATES = [SQUARE, replace(SQUARE, causal=True), figure.State(Br=64, Bc=256)]
states = pytest.mark.parametrize("state", STATES, ids=str)


def whole(trace, at):
    """Return the bytes and FLOPs of one of the two passes."""
    parts = trace["passes"][at]["parts"]
    return parts[-1]["stop"], sum(part["flops"] for part in parts)


@states
def test_the_last_step_has_the_whole_bill(state):
    trace = figure.trace(state)
    bill = recomputation.traffic(
        512, 512, 32, state.Br, state.Bc, mask=masks.causal() if state.causal else None, dtype=np.float16
    )
    last = trace["steps"][-1]
    assert last["moved"] == sum(bill.values()) == whole(trace, 1)[0]
    assert last["flops"] == whole(trace, 1)[1] == 5 * last["again"]
    if not state.causal:
        assert last["flops"] == costs.flops(512, 512, 32, training=True, rebuilt=True) - costs.flops(512, 512, 32)


@states
def test_the_pass_that_keeps_P_has_the_costs_of_the_reference(state):
    bills = [standard_attention.moved(512, 32, mask=state.causal, backward=backward) for backward in (True, False)]
    flops = [costs.flops(512, 512, 32, training=training) for training in (True, False)]
    assert whole(figure.trace(state), 0) == (bills[0] - bills[1], flops[0] - flops[1])


@states
def test_the_clock_goes_on_until_both_passes_are_done(state):
    trace = figure.trace(state)
    clock = [step["clock"] for step in trace["steps"]]
    assert clock == sorted(clock) and clock[-1] == max(whole(trace, 0)[0], whole(trace, 1)[0])
    assert figure.describe(replace(state, step=figure.count(state))).endswith("3.93 MB of 3.93 MB, dK is done.")


def test_the_squares_are_stored_one_after_another():
    P, dP, dS = figure.trace(figure.State())["passes"][0]["squares"]
    assert [square["bytes"] for square in (P, dP, dS)] == [2 * 512**2] * 3
    assert 0 == P["stop"] < dP["start"] < dP["stop"] < dS["start"] < dS["stop"] < 3_932_160


def test_every_tile_is_rebuilt_once_and_none_is_left():
    steps = figure.trace(SQUARE)["steps"]
    rebuilt = [step["span"] for step in steps if step["kind"] == "rebuild"]
    expected = [[[i, i + 128], [j, j + 128]] for i in range(0, 512, 128) for j in range(0, 512, 128)]
    assert sorted(rebuilt) == expected
    assert all(
        ("P_ij" in dict((name, 0) for name, *_ in step["held"])) == (step["kind"] == "rebuild") for step in steps
    )
    assert all(step["name"][0] not in "SP" for step in steps if step["kind"] in ("load", "store"))
    assert steps[-1]["held"] == []


@pytest.mark.skipif(drawn.NODE is None, reason="needs node")
def test_the_picture_counts_as_the_words_do_and_has_one_scale():
    for state in (SQUARE, replace(SQUARE, step=figure.count(SQUARE))):
        (drawing,) = drawn.draw(figure, [state])
        rebuilt = re.search(r"tiles of P rebuilt: (\d+)", drawing["markup"])[1]
        now = figure.trace(state)["steps"][state.step]
        assert int(rebuilt) == now["rebuilt"] == now["again"] // (2 * 128 * 128 * 32)
        if now["kind"]:
            assert f"{rebuilt} of 16 tiles rebuilt" in figure.describe(state)
    bars = re.findall(r'width="([\d.]+)"[^>]*aria-label="P (?:kept|rebuilt): bytes', drawing["markup"])
    nbytes = [whole(figure.trace(state), at)[0] for at in (0, 1)]
    assert float(bars[0]) / float(bars[1]) == pytest.approx(nbytes[0] / nbytes[1], rel=0.01)


def test_causal_leaves_tiles_out():
    rebuilt = [
        step["span"] for step in figure.trace(replace(SQUARE, causal=True))["steps"] if step["kind"] == "rebuild"
    ]
    assert len(rebuilt) == 10 and all(cols[0] <= rows[0] for rows, cols in rebuilt)


def test_the_peak_and_its_tiles_are_those_of_the_memory():
    Q, K, V, dO = figure.head()
    O, lse = tiling.fa1_forward(Q, K, V, 128, 128)
    memory = Memory()
    recomputation.backward(Q, K, V, O, lse, dO, 128, 128, memory=memory)
    trace = figure.trace(SQUARE)
    assert trace["peak"] == memory.peak_bytes
    fullest = max(trace["steps"], key=lambda step: sum(size for *_, size in step["held"]))
    assert {name: size for name, _, size in fullest["held"]} == {
        name.removesuffix("_j"): size for name, size in memory.peak.items()
    }


def test_the_tip_of_a_step_shows_its_line_of_code():
    steps = figure.trace(figure.State())["steps"]
    assert all(step["code"] for step in steps if step["kind"])
    assert "rebuild(S_ij, lse_i)" in next(step["code"] for step in steps if step["kind"] == "rebuild")
    assert "memory.store" in next(step["code"] for step in steps if step["kind"] == "store")


def test_the_bill_has_the_printed_the_counted_and_the_measured_numbers():
    words = str(figure.bills())
    for number in ("66.6", "75.2", "40.3 GB", "4.4 GB", "41.7 ms", "7.3 ms", "824.6", "962.1", "40.27 GB", "4.43 GB"):
        assert number in words
    assert figure.counted()["bytes"][1] / (1024 * 64 * 2 * 64 * 16) == 33


@pytest.mark.parametrize("counters", [True, False])
def test_a_measurement_may_have_no_counters(monkeypatch, counters):
    ways = {name: {"ms": ms, "bytes": nbytes if counters else None}
            for name, ms, nbytes in (("standard", 12.34, 41e9), ("flash", 4.321, 5e9))}  # fmt: skip
    monkeypatch.setattr(figure.data, "measured", lambda _: {"about": {"device": "NVIDIA H200"}, **ways})
    expected = {"time": "12.3 ms, 4.3 ms"} | ({"bytes": "41 GB, 5 GB"} if counters else {})
    assert figure.bills()["measured, one H200"] == expected


def loop_and_kernels(causal):
    """Return the memories of the lesson's loop and of the kernels, run on the figure's head in tiles of 128."""
    backward = pytest.importorskip("flashlab.kernels.portable.backward")
    torch = pytest.importorskip("torch")
    from flashlab.kernels.configurations import Configuration
    from flashlab.kernels.count import count
    from flashlab.kernels.masks import either
    from flashlab.kernels.problem import Problem

    arrays = figure.head(np.float32)
    mask = masks.causal() if causal else None
    O, lse = tiling.fa2_forward(*arrays[:3], 128, 128, Rules(mask=mask))
    memory = Memory(record=True)
    recomputation.backward(*arrays[:3], O, lse, arrays[3], 128, 128, Rules(mask=mask), memory=memory)
    Q, K, V, dO, O, lse = (torch.tensor(x)[None, None] for x in (*arrays, O, lse))
    names = ("row_constants", "key_value_gradients", "query_gradients")
    launches = dict.fromkeys(names, Configuration(128, 128, 4, 1))
    problem = Problem.of(Q, K, V, either(causal, None), 32**-0.5)
    gradients = [torch.empty_like(x) for x in (Q, K, V)]
    return memory, count(backward.run, gradients, (dO, None), (Q, K, V, O, lse), problem, launches)


@pytest.mark.parametrize("causal", [False, True])
def test_replay_rebuilds_each_tile_in_both_kernels_and_moves_their_bytes(causal):
    loop, kernels = loop_and_kernels(causal)
    shown = figure.replay(kernels.events, loop.events, 512, 128, 128)
    trace = shown.figure.trace(shown.state)
    tiles = 10 if causal else 16
    steps = [step for step in trace["steps"] if step["kind"] == "rebuild"]
    for kernel in ("key_value_gradients", "query_gradients"):
        rebuilt = [str(step["span"]) for step in steps if step["kernel"] == kernel]
        assert len(rebuilt) == len(set(rebuilt)) == tiles
    product = 2 * 128 * 128 * 32
    assert whole(trace, 0) == (loop.moved, 5 * tiles * product)
    assert whole(trace, 1) == (kernels.moved, 7 * tiles * product)
    stored = {(step["name"], *step["span"]) for step in trace["steps"] if step["kind"] == "store"}
    assert stored == {(name, at, at + 128) for name in ("lse", *figure.RESULTS) for at in range(0, 512, 128)}


def test_the_words_of_a_replay_have_the_bill():
    loop, kernels = loop_and_kernels(False)
    shown = figure.replay(kernels.events, loop.events, 512, 128, 128, figure.Replayed(90))
    assert repr(shown).startswith("Rebuild P(3, 2) from Q(3), K(2) and lse(3), for dV, dP and dK. 12 of 32 tiles")
    shown.state = figure.Replayed(shown.figure.CONTROLS["step"].steps(None))
    assert style.amount(kernels.moved) in repr(shown) and style.amount(loop.moved) in repr(shown)
