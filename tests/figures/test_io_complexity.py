"""The figure of memory and length shows the numbers of the module io_complexity."""

from dataclasses import replace

import numpy as np
import pytest

from figures import io_complexity as figure
from flashlab.machine import costs
from flashlab.machine.hardware import GiB
from flashlab.reference import io_complexity, standard_attention

STATES = [
    figure.State(),
    figure.State(card="H100 SXM", batch=4, d=128),
    figure.State(card="T4", heads=1, dtype="float32", training=False),
]
states = pytest.mark.parametrize("state", STATES, ids=str)


@states
@pytest.mark.parametrize("name, fused", figure.WAYS.items())
def test_needs_are_those_of_the_reference(state, name, fused):
    trace = figure.trace(state)
    layer = {"heads": state.batch * state.heads, "training": state.training, "fused": fused}
    layer["itemsize"] = figure.DTYPES[state.dtype]
    for N, need in zip(trace["lengths"], trace["ways"][name]["needs"], strict=True):
        expected = io_complexity.need(N, state.d, **layer)
        assert need == {**expected._asdict(), "total": expected.total}
    assert trace["ways"][name]["longest"] == io_complexity.longest(trace["room"], state.d, **layer)


def test_time_is_the_longer_of_products_and_bytes():
    trace = figure.trace(figure.State(card="H100 SXM", batch=4, d=128))
    assert trace["room"] == 80 * GiB
    standard, fused = trace["ways"]["standard"], trace["ways"]["fused"]
    N = fused["longest"]
    assert fused["takes"] == pytest.approx(64 * costs.flops(N, N, 128, training=True, rebuilt=True) / 989.4e12)
    moved = standard_attention.moved(standard["longest"], 128, backward=True)
    assert standard["takes"] == pytest.approx(64 * moved / 3.35e12)
    assert standard["ends"] == figure.duration(standard["takes"])


def test_standard_attention_takes_longer_at_every_length():
    ways = figure.trace(figure.State())["ways"]
    assert all(np.array(ways["standard"]["seconds"]) > ways["fused"]["seconds"])


@pytest.mark.parametrize(
    "fields, standard, fused",
    [
        ({}, "bytes", "products, S again"),
        ({"dtype": "float32", "d": 256}, "products", "products, S again"),
        ({"training": False}, "bytes", "products"),
    ],
)
def test_the_name_of_the_longer_clock(fields, standard, fused):
    ways = figure.trace(figure.State(**fields))["ways"]
    assert (ways["standard"]["clocks"][-1], ways["fused"]["clocks"][-1]) == (standard, fused)


@states
def test_twice_the_tokens_are_twice_the_fused_memory_and_four_times_the_standard(state):
    trace = figure.trace(state)
    doubled = np.arange(len(figure.LENGTHS) - 4)
    assert [figure.LENGTHS[at + 4] for at in doubled] == [2 * figure.LENGTHS[at] for at in doubled]
    totals = {name: np.array([need["total"] for need in way["needs"]], float) for name, way in trace["ways"].items()}
    assert np.array_equal(totals["fused"][4:], 2 * totals["fused"][:-4])
    assert np.allclose((totals["standard"][4:] / totals["standard"][:-4])[-8:], 4, rtol=0.01)
    for way in trace["ways"].values():
        seconds = np.array(way["seconds"])
        assert np.allclose((seconds[4:] / seconds[:-4])[-8:], 4, rtol=0.01)


def test_an_unknown_rate_is_stated_and_not_guessed():
    state = figure.State(card="B200", dtype="float32")
    way = figure.trace(state)["ways"]["fused"]
    assert set(way["seconds"]) == {None} and way["ends"] is None
    assert "no float32 rate is known" in figure.describe(state)


def test_too_much_is_stated_for_every_length_that_does_not_fit():
    for step, N in enumerate(figure.LENGTHS):
        words = figure.describe(replace(figure.State(), step=step))
        ways = figure.trace(figure.State())["ways"]
        assert words.count("too much") == sum(N > way["longest"] for way in ways.values())


def test_describe_has_the_numbers():
    words = figure.describe(figure.State())
    need = io_complexity.need(49152, 64, heads=16, training=True, fused=False).total
    for part in ("49,152 tokens", figure.style.amount(need), "too much", "5.2 million", "418 ms", "111 ms"):
        assert part in words
    assert "[49,152 tokens](step)" in words.template


@pytest.mark.parametrize(
    "seconds, words",
    [(1e-9, "0.001 µs"), (2e-5, "20 µs"), (0.25, "250 ms"), (59, "59 s"), (3600, "1 h"), (86400 * 3, "3 days")],
)
def test_durations_are_written_in_the_largest_unit(seconds, words):
    assert figure.duration(seconds) == words
