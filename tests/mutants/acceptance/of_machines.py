"""The checks that models of machines must pass: schedules, placements, simulated SMs, and counts of cycles."""

from collections import Counter
from itertools import product

import numpy as np
import torch

from flashlab.course import data
from flashlab.kernels import masks as kernel_masks
from flashlab.kernels.hopper import schedule
from flashlab.machine import ranks, sm
from flashlab.machine.operations import Barrier, Buffer, Commit, Product, Take, Tile, Wait
from flashlab.reference import masks, next_machine, pipeline, ring, roles
from flashlab.reference.pipeline import Budget, Design
from tests.kernels import test_schedule
from tests.machine import test_ranks
from tests.reference import test_next_machine, test_pipeline, test_ring, test_roles
from tests.reference.test_tiling import ADVERSARIAL
from tests.tools.taken_in import assert_forward_takes_in, in_window

HEAD = data.captured("alice").head()  # Q K V [512, 32]
SHORT = HEAD[0][:256], *HEAD[1:]
LENGTHS = (300, 420), (200, 140), (300, 77), (128, 192), (256, 320)


def simulated_pipeline():
    for design, cycles in test_pipeline.LADDER.values():
        test_pipeline.test_cycles_per_block_when_the_pipeline_is_filled(HEAD, design, cycles)
    for mistake, sentence in test_pipeline.RACES.values():
        test_pipeline.test_a_race_says_who_when_and_where(HEAD, mistake, sentence)
    for mistake, sentence in test_pipeline.DEADLOCKS.values():
        test_pipeline.test_a_deadlock_says_who_waits_for_what(HEAD, mistake, sentence, True)
    for inputs, mask in ADVERSARIAL.values():
        test_pipeline.test_adversarial_inputs(inputs, mask, 5, 16, inputs[0].dtype)
    test_pipeline.test_a_head_start_does_what_turns_do(HEAD)
    locked, quick = Design(overlap=False, consumers=1), Design(budget=Budget(softmax_of_64=64))
    for design in Design(1, ping_pong=False), Design(whole_q=False), locked, quick:
        test_pipeline.test_every_pipeline_equals_dense(HEAD, design, None)
        test_pipeline.test_events_do_not_overlap_and_take_the_cycles_of_the_budget(HEAD, design)
        run = pipeline.forward(*HEAD, design)
        last = {(e.by, e.kind, e.j): e for e in run.events}  # the last event of each kind, of the last tile of queries
        early = [at for at, e in last.items() if at[1] == "softmax" and e.start < last[e.by, "S", e.j].end]
        assert early == [], "a softmax of scores that are not done"
        stores = [(e.by, e.j) for e in run.events if e.kind == "O"]
        assert len(stores) == len(set(stores)), "a result is stored twice"


def ring_of_three():
    for name, mask in product(ranks.PLACEMENTS, (None, masks.causal())):
        test_ring.test_ring_equals_attention(name, 3, mask)
        test_ring.test_gradients_equal_those_of_one_processor(name, 3, mask)
    for name in ranks.PLACEMENTS:
        test_ring.test_the_steps_are_those_of_the_schedule(name)
    events, nothing = [], (np.zeros((1, 6)), np.full(1, -np.inf))
    ring.forward(*test_ring.inputs()[:3], ranks.zigzag(23, 3), events=events)
    assert Counter(event.kind for event in events) == {"compute": 9, "send": 6}, "other events"
    np.testing.assert_equal(ring.merge(*nothing, *nothing), nothing)


def blocks_of_placements():
    for name, (left, right) in product(ranks.PLACEMENTS, ((None, None), (None, 0), (3, 0), (2, 5))):
        test_ranks.test_blocks_cover_each_visible_score_once(name, left, right, None)
    test_ranks.test_every_token_has_one_owner("zigzag", 29, 3)
    test_ranks.test_causal_zigzag_is_one_block_per_step()
    for N, (left, right) in product((6, 24), ((None, 0), (5, 0), (1, 2))):
        placement = ranks.zigzag(N, 3)
        for queries, keys in product(placement, [*placement, (range(N),)]):
            for block in ranks.blocks(queries, keys, left, right):
                assert_is_tight(block, ranks.length(queries), ranks.length(keys))


def assert_is_tight(block, *shape):
    """The first and the last row and column of a block see something, and each end of its window hides something."""
    inside = test_ranks.covered([block], shape)[slice(*block.rows), slice(*block.cols)]
    assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
    for end in "left", "right":
        hidden = ranks.Block(block.rows, block.cols, None, None)._replace(**{end: getattr(block, end)})
        assert getattr(block, end) is None or hidden.pairs < inside.size, "an end that hides nothing"


