from dataclasses import replace

import numpy as np
import pytest

import figures
from figures import masks as figure
from flashlab.reference import masks, tiling

STATES = [
    figure.State(),
    figure.State(mask="documents", size=100, B=32),
    figure.State(mask="prefix", size=16, Nq=40),
    figure.State(mask="window and 4 sinks", size=32, B=8),
    figure.State(mask="padding", size=48, Nq=64),
]
states = pytest.mark.parametrize("state", STATES, ids=str)


def mask(state):
    return figure.KINDS[state.mask](state.size)


@states
def test_the_tiles_are_those_that_the_loop_visits(state):
    trace, kinds = figure.trace(state), masks.schedule(mask(state), (state.Nq, 128), state.B, state.B)
    assert [(tile["i"], tile["j"]) for tile in trace["tiles"]] == list(map(tuple, np.argwhere(kinds != masks.SKIPPED)))
    assert [tile["whole"] for tile in trace["tiles"]] == list(kinds[kinds != masks.SKIPPED] == masks.WHOLE)
    assert trace["cut"] == (kinds == masks.CUT).sum() and trace["skipped"] == (kinds == masks.SKIPPED).sum()


@states
def test_pairs_and_bytes_are_those_of_the_reference(state):
    trace = figure.trace(state)
    assert sum(tile["pairs"] for tile in trace["tiles"]) == trace["pairs"] == mask(state).dense((state.Nq, 128)).sum()
    bills = [tiling.fa2_traffic(state.Nq, 128, 32, state.B, state.B, mask=one).total() for one in (mask(state), None)]
    assert [trace["moved"], trace["full"]] == bills
    moved = [tile["moved"] for tile in trace["tiles"]]
    assert moved == sorted(set(moved)) and moved[-1] < trace["moved"]


@states
def test_spans_are_the_visible_keys(state):
    for row, spans in zip(mask(state).dense((state.Nq, 128)), figure.trace(state)["spans"], strict=True):
        assert np.flatnonzero(row).tolist() == [key for start, stop in spans for key in range(start, stop)]


def test_describe_has_the_numbers():
    assert figure.describe(figure.State()) == (
        "5,016 of 16,384 pairs are visible. The loop visits 26 tiles, of which 13 are cut, and skips 38. "
        "Useful share: 0.754. After tile 9: 51.4 kB of 140 kB."
    )
    last = figures.steps(figure, replace(figure.State(), step=0))
    assert [*last][-1].step == 26


def test_beyond_its_first_queries_a_window_has_the_useful_share_of_the_formula():
    state = figure.State(size=48, B=16)
    tiles = [tile for tile in figure.trace(state)["tiles"] if tile["i"] >= 3]
    assert sum(tile["pairs"] for tile in tiles) / (len(tiles) * 16**2) == 48 / (48 + 16)
