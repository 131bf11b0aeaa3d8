"""gluon: right solutions pass however they are written, wrong ones get the sentence that fits their mistake."""

import numpy as np
import pytest

from flashlab.course.check import check
from flashlab.course.exercises import gluon as exercises
from flashlab.course.registry import find
from flashlab.grading.exercise import edited
from flashlab.kernels.gluon_interpreter import seeded
from flashlab.kernels.hopper.rungs.one_consumer import Bc, arrived, hide, release, scores, update
from flashlab.kernels.hopper.rungs.two_consumers import (
    gl,
    gluon,
    issue_scores,
    mbarrier,
    pass_turn,
    take_turn,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
    weights,
)
from flashlab.machine import chip
from tests.course.exercises import right


def registers_from_the_pool(consumers, producer):
    """Divide the registers of the launch, without the producer's, among the consumers."""
    pool = (512 // (consumers + 1) // 8 * 8) * (consumers + 1)  # of all warpgroups, one thread of each
    each = (pool - producer) // consumers
    return each - each % 8


def registers_in_bytes(consumers, producer):
    threads = 32 * 4 * (consumers + 1)
    at_launch = 2**18 / 4 / threads // 8 * 8
    return (at_launch + (at_launch - producer) / consumers) // 8 * 8


def registers_by_trying(consumers, producer):
    launch = max(R for R in range(0, 256, 8) if R * 128 * (consumers + 1) <= 65536)
    room = launch * (consumers + 1)
    return max(R for R in range(0, 512, 8) if R * consumers + producer <= room)


def thread_by_quotients(i, j):
    warp, row = divmod(i, 16)
    return 32 * warp + 4 * (row if row < 8 else row - 8) + (j // 2) % 4


def thread_by_looking(i, j):
    return chip.owners(64, 256)[i, j]


@gluon.jit
def fetch_that_counts_rounds(ring, X, place, g):
    stages: gl.constexpr = ring.empty.shape[0]
    turn = g // stages
    stage = g - turn * stages
    full, empty = ring.full.index(stage), ring.empty.index(stage)
    mbarrier.wait(empty, (turn + 1) % 2)
    mbarrier.expect(full, X.block_type.nbytes)
    tma.async_copy_global_to_shared(X, place, full, ring.tiles.index(stage))


@gluon.jit
def fetch_that_skips_the_first_waits(ring, X, place, g):
    stages: gl.constexpr = ring.full.shape[0]
    at = g % stages
    if g >= stages:
        mbarrier.wait(ring.empty.index(at), ((g - stages) // stages) & 1)
    mbarrier.expect(ring.full.index(at), X.block_type.nbytes)
    tma.async_copy_global_to_shared(X, place, ring.full.index(at), ring.tiles.index(at))


@gluon.jit
def step_that_waits_for_both_first(rings, Q_i, m_i, l_i, O_i, j, row, Nq, Nk, factor, causal: gl.constexpr):
    K_j, V_j = arrived(rings.K, j), arrived(rings.V, j)
    S_ij = hide(scores(Q_i, K_j), row, Bc * j, Nq, Nk, causal)
    release(rings.K, j)
    state = update(m_i, l_i, O_i, S_ij, V_j, factor)
    release(rings.V, j)
    return state


@gluon.jit
def overlapped_that_waits_late(
    rings, turn, Q_i, m_i, l_i, O_i, P_before, j, row, Nq, Nk, factor, causal: gl.constexpr, w: gl.constexpr
):  # fmt: skip
    take_turn(turn, j, w)
    S_ij = issue_scores(Q_i, arrived(rings.K, j))
    V_before = arrived(rings.V, j - 1)
    sums = warpgroup_mma(P_before, V_before, O_i, is_async=True)
    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))
    pass_turn(turn, w)
    S_ij = hide(S_ij, row, j * Bc, Nq, Nk, causal)
    release(rings.K, j)
    m_i, l_i, P_ij, alpha = weights(m_i, l_i, S_ij, factor, P_before.dtype, O_i.shape[1])
    sums = warpgroup_mma_wait(0, deps=(sums,))
    release(rings.V, j - 1)
    return m_i, l_i, sums * alpha[:, None], P_ij


RIGHT = {
    "gluon.thread": [thread_by_quotients, thread_by_looking],
    "gluon.registers": [registers_from_the_pool, registers_in_bytes, registers_by_trying],
    "gluon.fetch": [fetch_that_counts_rounds, fetch_that_skips_the_first_waits],
    "gluon.step": [step_that_waits_for_both_first],
    "gluon.overlapped": [overlapped_that_waits_late],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_numbers_that_flash_attention_3_uses():
    hand_over = find("gluon.registers").reference
    assert (hand_over(2, 24), hand_over(3, 32)) == (240, 160)


def test_the_answers_follow_from_the_layout():
    owners = chip.owners(64, 128)
    assert {*np.bincount(owners.ravel())} == {find("gluon.per_thread").answer}
    assert len({*owners[5]}) == 4, "four threads share a row"


TAKE, PASS = "    take_turn(turn, j, w)\n", "    pass_turn(turn, w)\n"
GIVE_K, GIVE_V = "    release(rings.K, j)\n", "    release(rings.V, j - 1)\n"
FIRST_WAIT, LAST_WAIT = (
    "    S_ij = warpgroup_mma_wait(1, deps=(S_ij,))\n",
    "    sums = warpgroup_mma_wait(0, deps=(sums,))\n",
)
SCORES = "    S_ij = issue_scores(Q_i, arrived(rings.K, j))\n"
UPDATE = "    state = update(m_i, l_i, O_i, S_ij, V_j, factor)\n"
EDITS = {  # what: the attempt that is edited, words that the sentence must contain, and the edits
    "expect, then wait": (fetch_that_counts_rounds, "before the stage is free", (
        "    mbarrier.wait(empty, (turn + 1) % 2)\n    mbarrier.expect(full, X.block_type.nbytes)\n",
        "    mbarrier.expect(full, X.block_type.nbytes)\n    mbarrier.wait(empty, (turn + 1) % 2)\n")),
    "a wait for the tile": (fetch_that_counts_rounds, "waits for its own tile", (
        "ring.tiles.index(stage))", "ring.tiles.index(stage))\n    mbarrier.wait(full, turn & 1)")),
    "the bytes of 64 columns": (fetch_that_counts_rounds, "three blocks of 128 columns", (
        "X.block_type.nbytes", "128 * 64 * 2")),
    "an arrival beside expect": (fetch_that_counts_rounds, "where all arrivals of the open phase are in", (
        "ring.tiles.index(stage))", "ring.tiles.index(stage))\n    mbarrier.arrive(full, count=1)")),
    "the parity of the stage": (fetch_that_counts_rounds, "produce waits for phase 0 of K.empty[1]", (
        "(turn + 1) % 2", "(stage + 1) % 2")),
    "two stages always": (fetch_that_counts_rounds, "three stages", ("ring.empty.shape[0]", "2")),
    "keys released late": (step_that_waits_for_both_first, "the stage of K is not free during the softmax", (
        GIVE_K, ""), (UPDATE, UPDATE + GIVE_K)),
    "scores twice": (step_that_waits_for_both_first, "multiplies a tile twice", (
        "    S_ij = hide(", "    S_ij = scores(Q_i, K_j)\n    S_ij = hide(")),
    "keys released twice": (step_that_waits_for_both_first, "K.empty", (
        ", V_j = arrived(rings.K, j), arrived(rings.V, j)", " = arrived(rings.K, j)"), (
        "V_j, factor", "arrived(rings.V, j), factor"), ("release(rings.V, j)", "release(rings.K, j)")),
    "maximum forgotten": (step_that_waits_for_both_first, "your lse = [-inf", (
        "state = update", "_, l_i, O_i = update"), ("return state", "return m_i, l_i, O_i")),
    "products in the other order": (overlapped_that_waits_late, "before a warpgroup_mma_wait has covered it", (
        SCORES, ""), (FIRST_WAIT, SCORES + FIRST_WAIT)),
    "keys released before the wait": (overlapped_that_waits_late, "no barrier keeps the two apart", (
        GIVE_K, ""), (FIRST_WAIT, GIVE_K + FIRST_WAIT)),
    "turn kept": (overlapped_that_waits_late, "waits for its turn during your softmax", (
        PASS, ""), (LAST_WAIT, PASS + LAST_WAIT)),
    "a wait for both": (overlapped_that_waits_late, "nothing runs beside the softmax", (
        LAST_WAIT, ""), (FIRST_WAIT, "    S_ij, sums = warpgroup_mma_wait(0, deps=(S_ij, sums))\n")),
    "no turns": (overlapped_that_waits_late, "out of turn", (TAKE, ""), (PASS, "")),
    "turn passed between the products": (overlapped_that_waits_late, "out of turn", (PASS, ""), (
        "    V_before = arrived", PASS + "    V_before = arrived")),
    "turn taken late": (overlapped_that_waits_late, "out of turn", (TAKE, ""), (PASS, TAKE + PASS)),
    "stage of K kept": (overlapped_that_waits_late, "K is not free during the softmax", (GIVE_K, ""), (
        GIVE_V, GIVE_V + GIVE_K)),
    "stage of K of the step before": (overlapped_that_waits_late, "has not read since", (
        "release(rings.K, j)", "release(rings.K, j - 1)")),
    "stage of V of this step": (overlapped_that_waits_late, "has not read since", (
        "release(rings.V, j - 1)", "release(rings.V, j)")),
    "result of a wait dropped": (overlapped_that_waits_late, "that no warpgroup_mma_wait has returned", (
        LAST_WAIT, "    warpgroup_mma_wait(0, deps=(sums,))\n")),
    "the first wait returns the other sums": (overlapped_that_waits_late, "that no warpgroup_mma_wait has returned", (
        FIRST_WAIT, "    sums = warpgroup_mma_wait(1, deps=(sums,))\n")),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_a_wrong_edit_is_rejected_for_what_it_does(what, capsys):
    attempt, words, *edits = EDITS[what]
    name = next(name for name, rights in RIGHT.items() if attempt in rights)
    for old, new in edits:
        attempt = edited(attempt, old, new)
    check(name, attempt)
    message = capsys.readouterr().out
    assert f"✗ {name}" in message and words in message


@pytest.mark.parametrize("seed", range(2))
def test_the_interpreter_gives_the_answers_to_the_edits_in_two_random_orders(seed):
    with seeded(seed):
        outcomes = {name: words.split(":")[0] for name, words in exercises.run_edits()}
    assert outcomes.pop("no early wait") == "nothing"  # the lesson states this one
    assert outcomes == {name: find(f"gluon.{name.replace(' ', '_')}").answer for name in outcomes}
