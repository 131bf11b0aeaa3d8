from itertools import product

import numpy as np
import pytest

from figures import crossover as figure
from flashlab.machine import costs, hardware
from flashlab.machine.memory import Memory
from flashlab.reference import linear_attention, masks, tiling
from flashlab.reference.rules import Rules
from tests.tools import drawn

STATES = [figure.State(0, d, C, dtype) for d, C, dtype in product((32, 256), (32, 128), ("float16", "float32"))]
states = pytest.mark.parametrize("state", STATES, ids=str)


def by_name(trace):
    return {measure["what"]: measure for measure in trace["measures"]}


@pytest.mark.parametrize("d, C", [(32, 32), (64, 32)])
def test_costs_are_those_of_runs(d, C):
    at = 4
    N, measures = figure.LENGTHS[at], by_name(figure.trace(figure.State(0, d, C, "float32")))
    X = [np.ones((N, d), np.float32)] * 3
    dense, linear = Memory(), Memory()
    _, dense_flops = costs.counted(tiling.fa2_forward, *X, C, C, Rules(masks.causal()), memory=dense)
    (_, KV), linear_flops = costs.counted(linear_attention.chunked, *X, C, memory=linear)
    assert (measures["flops"]["softmax"][at], measures["flops"]["linear"][at]) == (dense_flops, linear_flops)
    assert (measures["bytes"]["softmax"][at], measures["bytes"]["linear"][at]) == (dense.moved, linear.moved)
    assert (measures["state"]["softmax"][at], measures["state"]["linear"][at]) == (X[1].nbytes + X[2].nbytes, KV.nbytes)


@states
def test_lines_cross_at_the_stated_length(state):
    trace = figure.trace(state)
    for measure in trace["measures"]:
        for N, softmax, linear in zip(trace["lengths"], measure["softmax"], measure["linear"], strict=True):
            if N % state.C == 0:
                assert (softmax >= linear) == (N >= measure["crossing"]), (measure["name"], N)
    flops = by_name(trace)["flops"]["crossing"]
    assert 0 <= flops - linear_attention.crossover(state.C, state.d) < state.C


@pytest.mark.skipif(drawn.NODE is None, reason="needs node")
@states
def test_where_no_lines_cross_the_picture_says_who_wins(state):
    measures = figure.trace(state)["measures"]
    throughout = [measure for measure in measures if measure["linear"][0] <= measure["softmax"][0]]
    markup = drawn.draw(figure, [state])[0]["markup"]
    assert markup.count(">linear wins<") == len(throughout)
    assert markup.count(">cross at ") == len(measures) - len(throughout)


@states
def test_the_least_time_is_under_the_roof(state):
    card, trace = hardware.CARDS[figure.CARD], figure.trace(state)
    measures = by_name(trace)
    for at, N in enumerate(trace["lengths"]):
        once = 4 * N * state.d * hardware.stored(state.dtype).itemsize
        for way in ("softmax", "linear"):
            seconds = measures["seconds"][way][at]
            rate = hardware.flop_rate(card, state.dtype)
            assert seconds >= max(measures["flops"][way][at] / rate, once / card.dram_rate) * (1 - 1e-12)
    assert trace["ridge"] == hardware.ridge(card, state.dtype)


def test_in_half_precision_linear_attention_waits_for_bytes_and_time_crosses_last():
    trace = figure.trace(figure.State())
    crossings = {what: measure["crossing"] for what, measure in by_name(trace).items()}
    assert crossings["state"] < crossings["bytes"] < crossings["flops"] < crossings["seconds"]
    assert max(trace["intensity"]) < trace["ridge"]
    default = {what: it["softmax"][6] / it["linear"][6] for what, it in by_name(trace).items()}
    assert figure.State().step == 6 and default["flops"] > 1 > default["seconds"]  # the figure's point


def test_words_have_the_numbers():
    assert figure.describe(figure.State(step=8)) == (
        "N = 1,024, d = 128, C = 64, float16. Softmax over linear: FLOPs × 2.83, bytes × 4.47, kept × 8, "
        "least time × 1.24. Linear waits for bytes."
    )
    assert "Linear waits for arithmetic" in figure.describe(figure.State(dtype="float32"))
