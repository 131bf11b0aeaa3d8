from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import pipeline as figure
from flashlab.course import data
from flashlab.reference import pipeline
from flashlab.reference.attention import attention

STATES = [
    figure.State(20, stages, consumers, overlap)
    for stages, consumers, overlap in product(figure.STAGES, figure.CONSUMERS, (True, False))
]
states = pytest.mark.parametrize("state", STATES, ids=str)


def area(state, row):
    """Return the area of the boxes in a row, in cycles times the row's height."""
    boxes = [box for box in figure.trace(state)["boxes"] if box["row"] == row]
    return sum((box["end"] - box["start"]) * (box["high"] - box["low"]) for box in boxes)


@states
def test_areas_are_work(state):
    """The boxes of a row have the area of its unit's work, however the consumers share the unit."""
    run = figure.run(state)
    assert area(state, "tensor core") == pytest.approx(run.busy, rel=0.01) == run.blocks * 2048
    work = area(state, "consumer 0") + area(state, "consumer 1")
    assert work == pytest.approx(run.blocks * 1856, rel=0.01)  # slices of 16 cycles are not drawn


@states
def test_the_numbers_are_those_of_attention_and_of_the_simulator(state):
    Q, K, V = data.captured("alice").head()
    run = figure.run(state)
    np.testing.assert_allclose(run.O, attention(Q[: figure.QUERIES], K, V), 1e-5, 1e-5)
    consumers = 1 if state.consumers == "both warpgroups in one partition" else 2
    design = pipeline.Design(state.stages, state.consumers == "two, ping-pong", state.overlap, consumers)
    assert run.cycles == pipeline.forward(Q[: figure.QUERIES], K, V, design).cycles
    last = replace(state, step=figure.count(state))
    assert figure.moment(last) == run.cycles and figure.busy(last) == pytest.approx(run.busy / run.cycles)
    trace = figure.trace(state)
    assert trace["cycles"] == trace["times"][-1] == run.cycles < trace["scale"]
    assert len(trace["steps"]) == len(trace["times"])


@states
def test_a_stage_holds_what_its_products_read_while_they_read_it(state):
    tiles = [box for box in figure.trace(state)["boxes"] if box["row"].startswith("stage") and not box["coming"]]
    events = [e for e in figure.run(state).events if e.unit == "tensor core"]
    assert events
    for event in events:
        tile = f"{'K' if event.kind == 'S' else 'V'}{chr(0x2080 + event.j)}"
        assert any(box["name"] == tile and box["start"] <= event.start and event.end <= box["end"] for box in tiles), (
            event
        )


@states
def test_a_link_leads_from_the_event_that_ended_a_wait_to_the_end_of_that_wait(state):
    """That event is the end of a copy, of a product, or of a consumer's turn."""
    events = figure.run(state).events
    latency = pipeline.Budget().latency
    for link in figure.trace(state)["links"]:
        assert any(e.unit == link["to"] and e.end == link["at"] for e in events)
        if link["from"].startswith("consumer"):
            assert any(e.unit == "barrier" and e.kind.startswith("turn") and e.end == link["at"] for e in events)
        else:
            assert any(e.unit == link["from"] and e.end == link["since"] for e in events)
            assert link["since"] + (latency if link["from"] == "copy engine" else 0) == link["at"]


def test_a_product_says_which_tile_and_which_barrier():
    tips = [box["tip"] for box in figure.trace(figure.State())["boxes"] if box["row"] == "tensor core"]
    (last,) = [tip for tip in tips if tip["title"] == "S₀ of consumer 0"]
    assert last["lines"] == [
        "cycles 7,454 to 7,966: 512",
        "reads Q[0] and K[1]",
        "waited 432 cycles for phase 1 of full[1]: V₁ came",
        "begins when PV₂ of consumer 1 ends",
    ]
    assert "pipe.scores" in last["code"]
    (first,) = [tip for tip in tips if tip["title"] == "PV₃ of consumer 0"]
    assert not any("K₃" in words for words in first["lines"]), "it does not repeat the wait of the step before"


def test_ping_pong_is_not_double_buffering():
    """More stages shorten the wait for tiles, turns separate products in time; each works without the other."""
    tiles = {stages: waited("tiles", figure.State(stages=stages)) for stages in (1, 2, 3)}
    assert tiles[1] > 3 * tiles[2] > 3 * tiles[3]
    for stages in (1, 2):
        assert not interleaved(figure.State(stages=stages))
        assert interleaved(figure.State(stages=stages, consumers="two"))


def waited(what, state):
    """Return the cycles in which consumers wait for something."""
    waits = figure.trace(state)["waits"]
    return sum(wait["end"] - wait["start"] for wait in waits if wait["words"] == what)


def interleaved(state):
    """Return whether products of two consumers overlap: the tensor core's row then has boxes below its full height."""
    return any(box["high"] - box["low"] < 1 for box in figure.trace(state)["boxes"] if box["row"] == "tensor core")


def test_a_consumer_that_waits_does_not_leave_the_tensor_core_idle():
    """In the middle of a run with turns and overlap, products are computed while a consumer waits."""
    state = figure.State(stages=3)
    middle = [s for s, time in enumerate(figure.times(state)) if 4000 < time < 9000]
    waiting = [
        s for s in middle if any(figure.under_way(replace(state, step=s), c) for c in ("consumer 0", "consumer 1"))
    ]
    assert len(waiting) > 10 and figure.run(state).cycles > 10_000
    assert all(figure.under_way(replace(state, step=s), "tensor core") for s in waiting)


def test_phases_are_those_of_the_barriers():
    """Four blocks take five steps, which use stage 0 three times and stage 1 twice."""
    state = figure.State()
    bits = figure.phases(replace(state, step=figure.count(state)))
    assert [bits[name] for name in ("full[0]", "empty[0]", "full[1]", "empty[1]")] == [1, 1, 0, 0]
    assert figure.trace(state)["steps"][-1]["phases"] == [[1, 1], [0, 0]]
    assert figure.phases(replace(state, step=0)) == {}


def test_describe_has_the_numbers():
    assert figure.describe(figure.State()) == (
        "Cycle 6,430 of 10,920: PV₂ of consumer 0 ends, S₁ of consumer 1 begins. The tensor core was busy 64% so far, "
        "75% in all: 2,730 cycles per block, 742 TFLOP/s on 132 SMs."
    )
    assert figure.trace(figure.State())["steps"][34]["doing"] == {
        "copy engine": "V₁ comes",
        "tensor core": "S₁ of consumer 1",
        "consumer 0": "softmax 1",
        "consumer 1": "waits for products",
    }
