"""Attention over a group has the output and gradients of attention on one device, for every placement of the tokens."""

import itertools
import math

import numpy as np
import pytest
import torch

from flashlab.distributed import plan
from flashlab.distributed.compute import State, merge
from flashlab.machine.ranks import PLACEMENTS, placement_of
from flashlab.reference import masks
from flashlab.reference import ring as reference
from flashlab.reference.online_softmax import State as ReferenceState
from flashlab.reference.online_softmax import finish
from flashlab.reference.online_softmax import merge as reference_merge
from tests.distributed import work
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"mask": masks.window(7, 2)},
    "documents": {"causal": True, "documents": (0, 5, 6, 23, 33)},
}
# Roundings that are allowed besides twice torch's error: 1, of the result, if the state is in a wider dtype, otherwise
# one per merge. In float64 torch's result is itself the standard, with an error of 0: the 20 are for all of ours.
ROUNDINGS = {torch.float16: 1, torch.bfloat16: 1, torch.float32: 4, torch.float64: 20}
WAYS = [
    ("ring", "zigzag"),
    ("ring", "contiguous"),
    ("ring", "striped"),
    ("gather", "zigzag"),
    ("all-to-all", "zigzag"),
    ("gather", "contiguous"),
    ("all-to-all", "contiguous"),
    ("all-to-all", "striped"),
]


def case(way, N, dtype, mask):
    return *way, N, dtype, MASKS[mask]


def assert_equals_one_device(team, P, cases):
    """Compare output and gradients with float64, allowing for torch's own error in the same dtype."""
    for way, rows in zip(cases, zip(*team.run(work.grid, P, cases)[:P], strict=True), strict=True):
        _, _, N, dtype, options = way
        rounded = work.inputs(N, dtype)
        plain = work.one_device(*rounded, **options)
        exact = work.one_device(*(x.double() for x in rounded), **options)
        for results in rows:  # of every rank
            for three in zip(results, plain, exact, strict=True):
                assert_as_exact_as_plain(*three, roundings=ROUNDINGS[dtype])


@pytest.mark.parametrize("mask", MASKS)
def test_the_placements_and_ways_agree_with_one_device(team, mask):
    assert_equals_one_device(team, 4, [case(way, 33, torch.float64, mask) for way in WAYS])


@pytest.mark.parametrize("P", [1, long(2), 3])
def test_any_number_of_processes(team, P):
    ways = WAYS[:5]
    assert_equals_one_device(team, P, [case(way, 33, torch.float64, mask) for way in ways for mask in MASKS])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_as_exact_as_one_device_in_the_same_dtype(team, dtype):
    assert_equals_one_device(team, 4, [case(way, 33, dtype, "causal") for way in WAYS[:5]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_combination(team, P, way, dtype):
    assert_equals_one_device(team, P, [case(way, 33, dtype, mask) for mask in MASKS])
    assert_equals_one_device(team, P, [case(way, 64, dtype, mask) for mask in ("full", "causal")])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_fewer_tokens_than_processes(team, way):
    for N in (1, 3):
        for (results,) in team.run(work.grid, 4, [case(way, N, torch.float64, "causal")]):
            exact = work.one_device(*work.inputs(N, torch.float64), causal=True)
            for ours, theirs in zip(results, exact, strict=True):
                torch.testing.assert_close(ours, theirs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["portable"])
def test_the_kernels_compute_the_blocks_as_well(team, kernel):
    """The kernels run in Triton's interpreter. Blocks have the dtype of the inputs, and are merged in float32."""
    dtype, N, options = torch.float16, 40, {"causal": True}
    cases = [("ring", "zigzag", N, dtype, options | {"kernel": kernel, "shape": {"H": 2, "Hk": 1, "d": 20, "dv": 12}})]
    q, k, v, dO = work.inputs(N, dtype, H=2, Hk=1, d=20, dv=12)
    plain = work.one_device(q, k, v, dO, **options)
    exact = work.one_device(*(x.double() for x in (q, k, v, dO)), **options)
    for (results,) in team.run(work.grid, 2, cases)[:2]:
        for three in zip(results, plain, exact, strict=True):
            assert_as_exact_as_plain(*three)


@pytest.mark.parametrize("scale", [0.3, -0.5, 0.0])
def test_any_scale(team, scale):
    options = {"causal": True, "scale": scale}
    exact = work.one_device(*work.inputs(16, torch.float64), **options)
    for (results,) in team.run(work.grid, 4, [("ring", "zigzag", 16, torch.float64, options)]):
        for ours, theirs in zip(results, exact, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3], WAYS[4]], ids=str)
def test_lse_is_that_of_all_keys(team, way):
    for lse in team.run(work.logsumexp, *way, 33):
        torch.testing.assert_close(lse, work.exact_lse(33))


# what ranks send


SHAPES = [(33, 8, 4, 16, 24), (64, 4, 4, 8, 8)]  # N, H, Hk, d, dv


@pytest.mark.parametrize("N, H, Hk, d, dv", SHAPES)
@pytest.mark.parametrize("way", [*WAYS[:4], *WAYS[5:7]], ids=str)
def test_what_is_sent_and_computed_is_what_the_plan_says(team, way, N, H, Hk, d, dv):
    for options, window in (({"causal": True}, (None, 0)), ({"mask": masks.window(3)}, (3, 0))):
        costs = plan.costs(N, 4, H=H, Hk=Hk, d=d, dv=dv, itemsize=4, window=window)
        cost = next(it for it in costs if (it.method, it.placement) == way)
        for rank, events in enumerate(team.run(work.recorded, *way, N, H, Hk, d, dv, options)):
            assert total(events, "send", "forward") == cost.sent[rank]
            assert total(events, "send", "backward") == cost.sent_backward[rank]
            heads = H // 4 if way[0] == "all-to-all" else H
            assert heads * total(events, "compute", "forward") == cost.scores[rank]
            assert total(events, "compute", "forward") == total(events, "compute", "backward")