def cycles_of_the_next_machine():
    for Br, cycles in (128, (1024, 768, 1024)), (256, (2048, 1536, 2048)):
        test_next_machine.test_forward_cycles_are_those_of_table_1(Br, cycles)
    for pair, cycles in (False, (2560, 3328, 1024)), (True, (2560, 2688, 1024)):
        test_next_machine.test_backward_cycles_are_those_of_table_3(pair, cycles)
    test_next_machine.test_lanes_and_the_exponential_unit_are_balanced()


def order_of_additions():
    for causal in False, True:
        test_next_machine.test_shifted_programs_never_wait(5, causal)
        for shifted in False, True:
            test_next_machine.test_every_tile_is_visited_and_added_once(causal, shifted)
    test_next_machine.test_pairs_have_equal_work()


def roles_of_the_next_machine():
    early_queries = roles.Design(stages=2, d=16, dv=128)
    for design, Bc in (roles.Design(), 128), (roles.Design(threshold=0, d=64, stages=2), 100), (early_queries, 32):
        test_roles.test_roles_compute_attention(SHORT, design, Bc)
    for d, dv, cycles in (64, None, 2048), (128, None, 2176), (192, 128, 2560):
        test_roles.test_cycles_per_block_when_the_pipeline_is_filled(SHORT, d, dv, cycles)
    test_roles.test_a_late_maximum_spares_rescaling(SHORT)
    test_roles.test_the_polynomial_is_lost_in_the_rounding_of_weights(SHORT)
    run = roles.forward(*SHORT, roles.Design(threshold=0), Bc=32)
    assert (run.cycles, run.rescales) == (38563, 24), f"{run.cycles} cycles, {run.rescales} rescales"
    x = np.linspace([-3] * 16, [0] * 16, 9)
    by_polynomial = roles.weights(x, 0.2, next_machine.minimax(3)) != np.exp(x)
    assert by_polynomial.any(0).sum() == 3, "another share of the exponentials"


def operations_of_an_sm():
    small, done, first = Buffer("S", (1, 1), np.float32), Barrier("done", 1), Tile("S", 0)
    into = Product("S", 0, {}, lambda: np.zeros((1, 1)), 2, 1, (small, first))
    machine = sm.SM(strict=False)
    machine.run({"program": (it for it in [Commit(done), Wait(done, 0)])})
    assert machine.races == [], "after a commit of no product, the barrier completes at once"
    for _ in "12":  # the second time, the buffer holds the tile of the first
        machine.run({"program": (it for it in [into, Take(first, small)])})
    assert ["is on its way" in race for race in machine.races] == [True, True]
    machine = sm.SM(issue=100)
    machine.run({"program": (it for it in [Product("S", 0, {}, int, 2, 1)])})
    assert machine.events[-1].end == 101, "instructions are issued at once"


def hopper_schedule():
    test_schedule.test_query_heads_of_one_key_head_stay_together()
    test_schedule.test_longer_tiles_come_first_among_heads_that_share_the_cache()
    test_schedule.test_the_shortest_tiles_come_after_those_of_all_heads()
    for problem in (2, 6, 2, 300, 700, True, 7), (3, 2, 1, 640, 640, False, 132), (1, 9, 9, 8192, 8192, True, 32):
        test_schedule.test_each_tile_is_in_the_list_of_one_program(problem, 128, schedule.table)
        test_schedule.test_no_program_is_later_than_the_mean_plus_one_tile(problem)
    test_schedule.test_equal_tiles_go_round(False, 1000)
    test_schedule.test_the_busiest_program_has_little_more_than_the_mean(20, 3333)
    for causal in False, True:
        test_schedule.test_blocks_are_those_that_some_row_sees(128, 128, causal)
    _, starts = schedule.schedule(np.zeros((3, 4)), np.array([8, 1, 1]), 1, parts=5)  # the first takes up four parts
    assert (np.diff(starts) > 0).all(), "no work"
    windows = [(kernel_masks.window(*ends), *ends) for ends in ((130, 0), (60, 50), (5, 70))]
    for mask, left, right in windows:
        problem = test_schedule.problem_of(1, 1, 1, 300, 800, False)._replace(mask=mask)
        met = schedule.blocks(np.arange(3), 128, 128, problem)
        assert met.max() <= (left + right + 127) // 128 + 2, "blocks that no row sees"
    for mask in kernel_masks.full(), kernel_masks.causal():
        test_schedule.test_each_score_that_the_mask_leaves_is_taken_in_once("forward", 192, mask, lambda _: LENGTHS)
    for _, left, right in windows:
        for Br in 128, 192:
            test_schedule.test_each_score_that_a_window_leaves_is_taken_in_once(left, right, Br, lambda _: LENGTHS[:2])
    test_schedule.test_each_score_that_a_rule_shows_is_taken_in_once(200, 333, 128)
    ids, near = torch.arange(333) // 150, kernel_masks.window(40, 1)
    assert_forward_takes_in((ids[:, None] == ids) & in_window(near, 333, 333), kernel_masks.documents(ids) & near, 128)
