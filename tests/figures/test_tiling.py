import re
from dataclasses import replace

import numpy as np
import pytest

from figures import tiling as figure
from flashlab.course import data
from flashlab.machine.memory import Event, Memory
from flashlab.reference import masks, standard_attention, tiling
from flashlab.reference.rules import Rules
from tests.tools import drawn

STATES = [
    figure.State(),
    figure.State(N=64, Br=16, Bc=16),
    figure.State(N=100, Br=64, Bc=16),
    figure.State(N=100, Br=32, Bc=64, causal=True),
    figure.State(N=256, Br=16, Bc=64, causal=True),
]
states = pytest.mark.parametrize("state", STATES, ids=str)


def mask(state):
    return masks.causal() if state.causal else None


@states
def test_the_last_bill_is_that_of_the_reference(state):
    standard, fa1, fa2 = figure.trace(state)["runs"]
    for run, traffic in ((fa1, tiling.fa1_traffic), (fa2, tiling.fa2_traffic)):
        bill = {(line["kind"], line["name"]): line["bill"] for line in run["lines"]}
        assert bill == traffic(state.N, state.N, 32, state.Br, state.Bc, mask=mask(state))
        assert run["moved"] == sum(bill.values())
    assert standard["moved"] == standard_attention.moved(state.N, 32, 4, mask=state.causal)


@states
def test_each_line_adds_its_bytes_and_counts_its_tile(state):
    for run in figure.trace(state)["runs"]:
        moved, times = 0, {}
        for line in run["lines"]:
            moved += line["nbytes"]
            tile = line["kind"], line["name"], line["rows"]
            times[tile] = times.get(tile, 0) + 1
            assert line["moved"] == moved and line["times"] == times[tile]


@states
def test_every_score_is_computed_unless_the_mask_skips_its_tile(state):
    standard, *fused = figure.trace(state)["runs"]
    visible = np.tri(state.N, dtype=bool) if state.causal else np.ones((state.N, state.N), bool)  # [N, N]
    for run in fused:
        visited = np.zeros((state.N, state.N), bool)  # [N, N]
        for line in run["lines"]:
            if line["tile"]:
                rows, cols = line["tile"]
                visited[slice(*rows), slice(*cols)] = True
        assert visited[visible].all()
        assert not any(line["name"][0] in "SP" for line in run["lines"])
        if state.causal:
            assert not visited.all()
    crossings = [line for line in standard["lines"] if line["name"][0] in "SP"]
    assert sum(line["nbytes"] for line in crossings) == (6 if state.causal else 4) * state.N**2 * 4


@states
def test_the_clock_has_every_moment_of_every_run(state):
    trace = figure.trace(state)
    assert trace["clock"][0] == 0 and trace["clock"] == sorted(set(trace["clock"]))
    assert set(trace["clock"][1:]) == {line["moved"] for run in trace["runs"] for line in run["lines"]}


@states
def test_the_peak_of_resident_bytes_is_that_of_the_memory(state):
    Q, K, V = (tensor[: state.N] for tensor in data.captured("alice").head())
    memory = Memory()
    tiling.fa2_forward(Q, K, V, state.Br, state.Bc, Rules(mask=mask(state)), memory=memory)
    lines = figure.trace(state)["runs"][2]["lines"]
    assert max(sum(nbytes for _, nbytes in line["resident"]) for line in lines) == memory.peak_bytes


def test_a_tip_shows_the_line_that_loads():
    lines = figure.trace(figure.State())["runs"][2]["lines"]
    assert lines[0]["code"].startswith('Q_i = memory.load("Q", rows)')
    assert 'memory.load("K", cols)' in lines[1]["code"]


def test_describe_has_the_numbers():
    last = figure.count(figure.State())
    assert figure.describe(figure.State(step=last)) == (
        "Clock at 328 kB. Standard attention is done with 328 kB; FlashAttention: keys outside is done with "
        "217 kB; FlashAttention-2: queries outside is done with 164 kB."
    )
    assert "Standard attention has not begun" in figure.describe(figure.State(step=0))


def test_the_words_say_where_tiles_do_not_fit():
    state = figure.State(N=256, Br=64)
    fitting = [
        sum(nbytes for _, nbytes in line["resident"]) <= figure.SRAM_BYTES
        for line in figure.trace(state)["runs"][0]["lines"]
    ]
    assert not all(fitting)
    words = [figure.describe(replace(state, step=step)) for step in range(figure.count(state) + 1)]
    assert {"does not fit" in it for it in words} == {True, False}
    assert not any("does not fit" in figure.describe(replace(figure.State(), step=step)) for step in range(70))


@pytest.mark.skipif(drawn.NODE is None, reason="needs node")
def test_scores_in_slow_memory_are_hatched_and_those_that_stay_on_the_chip_are_not():
    """Without colour, both have the same lightness."""
    (drawing,) = drawn.draw(figure, [figure.State()])
    cells = re.findall(r'<g [^>]*aria-label="scores of queries[^"]*"[^>]*>.*?</g>', drawing["markup"])
    moving = re.compile("goes|comes")
    crossed = [cell for cell in cells if "crossed to or from slow memory" in cell and not moving.search(cell)]
    stayed = [cell for cell in cells if "never stored" in cell]
    assert crossed and all("url(#stored)" in cell for cell in crossed)
    assert stayed and not any("url(#stored)" in cell for cell in stayed)


def test_a_kernels_events_are_replayed():
    """The events are as the interpreter records them: a slice for each dimension of a tensor, programs in any order."""

    def move(kind, name, rows):
        return Event(kind, name, (slice(0, 1), slice(0, 1), slice(*rows), slice(0, 8)), 8 * (rows[1] - rows[0]))

    events = []
    for rows in [(4, 6), (0, 4)]:
        events += [Event("kernel", "attention_forward", (0, 0, 0), 0), move("load", "Q", rows)]
        for cols in [(0, 3), (3, 5)]:
            events += [move("load", "K", cols), move("load", "V", cols)]
        events.append(move("store", "O", rows))
    shown = figure.replay({"a kernel": events, "the same again": events}, 6, 5)
    lines = shown.figure.trace(shown.state)["runs"][0]["lines"]
    tiles = [line["tile"] for line in lines if line["name"] == "V"]
    assert tiles == [(rows, cols) for rows in [(4, 6), (0, 4)] for cols in [(0, 3), (3, 5)]]
    assert repr(replace_step(shown, 6)) == (
        "Clock at 112 B. a kernel: 112 B, program 1 of 2; the same again: 112 B, program 1 of 2."
    )


def replace_step(shown, step):
    shown.state = replace(shown.state, step=step)
    return shown


def test_an_empty_recording_says_so():
    with pytest.raises(ValueError, match="a kernel: nothing was loaded or stored"):
        figure.replay({"a kernel": []}, 6, 5)