def total(events, kind, what):
    return sum(event.amount for event in events if event.kind == kind and event.what.startswith(what))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_steps_of_real_processes_are_the_references(team, placement):
    """So the figure, which replays the reference, shows what processes do."""
    N, d, events = 32, 8, []
    X = np.ones((N, d), np.float32)
    reference.forward(X, X, X, placement_of(placement, N, 4), mask=masks.causal(), events=events)
    for rank, recorded in enumerate(team.run(work.recorded, "ring", placement, N, 1, 1, d, d, {"causal": True})):
        forward = [(it.kind, it.step, it.owner, it.amount) for it in recorded if it.what.startswith("forward")]
        assert sorted(forward) == sorted((it.kind, it.step, it.owner, it.amount) for it in events if it.rank == rank)


@pytest.mark.parametrize("P, ratio", [(2, 256 / 640), (4, 384 / 480), (8, 448 / 280)])
def test_the_closed_form_is_that_of_the_papers(P, ratio):
    """At N = 128K, H = 32, Hk = 8, d = 128, bfloat16, a ring sends P Hk / (H + Hk) times the bytes of an all-to-all."""
    N, n = 2**17, 2**17 // P
    costs = {(it.method, it.placement): it for it in plan.costs(N, P, H=32, Hk=8, d=128)}
    ring, gather, ulysses = costs["ring", "zigzag"], costs["gather", "zigzag"], costs["all-to-all", "contiguous"]
    assert set(ring.sent) == set(gather.sent) == {(P - 1) * 2 * 8 * n * 128 * 2}
    assert set(ulysses.sent) == {(P - 1) * (2 * 32 + 2 * 8) * n * 128 * 2 // P}
    assert math.isclose(ring.sent[0] / ulysses.sent[0], ratio) and math.isclose(ratio, P * 8 / 40)
    assert set(ring.sent_backward) == {ring.sent[0] + (P - 1) * 2 * 8 * n * 128 * 4}
    assert math.isclose(costs["ring", "contiguous"].efficiency, P / (2 * P - 1), rel_tol=1e-4)
    assert ring.efficiency == ulysses.efficiency == 1


def test_the_plan_picks_the_fastest_way():
    def pick(wire_rate, N=2**17, P=4, Hk=8):
        costs = plan.costs(N, P, H=32, Hk=Hk, d=128)
        return plan.pick(costs, d=128, flop_rate=600e12, wire_rate=wire_rate)

    assert pick(400e9)[:2] == ("ring", "zigzag")  # the products hide all transfers
    assert pick(1e9, P=8)[:2] == (
        "all-to-all",
        "contiguous",
    )  # which sends the fewest bytes
    assert pick(1e9, P=8, Hk=4)[0] == "ring"  # too few key/value heads for an all-to-all over 8 ranks


def test_at_the_overlap_condition_products_and_transfer_take_equally_long():
    n = plan.tokens_to_overlap(H=32, Hk=8, itemsize=2, flop_rate=600e12, wire_rate=400e9, causal=True)
    assert n == 750
    products = 4 * 32 * 128 * n * n / 2 / 600e12
    assert math.isclose(products, 2 * 8 * 128 * 2 * n / 400e9)


# the merge


def test_merge_is_the_references():
    rng = np.random.default_rng(0)
    a, b = (ReferenceState(rng.normal(size=5), rng.uniform(1, 9, 5), rng.normal(size=(5, 3))) for _ in range(2))
    a.m[0] = b.m[0] = a.m[1] = -np.inf
    for x, row in ((a, 0), (b, 0), (a, 1)):
        x.l[row], x.O[row] = 0, 0
    O, lse = merge(*(torch.from_numpy(x) for pair in map(finish, (a, b)) for x in pair))
    for ours, theirs in zip((O, lse), finish(reference_merge(a, b)), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12)


def test_a_state_merges_in_float32():
    """A state that was rounded at each of these 64 merges would lose digits that the blocks have."""
    generator = torch.Generator().manual_seed(0)
    blocks = [
        (torch.randn(1, 1, 4, 8, generator=generator).bfloat16(), torch.randn(1, 1, 4, generator=generator))
        for _ in range(64)
    ]
    state = State(blocks[0][0], 8)
    for O_b, lse_b in blocks:
        state.add((0, 4), O_b, lse_b.clone())
    weights = torch.softmax(torch.stack([lse for _, lse in blocks]).double(), 0)
    exact = (weights[..., None] * torch.stack([O.double() for O, _ in blocks])).sum(0)
    O, _ = state.finish()
    assert O.dtype == torch.bfloat16
    assert ((O - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()  # rounded once


def test_rows_without_keys_have_no_output():
    state = State(torch.zeros(1, 2, 3, 4), 5)
    O, lse = state.finish()
    assert O.shape == (1, 2, 3, 5) and (O == 0).all() and (lse == -math.inf).all()


# shards


@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
def test_positions_are_those_of_the_placement(team, name):
    for runs, positions in zip(placement_of(name, 29, 4), team.run(work.positions_of, name, 29), strict=True):
        assert positions == [*itertools.chain(*runs)]


@pytest.mark.parametrize("hops", [1, 2, -1, -3])
def test_tensors_arrive_from_the_rank_that_is_as_many_hops_behind(team, hops):
    counts = [3, 1, 0, 2]
    for rank, received in enumerate(team.run(work.passed_on, hops, counts)):
        source = (rank - hops) % 4
        assert received == [[source] * 2 * counts[source], [source] * 6 * counts[source]]
