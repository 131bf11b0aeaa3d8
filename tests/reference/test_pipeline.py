from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from flashlab.course import data
from flashlab.course.check import edited
from flashlab.machine import operations, sm
from flashlab.reference import pipeline
from flashlab.reference.attention import attention
from flashlab.reference.masks import causal
from flashlab.reference.pipeline import Budget, Design
from tests.reference.test_tiling import ADVERSARIAL, draw
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long

DESIGNS = [
    Design(stages, ping_pong, overlap, consumers, whole_q)
    for stages, ping_pong, overlap, consumers, whole_q in product(
        (1, 2, 3, 4), *[(True, False)] * 2, (1, 2), (True, False)
    )
]
LOCKED = Design(consumers=1)  # one of 128 rows: both warpgroups locked together


@pytest.fixture(scope="module")
def head():
    return data.captured("alice").head()  # Q K V [512, 32]


def assert_exact(run, Q, K, V, mask):
    plain = attention(Q, K, V, mask=mask, return_lse=True)
    exact = attention(*(tensor.astype(np.float64) for tensor in (Q, K, V)), mask=mask, return_lse=True)
    for got, rounded, true in zip((run.O, run.lse), plain, exact, strict=True):
        assert_as_exact_as_plain(got, rounded, true)


@pytest.mark.parametrize("mask", [None, causal()])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: str(design)[7:].split(", budget")[0])
def test_every_pipeline_equals_dense(head, design, mask):
    Q, K, V = head
    Q = Q[-300:]  # two tiles and a ragged one
    assert_exact(pipeline.forward(Q, K, V, design, mask=mask), Q, K, V, mask)


