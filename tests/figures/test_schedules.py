import itertools

import numpy as np
import pytest

from figures import schedules as figure
from figures.figure import states
from flashlab.course.exercises import schedules as exercises
from flashlab.kernels.hopper import schedule

EVERY = list(states(figure))


@pytest.mark.parametrize("state", EVERY, ids=str)
def test_every_tile_is_computed_once_and_no_program_pauses(state):
    trace = figure.trace(state)
    tiles = trace["tiles"]
    Tr = figure.N // figure.SIZE
    assert sorted((tile["head"], tile["i"]) for tile in tiles) == list(
        itertools.product(range(figure.HEADS), range(Tr))
    )
    ends = [0] * state.programs
    for tile in tiles:
        assert tile["start"] == ends[tile["program"]]
        ends[tile["program"]] += tile["blocks"]
    assert trace["end"] == max(ends) >= trace["mean"] == sum(ends) / state.programs


@pytest.mark.parametrize("mask", figure.MASKS)
def test_tiles_are_as_long_as_the_keys_that_their_queries_see(mask):
    query, key = np.arange(figure.N)[:, None], np.arange(figure.N)
    text = np.searchsorted(figure.OFFSETS, key, "right") * (mask == "packed texts")
    for i, blocks in enumerate(figure.blocks(mask)):
        rows = query[i * figure.SIZE : (i + 1) * figure.SIZE]
        visible = (text[rows] == text) & ((key <= rows) | (mask == "no mask"))  # [SIZE, N]
        (columns,) = np.nonzero(visible.any(0))
        assert blocks == columns[-1] // figure.SIZE - columns[0] // figure.SIZE + 1


@pytest.mark.parametrize("mask", figure.MASKS)
@pytest.mark.parametrize("programs", figure.PROGRAMS)
def test_orders_are_those_of_the_lesson_and_of_the_kernel(mask, programs):
    work = np.tile(figure.blocks(mask), figure.HEADS)  # [tiles]
    lengths = {name: _lengths(name, mask, programs) for name in figure.ORDERS}
    dealt = np.bincount(np.arange(len(work)) % programs, work)
    assert lengths["dealt like cards"] == dealt.tolist()
    lists = exercises.longest_first.reference(work.tolist(), programs)
    assert sorted(lengths["longest first"]) == sorted(sum(work[tile] for tile in own) for own in lists)
    assert max(lengths["few heads at a time"]) <= max(lengths["dealt like cards"])


def _lengths(order, mask, programs):
    tiles = figure.run(order, mask, programs)
    return np.bincount([it["program"] for it in tiles], [it["blocks"] for it in tiles]).tolist()


@pytest.mark.parametrize("mask", ["causal", "packed texts"])
def test_few_heads_at_a_time_is_the_table_of_the_kernel(mask, monkeypatch):
    monkeypatch.setattr(schedule, "BOUNDARY", 0)  # the figure counts only blocks
    schedule._longest_first.cache_clear()
    problem = figure.problem(mask)._replace(device=figure.torch.device("cpu"))
    table, starts, programs = schedule.table(problem, figure.SIZE, figure.SIZE, 8)
    schedule._longest_first.cache_clear()
    assert programs == 8
    tiles = figure.run("few heads at a time", mask, 8)
    for program in range(programs):
        own = [(it["i"], it["head"]) for it in tiles if it["program"] == program]
        assert own == [(i, h) for i, _, h, *_ in table[starts[program] : starts[program + 1]].tolist()]


def test_few_heads_end_as_early_and_need_half_the_cache():
    causal = {it["name"]: it for it in figure.trace(figure.State())["orders"]}
    dealt, longest, few = (causal[name] for name in figure.ORDERS)
    assert dealt["end"] == 64 and longest["end"] == few["end"] == 36 == figure.trace(figure.State())["mean"]
    trace = figure.trace(figure.State())
    assert longest["heads"] * trace["bytes"] > trace["cache"] > 1.8 * few["heads"] * trace["bytes"]


def test_describe_has_the_numbers():
    assert figure.describe(figure.State()) == (
        "Dealt like cards, causal: the last program ends at 64, and no order ends before 36. "
        "At 36: 4 of 8 programs idle, 4 heads in use."
    )
    assert figure.describe(figure.State(36, figure.ORDERS[1])).endswith("At 36: all programs have ended.")
