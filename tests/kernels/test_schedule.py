"""Each tile is computed once, no program has much more work than others, and tiles take in the scores of the mask."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashlab import kernels
from flashlab.course import data
from flashlab.kernels import masks, packed
from flashlab.kernels.hopper import schedule
from flashlab.kernels.problem import Problem
from tests.tools.long import long, long_except
from tests.tools.taken_in import assert_forward_takes_in, in_window

#            B, H, Hk, Nq, Nk, causal, programs
PROBLEMS = [
    (1, 1, 1, 1, 1, True, 132),
    (1, 1, 1, 1000, 1000, True, 5),
    (2, 6, 2, 300, 700, True, 7),
    (1, 4, 4, 700, 129, True, 3),
    (3, 2, 1, 640, 640, False, 132),
    (1, 16, 4, 4096, 4096, True, 132),
    (1, 8, 8, 2048, 50000, True, 16),
]
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 192, 200, 256, 257, 320, 384, 447, 448)


def problem_of(B, H, Hk, Nq, Nk, causal):
    mask = masks.causal() if causal else masks.full()
    return Problem(B, H, Hk, Nq, Nk, 128, 128, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")


def table(*sizes, Br=128, make=schedule.table):
    *sizes, programs = sizes
    tiles, starts, used = make(problem_of(*sizes), Br, 128, programs)
    assert tiles.dtype == starts.dtype == torch.int32
    assert len(starts) == used + 1
    return tiles.numpy(), starts.numpy()


def blocks_of(tiles, Nq, Nk, causal, Br=128):
    return schedule.blocks(tiles[:, 0], Br, 128, problem_of(1, 1, 1, Nq, Nk, causal))


@pytest.mark.parametrize("left, right", [(20, 0), (0, None), (None, 70), (5, 3)])
def test_bounds_on_the_host_are_those_written_out_and_never_negative(left, right):
    for Nq, Nk in [(700, 129), (129, 700), (448, 1), (64, 64)]:
        own, j = np.arange(Nk - Nq, Nk)[:, None], np.arange(Nk)  # [Nq, 1], [Nk]
        seen = (j >= own - (Nq + Nk if left is None else left)) & (j <= own + (Nq + Nk if right is None else right))
        starts = np.arange(0, Nq, 64)
        ends = np.broadcast_arrays(*schedule.bounds(masks.Window(left, right), starts, 64, Nq, Nk), starts)
        for begin, end, start in zip(*ends, strict=True):
            keys = np.flatnonzero(seen[start : start + 64].any(0))
            assert begin >= 0 and end >= 0
            assert (begin, end) == (keys[0], keys[-1] + 1) if len(keys) else begin >= end


@pytest.mark.parametrize("make", [schedule.table, schedule.plain_table])
@pytest.mark.parametrize("Br", [128, 192])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_tile_is_in_the_list_of_one_program(problem, Br, make):
    B, H, Hk, Nq, _, _, programs = problem
    tiles, starts = table(*problem, Br=Br, make=make)
    every = list(itertools.product(range(-(-Nq // Br)), range(B), range(H)))
    assert sorted(map(tuple, tiles[:, :3].tolist())) == every
    assert (tiles[:, 3] == tiles[:, 2] // (H // Hk)).all()
    assert starts[0] == 0 and starts[-1] == len(every)
    assert len(starts) - 1 == min(programs, len(every)) and (np.diff(starts) > 0).all()  # no program without work


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Br, Bc", [(128, 128), (192, 128), (64, 32)])
def test_blocks_are_those_that_some_row_sees(Br, Bc, causal):
    for Nq, Nk in itertools.product(LENGTHS, repeat=2):
        Tr = -(-Nq // Br)
        for i, n in enumerate(schedule.blocks(np.arange(Tr), Br, Bc, problem_of(1, 1, 1, Nq, Nk, causal))):
            last = Nq - 1 - (Tr - 1 - i) * Br
            seen = [j for j in range(Nk) if j <= last + Nk - Nq] if causal else range(Nk)
            assert n == max(len({j // Bc for j in seen}), 1), (Nq, Nk, i)


class Operators(TorchDispatchMode):
    """Record the operators that this thread calls: a CUDA graph of ``torch.compile`` owns what its thread allocates."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [schedule.table, schedule.plain_table])