@pytest.mark.parametrize("inputs, mask", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("Br, Bc", [long(8, 8), long(16, 4), (5, 16), long(1, 3)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_adversarial_inputs(inputs, mask, Br, Bc, dtype):
    if dtype == np.float16:
        inputs = [np.clip(tensor, -100, 100) for tensor in inputs]
    inputs = [tensor.astype(dtype) for tensor in inputs]
    with np.errstate(over="raise", invalid="raise"):
        run = pipeline.forward(*inputs, Br=Br, Bc=Bc, mask=mask)
    assert_exact(run, *inputs, mask)


def test_the_budget_is_that_of_a_block_of_128_by_128():
    """Products: 4 * 128^3 operations at 4096 a cycle. Both warpgroups: exponentials + maxima + the rest."""
    budget = Budget()
    assert [2 * n * cycles for n, cycles in (budget.scores, budget.weighted)] == [1024, 1024]
    assert 2 * (budget.softmax + budget.rescale) == 1056 + 270 + 530
    assert pipeline.teraflops(2048) == pytest.approx(989.4, abs=0.1)  # the peak that NVIDIA states
    assert [n * cycles for n, cycles in (Budget(d=64).scores, Budget(d=64).weighted)] == [256, 256]
    assert Budget().copy(128) == pytest.approx(128 * 128 * 2 / (12e12 / 132 / 1.83e9), abs=0.5)


LADDER = {
    "one partition": (replace(LOCKED, overlap=False), 3904),
    "one partition, overlap within it": (LOCKED, 2880),
    "ping-pong only": (Design(3, overlap=False), 2048),
    "overlap only": (Design(3, ping_pong=False), 2048),
    "both": (Design(3), 2048),
}


@pytest.mark.parametrize("design, cycles", LADDER.values(), ids=LADDER)
def test_cycles_per_block_when_the_pipeline_is_filled(head, design, cycles):
    Q, K, V = head
    run = pipeline.forward(Q[:128], K, V, design, Bc=16)  # 32 blocks
    assert run.steady == cycles and run.blocks == 32
    assert run.busy == 32 * 2048 and cycles * 30 < run.cycles < cycles * 36


def test_each_idea_makes_a_short_run_shorter(head):
    Q, K, V = head
    ideas = [
        replace(LOCKED, overlap=False),
        LOCKED,
        Design(ping_pong=False, overlap=False),
        Design(overlap=False),
        Design(),
    ]
    cycles = [pipeline.forward(Q[:256], K, V, design).cycles for design in ideas]
    assert cycles == sorted(cycles, reverse=True) and len(set(cycles)) == len(cycles)
    stages = [pipeline.forward(Q[:256], K, V, Design(n)).cycles for n in (1, 2, 3, 4)]
    assert stages[0] > 1.5 * stages[1] and stages[1] >= stages[2] == stages[3]


def test_a_head_start_does_what_turns_do(head):
    """If each consumer begins with its own half of Q, the consumers are out of step without turns, too."""
    Q, K, V = head
    runs = [pipeline.forward(Q, K, V, Design(ping_pong=on, whole_q=False)) for on in (True, False)]
    assert runs[0].cycles == runs[1].cycles


def test_with_turns_the_interval_between_instructions_has_no_effect(head):
    Q, K, V = head
    runs = [pipeline.forward(Q, K, V, Design(budget=Budget(issue=n))) for n in (1, 8, 31)]
    assert len({run.cycles for run in runs}) == 1


@pytest.mark.parametrize("design", DESIGNS[::5], ids=lambda design: str(design)[7:].split(", budget")[0])
def test_events_do_not_overlap_and_take_the_cycles_of_the_budget(head, design):
    Q, K, V = head
    run = pipeline.forward(Q[:200], K, V, design)
    cost, busy = design.cost, {}
    for event in run.events:
        assert 0 <= event.start <= event.end <= run.cycles
        busy.setdefault((event.unit, event.by), []).append((event.start, event.end))
    for (unit, _), times in busy.items():
        if unit in ("vector units", "copy engine") or unit.startswith("consumer"):  # these do one thing at a time
            assert all(end <= start for (_, end), (start, _) in pairwise(sorted(times)))
    for kind, (n, cycles) in {"S": cost.scores, "PV": cost.weighted}.items():
        lengths = [event.end - event.start for event in run.events if event.kind == kind]
        assert len(lengths) == run.blocks * design.consumers and min(lengths) >= n * cycles
    softmaxes = [event.end - event.start for event in run.events if event.kind == "softmax"]
    assert min(softmaxes) >= cost.softmax and run.busy == 2048 * run.blocks
    assert [event.end for event in run.events] == sorted(event.end for event in run.events)


def products(run):
    return [(event.start, event.end, event.by) for event in run.events if event.unit == "tensor core"]


def together(run):
    """Return how many pairs of products of different consumers overlap in time, instruction by instruction."""
    return sum(a[2] < b[2] and a[0] < b[1] and b[0] < a[1] for a, b in product(products(run), repeat=2))


def test_ping_pong_keeps_products_of_different_consumers_apart(head):
    Q, K, V = head
    assert together(pipeline.forward(Q[:128], K, V, Design())) == 0
    assert together(pipeline.forward(Q[:128], K, V, Design(ping_pong=False))) > 0


def test_overlap_puts_softmax_beside_the_consumers_own_product(head):
    Q, K, V = head
    for overlap in (True, False):
        run = pipeline.forward(Q[:128], K, V, Design(overlap=overlap))
        mine = [event for event in run.events if event.by == "consumer 1"]
        softmax, PV = ([(e.start, e.end) for e in mine if e.kind == kind] for kind in ("softmax", "PV"))
        beside = sum(a[0] < b[1] and b[0] < a[1] for a, b in product(softmax, PV))
        assert beside == (3 if overlap else 0)  # of 4 blocks; the last product has no softmax beside it


def test_stages_bound_how_far_the_producer_is_ahead(head):
    Q, K, V = head
    for stages in (1, 2, 3, 4):
        events = pipeline.forward(Q[:128], K, V, Design(stages)).events
        copied = [event.start for event in events if event.kind == "K"]
        used = [event.end for event in events if event.kind == "S" and event.by == "consumer 1"]
        assert all(start >= end for start, end in zip(copied[stages:], used, strict=False))


def test_a_barrier_counts_arrivals_and_bytes_and_shows_a_parity():
    barrier = operations.Barrier("full", 2)
    assert not barrier.completed(0) and barrier.completed(1)  # before the first phase, as if one of parity 1 were over
    assert not barrier.arrive(100) and not barrier.arrive() and not barrier.deliver(60)
    assert barrier.phase == 0
    assert barrier.deliver(40) and barrier.phase == 1
    assert barrier.completed(0) and not barrier.completed(1)
    assert not barrier.arrive() and barrier.arrive() and barrier.phase == 0
    assert barrier.completed(1) and not barrier.completed(0)  # after two phases it looks as in the beginning


def test_two_programs_share_the_vector_units():
    def program():
        yield sm.Work("softmax", 0, 160)

    machine = sm.SM()
    machine.run({"a": program(), "b": program()})
    assert [(event.start, event.end) for event in machine.events] == [(0, 304), (16, 320)]


DEADLOCKS = {
    "the producer waits for the wrong phase": (
        {"empty_phase": lambda n: n & 1},
        "at cycle 0 nothing is under way and all wait: consumer 0 for phase 0 of full[0], "
        "consumer 1 for phase 0 of full[0], producer for phase 0 of empty[0]",
    ),
    "the consumers wait for the phase before": (
        {"full_phase": lambda n: (n & 1) ^ 1},
        "producer for phase 0 of empty[1]",
    ),
    "a barrier expects more arrivals than there are": ({"empty_count": 3}, "producer for phase 0 of empty[0]"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("mistake, sentence", DEADLOCKS.values(), ids=DEADLOCKS)
def test_a_deadlock_says_who_waits_for_what(head, mistake, sentence, strict):
    Q, K, V = head
    with pytest.raises(sm.Deadlock) as error:
        pipeline.forward(Q[:128], K, V, Design(**mistake), strict=strict)
    assert sentence in str(error.value)


RACES = {
    "the phase for full never changes": (
        {"full_phase": lambda n: 0},
        "at cycle 4,815 consumer 0 wants V_2 of step 2 from V[0], but V_2 of step 2 is on its way",
    ),
    "the same, one stage": (
        {"full_phase": lambda n: 0, "stages": 1},
        "at cycle 3,295 consumer 0 wants K_2 of step 1 from K[0], but it holds K_3 of step 0",
    ),
    "the phase for empty never changes": (
        {"empty_phase": lambda n: 1},
        "at cycle 0 producer arrives at full[0], but all arrivals of the open phase are in",
    ),
    "one arrival frees a stage": (
        {"empty_count": 1},
        "at cycle 4,687 producer has K_0 of step 3 copied into K[1] while consumer 1 reads K_2 of step 1 there",
    ),
    "freed before the products are done": (
        {"early": True},
        "at cycle 1,711 producer has K_1 of step 2 copied into K[0] while consumer 0 reads K_3 of step 0 there",
    ),
}


@pytest.mark.parametrize("mistake, sentence", RACES.values(), ids=RACES)
def test_a_race_says_who_when_and_where(head, mistake, sentence):
    Q, K, V = head
    with pytest.raises(sm.Race) as error:
        pipeline.forward(Q[:128], K, V, Design(**mistake))
    assert str(error.value) == sentence


def test_without_strict_a_race_gives_a_wrong_number_or_a_right_one_by_luck(head):
    Q, K, V = head
    O = attention(Q[:128], K, V)
    early = pipeline.forward(Q[:128], K, V, Design(early=True), strict=False)
    assert early.races and np.abs(early.O - O).max() > 0.1
    lucky = pipeline.forward(Q[:128], K, V, Design(3, empty_count=1), strict=False)
    assert lucky.races and np.abs(lucky.O - O).max() < 1e-5
    never = pipeline.forward(Q[:128], K, V, Design(1, full_phase=lambda n: 0), strict=False)
    assert np.isnan(never.O).any()  # read before anything had come
    assert pipeline.forward(Q[:128], K, V, strict=False).races == []


IN, FREE = "yield Wait(pipe.full[stage], design.full_phase(n))", "yield Wait(pipe.empty[stage], design.empty_phase(n))"
EDITS = {
    "the bytes of V are not expected": ("produce", "(V.nbytes if before else 0)", "0", sm.Race),
    "K is copied before the stage is free": ("produce", FREE, "pass", sm.Race),
    "Q is replaced before it is read": ("produce", "yield Wait(pipe.q_empty[w], (this.t & 1) ^ 1)", "pass", sm.Race),
    "Q's phase never changes": ("consume", "yield Wait(half, this.t & 1)", "yield Wait(half, 0)", sm.Race),
    "full is not waited for": ("consume", IN, "pass", sm.Race),
    "a turn is not passed on": ("consume", "yield Arrive(pipe.turn[(w + 1) % design.consumers])", "pass", sm.Deadlock),
    "both wait for the other's turn": ("consume", "(g & 1) ^ 1 if w == 0 else g & 1", "g & 1", sm.Deadlock),
    "Q is not released": ("consume", "yield Arrive(pipe.q_empty[w])", "pass", sm.Deadlock),
    "a stage is not released": ("consume", "if not design.early", "if design.early", sm.Deadlock),
}  # fmt: skip


@pytest.mark.parametrize("function, old, new, error", EDITS.values(), ids=EDITS)
def test_a_wrong_program_is_caught(head, function, old, new, error, monkeypatch):
    Q, K, V = head
    monkeypatch.setattr(pipeline, function, edited(getattr(pipeline, function), old, new))
    with pytest.raises(error):
        pipeline.forward(Q[:384], K, V)


@pytest.mark.parametrize("arguments, error, sentence", [
    (lambda: Design(stages=0), ValueError, "stages must be a whole number from 1 on, got 0"),
    (lambda: Design(consumers=3), ValueError, "consumers must be a whole number from 1 to 2, got 3"),
    (lambda: Budget(d=100), ValueError, "d must be a multiple of 16, which one instruction takes, got 100"),
    (lambda: pipeline.forward(*draw(4, 4), Br=0), ValueError, "Br must be a whole number from 1 on, got 0"),
    (lambda: pipeline.forward(*(np.ones((4, 4), int) for _ in "QKV")), TypeError, "floating-point numbers, got int64"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        arguments()
