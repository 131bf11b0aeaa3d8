"""The recomputation figure shows the numbers that the counting memory booked."""

from dataclasses import replace

import pytest

from figures import recomputation as figure
from figures import style
from figures.canvas import Canvas
from flashlab.machine.memory import Memory
from flashlab.reference import masks, recomputation, tiling

CHOICES = {"Br": (64, 128, 256), "Bc": (64, 128, 256), "causal": (False, True)}


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.9, 6.6), figure.build, figure.update)


@pytest.mark.parametrize("state", [figure.State(), figure.State(causal=True), figure.State(Br=64, Bc=256)])
def test_the_last_step_has_the_whole_bill(state, canvas):
    last = replace(state, step=figure.count(state))
    canvas.png(last)
    bill = recomputation.traffic(512, 512, 32, state.Br, state.Bc, mask=masks.causal() if state.causal else None)
    assert figure.trace(last)[-1].moved == sum(bill.values())
    assert canvas.artists["amounts"][1].get_text() == style.amount(sum(bill.values()))
    assert canvas.artists["bytes"].get_width() == sum(bill.values()) / figure.kept(state.causal)


def test_every_tile_is_rebuilt_once_and_none_is_left():
    state = figure.State()
    steps = figure.trace(state)
    rebuilt = [step.tile for step in steps if step.kind == "rebuild"]
    assert sorted(rebuilt) == [(i, j) for i in range(0, 512, 128) for j in range(0, 512, 128)]
    assert not steps[-1].place
    assert all(step.name not in ("S", "P") for step in steps if step.kind in ("load", "store"))


def test_causal_leaves_tiles_out():
    state = figure.State(causal=True)
    assert all(j <= i + 127 for i, j in figure.trace(state)[-1].rebuilt)
    assert len(figure.trace(state)[-1].rebuilt) == 10


def test_bright_tiles_are_those_in_fast_memory(canvas):
    state = figure.State()
    step = figure.trace(state)[state.step]
    canvas.png(state)
    faces = canvas.artists["cells"].get_facecolor()
    assert step.kind == "rebuild" and (faces == figure.to_rgba(style.P)).all(1).sum() == 1
    bright = (canvas.artists["strips"].get_facecolor()[:, 3] == 1) & (
        canvas.artists["strips"].get_facecolor()[:, :3] != (1, 1, 1)
    ).any(1)
    assert bright.sum() == len(step.place) - 1  # all but P_ij


def test_table_says_what_is_printed_and_what_is_counted():
    words = figure.describe(figure.State())
    for number in ("66.6", "75.2", "40.3 GB", "4.4 GB", "41.7 ms", "7.3 ms", "824.6", "962.1", "40.27 GB", "4.43 GB"):
        assert number in words
    thin = figure.counted()["bytes"][1] / (1024 * 64 * 2 * 64 * 16)
    assert thin == 33


@pytest.mark.parametrize("counters", [True, False])
def test_a_measurement_is_drawn_with_and_without_its_counters(monkeypatch, counters):
    ways = {name: {"ms": ms, "bytes": nbytes if counters else None}
            for name, ms, nbytes in (("standard", 12.34, 41e9), ("flash", 4.321, 5e9))}  # fmt: skip
    monkeypatch.setattr(figure.data, "measured", lambda _: {"about": {"device": "NVIDIA H200"}, **ways})
    told = dict(figure.bills())["measured, one H200"]
    assert told["time"] == (12.34, 4.321) and ("bytes" in told) == counters
    assert "12.3 ms and 4.3 ms" in figure.describe(figure.State())
    Canvas(style.figure(9.9, 6.6), figure.build, figure.update).png(figure.State())


def loop_and_kernels(causal):
    """Events of the recomputation lesson's loop and of the kernels on the figure's head, in tiles of 128."""
    backward = pytest.importorskip("flashlab.kernels.portable.backward")
    torch = pytest.importorskip("torch")
    from flashlab.kernels.configurations import Configuration
    from flashlab.kernels.count import count
    from flashlab.kernels.masks import either
    from flashlab.kernels.problem import Problem

    arrays = figure._head()
    mask = masks.causal() if causal else None
    O, lse = tiling.fa2_forward(*arrays[:3], 128, 128, mask=mask)
    memory = Memory(record=True)
    recomputation.backward(*arrays[:3], O, lse, arrays[3], 128, 128, mask=mask, memory=memory)
    Q, K, V, dO, O, lse = (torch.tensor(x)[None, None] for x in (*arrays, O, lse))
    names = ("row_constants", "key_value_gradients", "query_gradients")
    launches = dict.fromkeys(names, Configuration(128, 128, 4, 1))
    problem = Problem.of(Q, K, V, either(causal, None), 32**-0.5)
    grown = [torch.empty_like(x) for x in (Q, K, V)]
    return memory, count(backward.run, grown, (dO, None), (Q, K, V, O, lse), problem, launches)


@pytest.mark.parametrize("causal", [False, True])
def test_replay_rebuilds_each_tile_in_both_kernels_and_moves_what_is_billed(causal):
    loop, kernels = loop_and_kernels(causal)
    steps = figure.record(figure.retold(kernels.events))
    visited = figure.record(loop.events)[-1].rebuilt
    for kernel in ("key_value_gradients", "query_gradients"):
        rebuilt = [step.tile for step in steps if step.kind == "rebuild" and step.kernel == kernel]
        assert sorted(rebuilt) == sorted(visited)
    assert steps[-1].moved == kernels.moved
    assert steps[-1].products == 7 * len(visited)
    assert steps[-1].written == {(name, at) for name in ("lse", *figure.RESULTS) for at in range(0, 512, 128)}


def test_replay_can_be_scrubbed_and_says_the_bill_in_the_end():
    loop, kernels = loop_and_kernels(False)
    shown = figure.replay(kernels.events, loop.events, 512, 128, 128)
    for step in range(0, shown.widgets["step"].max + 1, 9):
        shown.set(step=step)
    shown.set(step=shown.widgets["step"].max)
    said = shown._describe(shown.state)
    for words in ("32 of 32", style.amount(kernels.moved), style.amount(loop.moved), "112 products", "80 products"):
        assert words in said
    assert shown._canvas.artists["products"].get_width() == 1
