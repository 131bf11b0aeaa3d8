from dataclasses import replace
from itertools import pairwise, product

import pytest

from figures import next_machine as figure
from flashlab.reference import next_machine, roles

STATES = [figure.State(3, *choice) for choice in product(("0", "3/16"), figure.WIDTHS, figure.CARDS)]


@pytest.mark.parametrize("state", STATES[::5], ids=str)
def test_boxes_are_the_events_of_the_run(state):
    run = roles.forward(*_inputs(), figure.design(state), Bc=figure.SHOWN)
    trace = figure.trace(state)
    assert trace["cycles"] == run.cycles == trace["times"][-1]
    boxes = sorted((box["start"], box["end"], box["kind"]) for box in trace["boxes"])
    assert boxes == sorted((e.start, e.end, e.kind) for e in run.events if e.unit in figure.ROWS)
    assert set(trace["code"]) >= {box["kind"] for box in trace["boxes"]}


@pytest.mark.parametrize("state", STATES[::4], ids=str)
def test_the_boxes_of_a_place_do_not_overlap(state):
    boxes = figure.trace(state)["boxes"]
    for place in {(box["lane"], box["place"]) for box in boxes}:
        times = sorted((box["start"], box["end"]) for box in boxes if (box["lane"], box["place"]) == place)
        assert all(end <= start for (_, end), (start, _) in pairwise(times)), place
    products = sorted((box["start"], box["end"]) for box in boxes if box["lane"] == 0)
    assert all(end <= start for (_, end), (start, _) in pairwise(products)), "the tensor core does one at a time"


def test_shares_are_counted_by_the_simulator():
    trace = figure.trace(figure.State(card="B200"))
    for share, it in zip(range(7), trace["shares"], strict=True):
        run = roles.forward(*_inputs(), roles.Design(share / 16), Bc=figure.COUNTED)
        assert it["cycles"] == round(run.steady) and it["share"] == figure.SHARES[share]
        assert it["units"][:2] == [2048, 2048 * (16 - share) // 16]
    products, _, exponentials = next_machine.forward_cycles(256, 128, 128)
    assert trace["shares"][0]["units"][:2] == [products, exponentials]
    assert max(it["cycles"] for it in trace["shares"]) <= trace["most"]


def test_the_best_share_moves_with_the_head_dimension_and_the_card():
    best = {(d, card): figure.best(figure.State(0, "0", d, card)) for d in figure.WIDTHS for card in figure.CARDS}
    b200, b300, h100 = figure.CARDS
    assert [best[d, b200] for d in figure.WIDTHS] == ["3/16", "2/16", "0"]
    assert {best[d, b300] for d in figure.WIDTHS} == {"0"}
    assert [best[d, h100] for d in figure.WIDTHS] == ["2/16", "0", "0"]


def test_describe_has_the_numbers():
    state = figure.State()
    assert figure.describe(state) == (
        "Cycle 8,575 of 13,843: m₃ of tile 0 ends. A block takes 2,048 cycles: 2,048 of products, 1,792 of "
        "exponentials, 1,344 of all else. The best share here is 2/16."
    )
    assert "The best share here is 3/16" in figure.describe(replace(state, d="64", step=5))


def _inputs():
    Q, K, V = figure.data.captured("alice").head()
    return Q[:256], K, V