def test_tables_are_not_in_the_memory_of_a_graph_that_the_thread_records(make):
    with Operators() as operators:
        tiles, _, _ = make(problem_of(1, 1, 1, 4321, 1234, True), 64, 64, 11)  # a size that no other test has
    assert operators.names == []
    with Operators() as operators:
        tiles.to(torch.float32)
    assert operators.names == ["aten._to_copy.default"]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_program_is_later_than_the_mean_plus_one_tile(problem):
    tiles, starts = table(*problem)
    costs = blocks_of(tiles, *problem[3:6]) + schedule.BOUNDARY
    times = np.add.reduceat(costs, starts[:-1])
    assert times.max() <= times.mean() + costs.max()


def test_plain_order_leaves_causal_programs_with_unequal_work():
    problem = 1, 16, 16, 4096, 4096, True, 32  # 32 tiles per head: a program gets the same tile of each head
    for make, late in ((schedule.plain_table, 1.9), (schedule.table, 1.05)):
        tiles, starts = table(*problem, make=make)
        times = np.add.reduceat(blocks_of(tiles, 4096, 4096, True), starts[:-1])
        assert (times.max() > late * times.mean()) == (make is schedule.plain_table)


@pytest.mark.parametrize("causal", [False, True])
def test_long_lists_are_cut_and_a_late_multiprocessor_delays_little(causal):
    """Each next program goes to the multiprocessor that is free first. One multiprocessor is free late."""
    H, N, side_by_side = 16, 32768, 8
    whole = 1, H, H, N, N, causal
    tiles, starts = table(*whole, side_by_side)
    costs = blocks_of(tiles, N, N, causal) + schedule.BOUNDARY
    parts = len(starts[:-1]) // side_by_side
    assert parts == int(blocks_of(tiles, N, N, causal).sum() / side_by_side / schedule.PART) > 10
    times = np.add.reduceat(costs, starts[:-1])
    assert times.max() <= times.mean() + costs.max()
    late = np.sum(times) / side_by_side / 2
    free = [late] + [0.0] * (side_by_side - 1)
    for time in times:
        first = free.index(min(free))
        free[first] += time
    assert max(free) <= (late + times.sum()) / side_by_side + times.max()


