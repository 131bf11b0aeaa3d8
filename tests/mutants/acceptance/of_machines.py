"""The checks that models of machines must pass: schedules, placements, simulated SMs, and counts of cycles."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from flashlab.kernels import masks as triton_masks
from flashlab.kernels.hopper import schedule
from flashlab.kernels.problem import Problem
from flashlab.machine import ranks, sm
from flashlab.machine.operations import Barrier, Buffer, Commit, Product, Take, Tile, Wait
from flashlab.reference import masks, next_machine, pipeline, ring, roles
from flashlab.reference.attention import attention, attention_backward
from tests.mutants.acceptance.cases import forward, mask_if
from tests.tools.taken_in import assert_forward_takes_in, in_window


def simulated_pipeline():
    """Every design is exact and takes the cycles of its budget; wrong phases are a deadlock or a race, by name."""
    small, quick = pipeline.Budget(d=64), pipeline.Budget(softmax_of_64=64)
    locked, three = pipeline.Design(3, overlap=False, consumers=1), pipeline.Design(3)
    designs = pipeline.Design(1, ping_pong=False), pipeline.Design(whole_q=False), locked, pipeline.Design(budget=quick)
    for design in designs:

        def run(Q, K, V, causal, design=design):
            return _ran(pipeline.forward(Q, K, V, design, Br=4, Bc=4, mask=mask_if(causal)))

        forward(run, 4)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 32, 4)).astype(np.float32)
    for steady, cycles, design in (
        (3904, 127171, locked),
        (2048, 68201, three),
        (1792, 58944, replace(three, budget=small)),
        (2048, 67871, replace(three, whole_q=False)),
        (2048, 69097, replace(three, ping_pong=False)),
    ):
        run = pipeline.forward(Q[:2], K, V, design, Br=2, Bc=1)  # 32 blocks
        assert (run.steady, run.cycles) == (steady, cycles), f"{run.steady} cycles a block, {run.cycles} in all"
    for error, message, mistake in (
        (sm.Deadlock, "phase 0 of empty[0]", {"empty_phase": lambda n: n & 1}),
        (sm.Race, "is on its way", {"full_phase": lambda n: 0}),
        (sm.Race, "copied into K[1] while consumer 1 reads", {"empty_count": 1}),
        (sm.Race, "all arrivals of the open phase are in", {"empty_phase": lambda n: 1}),
        (sm.Race, "copied into K[0] while consumer 0 reads", {"early": True}),
    ):
        try:
            pipeline.forward(Q[:2], K[:4], V[:4], pipeline.Design(**mistake), Br=2, Bc=1)
        except error as raised:
            assert message in str(raised), f"{raised} does not say: {message}"
        else:
            raise AssertionError(f"nobody noticed {mistake}")


def _ran(run):
    """Return the results of a run, in which every softmax must have waited for its scores."""
    last = {(e.by, e.kind, e.j): e for e in run.events}  # the last event of each kind, of the last tile of queries
    for (by, kind, j), event in last.items():
        assert kind != "softmax" or event.start >= last[by, "S", j].end, (
            f"{by} took a softmax of scores that were not done"
        )
    stores = [(event.by, event.j) for event in run.events if event.kind == "O"]
    assert len(stores) == len(set(stores)), "a result is stored twice"
    return run.O, run.lse


def hopper_schedule():
    """Every tile once, longest first among heads that share the cache; no program ends late, none is without work."""
    for B, H, Hk, Nq, Nk, causal, programs in (
        (2, 6, 2, 700, 200, True, 7), (1, 12, 3, 384, 90000, True, 5), (3, 2, 1, 300, 200, False, 100),
        (1, 16, 16, 4096, 16384, True, 32), (1, 9, 9, 8192, 8192, True, 32),
    ):  # fmt: skip
        Tr, group = -(-Nq // 128), H // Hk
        groups = -(-B * Hk // max(1, 16 * 2**20 // (4 * Nk * 64)))  # of heads: K and V of 2 bytes in 16 MiB
        schedule._longest_first.cache_clear(), schedule._in_turn.cache_clear()
        mask = triton_masks.causal() if causal else triton_masks.full()
        problem = Problem(B, H, Hk, Nq, Nk, 64, 64, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
        tiles, starts, used = schedule.table(problem, 128, 128, programs)
        tiles, starts = tiles.numpy(), starts.numpy()
        i, b, h, hk = tiles.T
        assert sorted(zip(b, h, i, strict=True)) == list(np.ndindex(B, H, Tr)), "not every tile once"
        assert (hk == h // group).all(), "keys of another head"
        assert used == len(starts) - 1 and (np.diff(starts) > 0).all() and starts[-1] == len(tiles), "no work"
        assert used >= min(programs, len(tiles)), "a program is idle"
        last = Nq - 1 - (Tr - 1 - i) * 128
        end = np.clip(last + 1 + Nk - Nq, 1, Nk) if causal else np.full_like(i, Nk)  # [tiles], keys
        n = -(-end // 128)  # [tiles], blocks
        assert (schedule.blocks(i, 128, 128, problem) == n).all(), "wrong number of blocks"
        times = np.add.reduceat(n, starts[:-1])
        assert times.max() <= times.mean() + n.max(), "a program is late"
        turn = np.where(8 * n <= n.max(), groups, (b * Hk + hk) * groups // (B * Hk)) if causal else np.zeros_like(n)
        for mine in np.split(np.arange(len(tiles)), starts[1:-1]):
            assert (np.diff(n[mine])[np.diff(turn[mine]) == 0] <= 0).all(), "not the longest first"
        n = schedule.blocks(np.arange(Tr), 128, 128, problem)
        i, b, _, hk = schedule.ordered_tiles(problem, 128, n).T
        turn = np.where(8 * n[i] <= n.max(), groups, (b * Hk + hk) * groups // (B * Hk))
        assert (np.diff(turn) >= 0).all(), "too many keys and values at a time, or a small group of heads"
    _, starts = schedule.schedule(np.zeros((3, 4)), np.array([8, 1, 1]), 1, parts=5)  # the first takes up four parts
    assert (np.diff(starts) > 0).all(), "no work"
    for Nq, Nk, mask in (
        (200, 200, triton_masks.causal()), (200, 300, triton_masks.full()), (300, 77, triton_masks.causal()),
        (128, 192, triton_masks.causal()), (256, 320, triton_masks.causal()), (300, 420, triton_masks.window(130)),
        (300, 300, triton_masks.window(60, 50)), (200, 140, triton_masks.window(70)),
        (200, 500, triton_masks.window(70)),
    ):  # fmt: skip
        for Br in (128, 192):
            if isinstance(mask, triton_masks.Window) and mask.left is not None:
                problem = Problem(1, 1, 1, Nq, Nk, 64, 64, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
                met = schedule.blocks(np.arange(-(-Nq // Br)), Br, 128, problem)
                assert met.max() <= (mask.left + mask.right + Br - 1) // 128 + 2, "wrong number of blocks"
            assert_forward_takes_in(in_window(mask, Nq, Nk), mask, Br)
    ids = torch.arange(333) // 150
    documents, same = triton_masks.documents(ids), ids[:, None] == ids
    window = triton_masks.window(40, 1)
    assert_forward_takes_in(same, documents, 128)
    assert_forward_takes_in(same & in_window(window, 333, 333), documents & window, 128)


def ring_of_three():
    """Three ranks in every placement give the results of one, forward and backward."""
    Q, K, V, dO = (np.random.default_rng(seed).normal(size=(11, width)) for seed, width in enumerate((4, 4, 6, 6)))
    for name in ranks.PLACEMENTS:
        for mask in (None, masks.causal()):
            placement = ranks.placement_of(name, len(Q), 3)
            events = [] if mask is None else None
            O, lse = ring.forward(Q, K, V, placement, mask=mask, events=events)
            assert events is None or Counter(it[0] for it in events) == {"compute": 9, "send": 6}, "other events"
            ours = O, *ring.backward(dO, Q, K, V, O, lse, placement, mask=mask)
            theirs = attention(Q, K, V, mask=mask), *attention_backward(Q, K, V, dO, mask=mask)
            for x, y in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    nothing = np.zeros((1, 6)), np.full(1, -np.inf)
    np.testing.assert_equal(ring.merge(*nothing, *nothing), nothing)


def blocks_of_placements():
    """The blocks of two ranks contain each visible score once, and zigzag gives all ranks the same number of scores."""
    ranks.blocks.cache_clear()
    try:
        windows = (None, None), (None, 0), (5, 0), (1, 2)
        for N, name, (left, right) in product((6, 24), ranks.PLACEMENTS, windows):
            placement = getattr(ranks, name)(N, 3)
            assert sum(map(ranks.length, placement)) == N, "another number of tokens"
            everything = [(range(N),)] if name != "striped" else []
            for queries, keys in product(placement, [*placement, *everything]):
                i, j = (np.array([position for run in runs for position in run]) for runs in (queries, keys))
                distance = j[None, :] - i[:, None]
                above, below = (24 if end is None else end for end in (left, right))
                visible = (distance >= -above) & (distance <= below)  # [queries, keys]
                count = np.zeros(visible.shape, int)  # [queries, keys]
                for rows, cols, before, after in ranks.blocks(queries, keys, left, right):
                    own = np.arange(*rows)[:, None] - rows[1] + cols[1]
                    after, before = (99 if end is None else end for end in (after, before))
                    k = np.arange(*cols)
                    block = (k >= own - before) & (k <= own + after)
                    count[slice(*rows), slice(*cols)] += block
                    edges = block[0], block[-1], block[:, 0], block[:, -1]
                    assert all(edge.any() for edge in edges), "a row or a column that sees nothing"
                    cut = (own + after < k).any(), (k < own - before).any()
                    assert cut == (after != 99, before != 99), "an end that cuts nothing"
                np.testing.assert_array_equal(count, visible)
                assert ranks.pairs(queries, keys, left, right) == visible.sum()
        for step in ranks.schedule(ranks.zigzag(24, 3), None, 0):
            assert len({count for _, count in step}) == 1, "zigzag: some ranks have more to do than others"
    finally:
        ranks.blocks.cache_clear()


def cycles_of_the_next_machine():
    """Tables 1 and 3 of FlashAttention-4, and the cycles of both units at the balanced share."""
    assert next_machine.forward_cycles(128, 128, 128) == (1024, 768, 1024), "table 1"
    assert next_machine.forward_cycles(256, 128, 64) == (1024, 768, 2048), "table 1, two tiles, half the head"
    assert next_machine.backward_cycles() == (2560, 3328, 1024), "table 3"
    assert next_machine.backward_cycles(pair=True) == (2560, 2688, 1024), "table 3, a pair"
    rates = next_machine.Rates()
    share = rates.balanced()
    ends = rates.lane_cycles(9, share), rates.exponential_cycles(9, share)
    assert abs(ends[0] - ends[1]) < 1e-9 < share, "the units are not balanced"
    assert rates.lane_cycles(128 * 128, 1) == 1792, "instructions per score"
    assert rates.exponential_cycles(128 * 128, 0.25) == 768, "three quarters of the exponentials"


def order_of_additions():
    """Each program visits each tile that it sees once, and no program waits; pairs have the same work."""
    for causal, makespan, waited in ((False, 29, 10), (True, 29, 60)):
        assert next_machine.finished(5, causal) == (25, 0), "a program waits"
        assert next_machine.finished(5, causal, shifted=False) == (makespan, waited), "the lowest program is first"
        visits = next_machine.visits(5, causal)
        assert [sorted(queue) for queue in visits] == [list(range(j if causal else 0, 5)) for j in range(5)], "visits"
        for shifted in (False, True):
            turns = next_machine.turns(5, causal, shifted)
            assert [sorted(turn) for turn in turns] == [list(range(i + 1 if causal else 5)) for i in range(5)], "turns"
    assert sorted(map(sorted, next_machine.pairs(6))) == [[0, 5], [1, 4], [2, 3]], "unequal pairs"


def roles_of_the_next_machine():
    """The roles compute attention of two tiles, with maxima that rise by little and by much, and meet no race."""
    small, tile, done = Buffer("S", (1, 1), np.float32), Tile("S", 0), Barrier("done", 1)
    into = Product("S", 0, {}, lambda: np.zeros((1, 1)), 2, 1, (small, tile))
    for operations, message in (
        ([Commit(done), Wait(done, 0)], None),  # a commit after no product: the barrier completes at once
        ([Take(tile, small)], "it holds nothing"),
        ([into, Take(tile, small)], "is on its way"),
        ([into, Take(tile, small)], "is on its way"),  # although the buffer holds the tile of the run before
    ):
        multiprocessor = sm.SM(strict=False)
        multiprocessor.run({"program": (operation for operation in operations)})
        assert [message in race for race in multiprocessor.races] == ([] if message is None else [True]), (
            multiprocessor.races
        )
    multiprocessor = sm.SM(issue=100)
    multiprocessor.run({"program": (operation for operation in [Product("S", 0, {}, int, 2, 1)])})
    assert multiprocessor.events[-1].end == 101, "instructions are issued at once"
    x = np.linspace([-3] * 16, [0] * 16, 9)
    by_polynomial = roles.weights(x, 0.2, next_machine.minimax(3)) != np.exp(x)
    assert by_polynomial.any(0).sum() == 3, "another share of the exponentials"
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(n, d)) for n, d in ((6, 4), (20, 4), (20, 3)))
    K *= np.linspace(0.5, 8, 20)[:, None]
    exact = attention(Q, K, V, return_lse=True)
    for cycles, rescales, design in (
        (14627, 2, roles.Design()),
        (14627, 7, roles.Design(threshold=2)),
        (12959, 2, roles.Design(stages=2, d=16, dv=128)),
        (12469, 7, roles.Design(stages=2, d=64, threshold=0)),
    ):
        run = roles.forward(Q, K, V, design, Bc=4)
        for ours, theirs in zip((run.O, run.lse), exact, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
        assert (run.cycles, run.rescales) == (cycles, rescales), f"{run.cycles} cycles, {run.rescales} rescales"
    Q, K, V = (x.astype(np.float32) for x in (Q, K, V))
    for share in (1, 0.3):
        np.testing.assert_allclose(roles.forward(Q, K, V, roles.Design(share=share), Bc=4).O, exact[0], 2e-3, 2e-3)
