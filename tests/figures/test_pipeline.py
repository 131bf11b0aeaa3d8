from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import pipeline as figure
from figures import style
from figures.canvas import Canvas
from flashlab.course import data
from flashlab.reference import pipeline
from flashlab.reference.attention import attention

STATES = [
    figure.State(step=20, stages=stages, ping_pong=ping_pong, overlap=overlap, locked=locked)
    for stages, ping_pong, overlap, locked in product(figure.STAGES, *[(True, False)] * 3)
]
states = pytest.mark.parametrize("state", STATES, ids=str)
OF = {"ping_pong": (True, False), "overlap": (True, False), "locked": (True, False), "stages": figure.STAGES}


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.9, 5.6), figure.build, figure.update)


def area(boxes, row):
    """Of the solid boxes in a row, in cycles times the row's height."""
    bottom, top = figure.ROWS[row]
    inside = [box for box in boxes if bottom <= box.bottom and box.top <= top and box.color[3] == 1]
    return sum((box.end - box.start) * (box.top - box.bottom) / (top - bottom) for box in inside)


@states
def test_areas_are_work(state):
    """However the consumers share a unit: the boxes of its row cover as much as it did."""
    run, boxes = figure.trace(state).run, figure.trace(state).boxes
    assert area(boxes, "tensor core") == pytest.approx(run.busy, rel=0.01) == run.blocks * 2048
    work = area(boxes, "consumer 0") + area(boxes, "consumer 1")
    assert work == pytest.approx(run.blocks * 1856, rel=0.01)  # their slices of 16 cycles are not drawn


@states
def test_the_numbers_are_those_of_attention_and_of_the_simulator(state):
    Q, K, V = data.captured("alice").head()
    run = figure.trace(state).run
    np.testing.assert_allclose(run.O, attention(Q[: figure.QUERIES], K, V), 1e-5, 1e-5)
    design = pipeline.Design(state.stages, state.ping_pong, state.overlap, 1 if state.locked else 2)
    assert run.cycles == pipeline.forward(Q[: figure.QUERIES], K, V, design).cycles
    last = replace(state, step=figure.count(state))
    assert figure.moment(last) == run.cycles and figure.busy(last) == pytest.approx(run.busy / run.cycles)


@states
def test_a_stage_holds_what_its_products_read_while_they_read_it(state):
    _, _, boxes, _, labels = figure.trace(state)
    held = {(label.text, label.start, label.end) for label in labels if label.color in (style.K, style.V)}
    events = [e for e in figure.trace(state).run.events if e.unit == "tensor core"]
    assert events
    for event in events:
        tile = f"{'K' if event.kind == 'S' else 'V'}{chr(0x2080 + event.j)}"
        assert any(text == tile and start <= event.start and event.end <= end for text, start, end in held)


def test_ping_pong_is_not_double_buffering():
    """Stages shorten the wait for tiles, turns keep products apart; each works without the other."""
    tiles = {stages: waited("tiles", figure.State(stages=stages)) for stages in (1, 2, 3)}
    assert tiles[1] > 3 * tiles[2] > 3 * tiles[3]
    for stages in (1, 2):
        assert not interleaved(figure.State(stages=stages))
        assert interleaved(figure.State(stages=stages, ping_pong=False))


def waited(what, state):
    """Cycles in which consumers wait."""
    events = figure.trace(state).run.events
    return sum(e.end - e.start for e in events if e.unit == e.by and figure._awaited(e) == what)


def interleaved(state):
    """Are there boxes of half the height of the tensor core's row?"""
    bottom, top = figure.ROWS["tensor core"]
    return any(
        bottom <= b.bottom and b.top <= top and b.top - b.bottom < top - bottom for b in figure.trace(state).boxes
    )


def test_a_consumer_that_waits_does_not_leave_the_tensor_core_idle():
    """With turns and overlap, in the middle of the run: while a consumer waits, products are computed."""
    state = figure.State(stages=3)
    run = figure.trace(state).run
    middle = [s for s, time in enumerate(figure.trace(state).times) if 4000 < time < 9000]
    waiting = [
        s for s in middle if any(figure.under_way(replace(state, step=s), c) for c in ("consumer 0", "consumer 1"))
    ]
    assert len(waiting) > 10 and run.cycles > 10_000
    assert all(figure.under_way(replace(state, step=s), "tensor core") for s in waiting)


def test_the_picture_shows_the_numbers_of_the_trace(canvas):
    state = figure.State()
    canvas.png(state)
    artists, now = canvas.artists, figure.moment(state)
    assert artists["now"].get_text() == f"cycle {now:,} of {figure.trace(state).run.cycles:,}"
    assert list(artists["clock"].get_xdata()) == [now, now]
    assert f"busy {figure.busy(state):.0%} so far" in artists["counts"].get_text()
    passed = [path.get_extents() for path in artists["passed"].get_paths()]
    coming = [path.get_extents() for path in artists["coming"].get_paths()]
    assert max(box.x1 for box in passed) == now == min(box.x0 for box in coming)
    whole = sum((box.end - box.start) * (box.top - box.bottom) for box in figure.trace(state).boxes)
    assert sum(box.width * box.height for box in passed + coming) == pytest.approx(whole)
    bits = [text.get_text() for text in artists["phases"]]
    assert bits == ["full in phase 0\nempty in phase 1", "full in phase 1\nempty in phase 1", "", ""]


@states
def test_every_moment_has_words_and_every_label_an_artist(canvas, state):
    canvas.png(state)
    assert len(figure.trace(state).labels) <= figure.LABELS
    for step in range(figure.count(state) + 1):
        words = figure.describe(replace(state, step=step))
        assert ": . " not in words and "\n" not in words and "  " not in words


def test_phases_are_those_of_the_barriers():
    """In the end, four blocks and one step more have used two stages: stage 0 three times, stage 1 twice."""
    state = figure.State()
    bits = figure.phases(replace(state, step=figure.count(state)))
    assert [bits[name] for name in ("full[0]", "empty[0]", "full[1]", "empty[1]")] == [1, 1, 0, 0]
    assert figure.phases(replace(state, step=0)) == {}


def test_describe_has_the_numbers():
    assert figure.describe(figure.State()) == (
        "2 stages, ping-pong, overlap. Cycle 6,430 of 10,920: PV₂ of consumer 0 ends, S₁ of consumer 1 begins. "
        "copy engine: V₁ comes; tensor core: S₁ of consumer 1; consumer 0: softmax 1; consumer 1: waits for products. "
        "stage 0 full in phase 0, empty in phase 1; stage 1 full in phase 1, empty in phase 1. "
        "The tensor core busy 64% so far, 75% in all; 2,730 cycles a block (742 TFLOP/s on 132 SMs of 1.83 GHz)."
    )