def test_longer_tiles_come_first_among_heads_that_share_the_cache():
    H, N, d = 16, 8192, 128
    together, long = schedule.L2_SHARE // (4 * N * d), N // 128 - 8  # tiles of a head that are longer than an eighth
    assert 1 < together < H
    tiles = schedule.ordered_tiles(problem_of(1, H, H, N, N, True), 128, np.arange(1, N // 128 + 1))
    for first in range(0, H, together):
        group = tiles[first * long : (first + together) * long]
        assert set(group[:, 2]) == set(range(first, first + together))
        assert (np.diff(blocks_of(group, N, N, True)) <= 0).all()


def test_the_shortest_tiles_come_after_those_of_all_heads():
    H, N = 16, 8192
    tiles = schedule.ordered_tiles(problem_of(1, H, H, N, N, True), 128, np.arange(1, N // 128 + 1))
    short = blocks_of(tiles, N, N, True) <= N // 128 // 8
    assert short[-8 * H :].all() and not short[: -8 * H].any()
    assert (np.diff(tiles[-8 * H :, 0]) <= 0).all()


@pytest.mark.parametrize("H, N", [(64, 3333), (20, 3333), (16, 6000), (36, 2048)])
def test_the_busiest_program_has_little_more_than_the_mean(H, N):
    """Also if sizes are no powers of two: groups of heads have nearly equal sizes, and short tiles fill the gaps."""
    tiles, starts = table(2, H, H, N, N, True, 132)
    times = np.add.reduceat(blocks_of(tiles, N, N, True) + schedule.BOUNDARY, starts[:-1])
    assert times.max() <= 1.02 * times.mean()


def test_query_heads_of_one_key_head_stay_together():
    tiles = schedule.ordered_tiles(
        problem_of(1, 8, 2, 256, 10**6, True), 128
    )  # K and V of one head alone are too large
    assert (np.diff(tiles[:, 3]) >= 0).all()


@pytest.mark.parametrize("causal, Nq", [(False, 1000), (True, 128)])
def test_equal_tiles_go_round(causal, Nq):
    tiles, starts = table(1, 5, 5, Nq, 128, causal, 4)
    plain, _ = table(1, 5, 5, Nq, 128, causal, 4, make=schedule.plain_table)
    assert (tiles == plain).all()
    Tr = -(-Nq // 128)
    for p in range(4):
        mine = tiles[starts[p] : starts[p + 1]]
        assert (mine[:, 2] * Tr + mine[:, 0] == np.arange(p, 5 * Tr, 4)).all()


def test_as_many_programs_as_tiles_have_one_each_in_plain_order():
    tiles, starts = table(2, 3, 1, 300, 300, True, 18, make=schedule.plain_table)
    assert (np.diff(starts) == 1).all()
    assert tiles.tolist() == [[i, b, h, 0] for b in range(2) for h in range(3) for i in range(3)]


# the scores that the forward kernel takes in, in the interpreter of Gluon


interpreted = pytest.mark.skipif(not kernels.INTERPRETED, reason="here the kernels run compiled")


RULED = [(128, 128), (200, 333), (333, 200), (447, 447), (1, 300), (1000, 1000)]


def each_once(lengths):
    """Return pairs of lengths in which each length is once that of the queries, and once that of the keys."""
    return list(zip(lengths, lengths[5:] + lengths[:5], strict=True))


def every(lengths):
    """Return all pairs of lengths."""
    return list(itertools.product(lengths, repeat=2))


of_lengths = pytest.mark.parametrize("pairs", [each_once, long(every)])


@interpreted
@of_lengths
@pytest.mark.parametrize("mask", [masks.full(), masks.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("kernel, Br", [("forward", 192), ("float8", 192), long("forward", 128)])
def test_each_score_that_the_mask_leaves_is_taken_in_once(kernel, Br, mask, pairs):
    for Nq, Nk in pairs(LENGTHS):
        assert_forward_takes_in(in_window(mask, Nq, Nk), mask, Br, kernel)


@interpreted
@of_lengths
@pytest.mark.parametrize("Br", [192, long(128)])
@pytest.mark.parametrize(
    "left, right", [(0, 0), (1, 0), (63, 0), (128, 0), (191, 0), (300, 0), (5, 70), (130, 129), (64, None), (None, 64)]
)
def test_each_score_that_a_window_leaves_is_taken_in_once(left, right, Br, pairs):
    mask = masks.Window(left, right)
    for Nq, Nk in pairs(LENGTHS[::2]):
        assert_forward_takes_in(in_window(mask, Nq, Nk), mask, Br)


@interpreted
@pytest.mark.parametrize("Br", [128, long(192)])
@pytest.mark.parametrize("Nq, Nk", long_except([(200, 333), (333, 200)], RULED))
def test_each_score_that_a_rule_shows_is_taken_in_once(Nq, Nk, Br):
    own, j, ids = torch.arange(Nk - Nq, Nk)[:, None], torch.arange(Nk), torch.arange(Nk) // 70
    documents = masks.documents(ids)
    same = (own >= 0) & (ids[own.clamp(0)] == ids)  # [Nq, Nk]
    for mask, seen in (
        (documents, same),
        (documents & masks.causal(), same & (j <= own)),
        (masks.window(30, 9) & documents, same & (j >= own - 30) & (j <= own + 9)),
        (masks.prefix(150), (j <= own) | (j < 150)),
        (masks.sinks(9) & documents, same & (j < 9)),
    ):
        assert_forward_takes_in(seen, mask, Br)


@interpreted
@pytest.mark.parametrize("Br", [128, long(192)])
def test_each_score_inside_a_text_is_taken_in_once(Br):
    lengths = [torch.tensor(x) for x in ((50, 0, 1, 139, 130, 3), (50, 7, 1, 100, 200, 0))]
    offsets = [torch.tensor([0, *x.cumsum(0)]) for x in lengths]
    text, key_text = map(torch.repeat_interleave, lengths)
    place, j = (torch.arange(len(x)) - begin[x] for x, begin in zip((text, key_text), offsets, strict=True))
    own = (place + lengths[1][text] - lengths[0][text])[:, None]
    for mask in (masks.full(), masks.causal(), masks.window(70, 3), masks.Window(20, None)):
        left, right = (10**6 if end is None else end for end in mask)
        seen = (text[:, None] == key_text) & (j >= own - left) & (j <= own + right)
        assert_forward_takes_in(seen, packed.prepared(*offsets).apart(mask), Br)


def test_the_boundary_follows_from_measured_times():
    """A tile takes blocks * t_b + t_o; at d = 128, both follow from two lengths, with 16 tiles per program."""
    rows = data.measured("h200_hopper")["rows"]
    fields = {"pass": "forward", "impl": "hopper", "d": 128, "causal": False}
    times = {row["N"] // 128: row["ms"] / 16 for row in rows if fields.items() <= row.items()}
    t_b, t_o = np.polyfit((8, 32), (times[8], times[32]), 1)
    assert t_o / t_b == pytest.approx(schedule.BOUNDARY, abs=0.2)  # two runs had 1.5 and 1.7
