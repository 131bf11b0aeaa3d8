"""The exercises on barriers: cycles of a block, stages and their phases, and a consumer for the simulator."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.machine.operations import Arrive, Finish, Product, Store, Wait, Work
from flashlab.machine.sm import Race
from flashlab.reference import pipeline
from flashlab.reference.attention import attention
from flashlab.reference.safe_softmax import lse as logsumexp

exponentials = Question(
    answer=1024,
    unit="cycles",
    because="128 × 128 exponentials, 16 per cycle: half as long as the products, on a unit of their own.",
    hints=(
        "How many entries does a block of scores have, and how many exponentials does each take?",
        "128 × 128 entries, one exponential each. 16 are done in a cycle.",
        "128 * 128 / 16",
    ),
    wrong=(
        (2048, "That is what the products take. There are 128 × 128 exponentials, and 16 are done per cycle."),
        (16384, "That is how many exponentials there are. 16 of them are done per cycle."),
        (1056, "You are ahead: that counts the alphas too, two per thread. The question is about the scores alone."),
        (8, "That is one row. There are 128 of them."),
        (128, "That is how many exponentials one row has. There are 128 rows, and 16 exponentials per cycle."),
        (131072, "d does not enter: an entry of S takes one exponential, however long the vectors are."),
    ),
)


def stage_and_phase(it, stages):
    """Return the stage of step ``it``, and the phase of that stage's ``full`` barrier that it waits for."""
    return it % stages, it // stages & 1


def _draw_step(rng, size):
    stages = int(rng.integers(1, size + 1))
    return int(rng.choice([rng.integers(6 * stages), whole(rng, size, 10_000)])), stages


phase = Exercise(
    reference=stage_and_phase,
    edges=(
        Case("the first step", (0, 2)),
        Case("the second step, which has a stage of its own", (1, 2)),
        Case("the third step with two stages: stage 0 for the second time", (2, 2)),
        Case("stage 0 for the third time: a bit can only be 0 or 1", (4, 2)),
        Case("three stages", (5, 3)),
    ),
    draw=_draw_step,
    level=1,
    minutes=5,
    hints=(
        "Write down stage and phase for the steps 0 to 5 with two stages. When does a stage come up a second time?",
        "The stages take turns, so the stage is it % stages. It was used it // stages times before, and each use flips "
        "its bit.",
        "return it % stages, (it // stages) & 1",
    ),
    mistakes=(
        Mistake("flipped the bit with every step.", "It flips when the same stage is used again.",
                "it // stages & 1", "it & 1"),
        Mistake("counted the uses of a stage.", "A barrier has one bit: take the count modulo 2.",
                "it // stages & 1", "it // stages"),
        Mistake("inverted the bit.", "The first filling ends phase 0. (A producer that waits for `empty` inverts it.)",
                "it // stages & 1", "it // stages & 1 ^ 1"),
        Mistake("returned stage and phase in the wrong order.", "The stage comes first.",
                "it % stages, it // stages & 1", "it // stages & 1, it % stages"),
        Mistake("took the remainder with a bit mask.", "That works for powers of two only: use %.",
                "it % stages,", "it & stages - 1,"),
        Mistake("never changed the phase.", "A stage that is used again has the other one.", "it // stages & 1", "0"),
    ),
)  # fmt: skip

arrivals = Question(
    answer=2,
    because="One arrival from each consumer: only when both have read the stage may the producer fill it again.",
    hints=(
        "Who must be done with a stage before it may be overwritten?",
        "Both consumers read the same K and V. Each of them arrives once; the producer only waits.",
        "As many as there are consumers.",
    ),
    wrong=(
        (1, "Then the faster consumer alone would open the stage, and the other one would read what comes next."),
        (3, "The producer waits at `empty`, it does not arrive there: phase 0 would never end."),
        (256, "A consumer arrives once, when all of its 128 threads are done; not once per thread."),
        (0, "Then there would be nothing to wait for, and tiles would be overwritten while they are read."),
    ),
    minutes=1,
)

first_wait = Question(
    answer=1,
    because="A new barrier is in phase 0, and phase 1 counts as over: the producer walks through. Hence its `^ 1`.",
    hints=(
        "At the first step no consumer has read anything yet. Must the producer wait?",
        "wait(phase) blocks while the barrier is in that phase, and a new barrier is in phase 0.",
        "It must ask for the phase that the barrier is not in.",
    ),
    wrong=(
        (
            0,
            "Phase 0 of `empty` ends when the consumers have read the stage, which is not filled yet: it hangs.",
        ),
        (2, "A phase is one bit."),
    ),
    minutes=2,
)

two_stages = Question(
    answer=2900,
    unit="cycles",
    because="The copies follow each other, 4 · 600, and only the last product is not hidden: 500 more.",
    hints=(
        "Draw two rows, one for the copy engine and one for the tensor core. When may copy 1 begin? And copy 2?",
        "Copy g + 1 runs beside product g. A copy takes longer, so the engine never waits for a stage.",
        "4 * 600 + 500",
    ),
    wrong=(
        (4400, "That is with one stage, where copy and product wait for each other."),
        (2400, "Those are the copies alone. After the last one, its block must still be multiplied."),
        (2600, "The first copy has no product beside it, and the slower unit decides: copies take 600."),
        (2200, "Two stages do not halve the time: the copy engine alone needs 4 · 600 cycles."),
        (2000, "Those are the products alone. The copy engine takes longer, and the first block must come first."),
    ),
    minutes=3,
)

left = Question(
    answer=1,
    because="One may be left: the newer product, with V. The scores were asked for first, so they are done.",
    hints=(
        "Products are done in the order in which they were asked for. Which one must be done before the softmax?",
        "Two are running: S, then the product with V. The softmax needs S only.",
        "The number of products that may still be running.",
    ),
    wrong=(
        (0, "Then the softmax waits for the product with V as well: nothing runs beside it."),
        (2, "Then the softmax would not even wait for its own scores."),
    ),
    minutes=1,
)


class Attended(NamedTuple):
    """What the pipeline returns: the output and log-sum-exp of the rows."""

    O: np.ndarray  # [Nq, d]
    lse: np.ndarray  # [Nq]


def consumer(pipe, w):
    """Run consumer w: compute its rows of the tile, the softmax of a block beside the product of the block before."""
    yield Wait(pipe.q_full[w], 0)
    S_before = state = None
    for g, (this, before) in enumerate(pipe.problem.pairs()):
        stage, phase = stage_and_phase(g, pipe.design.stages)
        yield Wait(pipe.full[stage], phase)
        if this:
            S_ij = yield pipe.scores(w, this, g)
        if before:
            O_i = yield pipe.weighted(before, g, state, S_before.result)
        yield Finish(1 if this and before else 0)
        if this:
            yield Work("softmax", this.j, pipe.cost.softmax)
            S_before = S_ij
        yield Finish(0)
        yield Arrive(pipe.empty[stage])
        if before:
            state = O_i.result
    yield pipe.finish(w, before, state)


def _attend(program, Q, K, V, stages):
    """Run attention of one tile of queries on the simulated multiprocessor, with these consumers."""
    run = _run(program, Q, K, V, stages)
    return Attended(run.O, run.lse)


def _run(program, Q, K, V, stages, budget=None):
    budget = pipeline.Budget() if budget is None else budget
    design = pipeline.Design(stages, ping_pong=False, whole_q=False, budget=budget)
    return pipeline.forward(Q, K, V, design, consumer=program)


ONCE = {  # kind of operation: what each consumer does of it
    "softmax": "one softmax of pipe.cost.softmax cycles for each block",
    "S": "one product with K for each block",
    "PV": "one product with V for each block",
    "arrival": "one arrival at the stage's `empty` in each step",
    "O": "one store, pipe.finish, after the last step",
}


def _each_once(program, Q, K, V, stages):
    """Law: each consumer yields the operations of each kind that the reference yields, and none twice."""
    found, expected = (_operations(each, Q, K, V, stages) for each in (program, consumer))
    for kind, what in ONCE.items():
        if found.get(kind) != expected[kind]:
            return f"the numbers are right, but not the operations: each consumer must yield {what}."
    return None


def _operations(program, Q, K, V, stages):
    """Return the operations of the consumers, by kind: sorted tuples of consumer, block or barrier, and cycles."""
    found = defaultdict(list)

    def noted(pipe, w):
        steps, answer = program(pipe, w), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            if isinstance(step, Arrive) and step.barrier in pipe.empty:
                found["arrival"].append((w, step.barrier.name))
            elif isinstance(step, Work | Product | Store):
                found[step.kind].append((w, step.j, step.cycles))
            answer = yield step

    _run(noted, Q, K, V, stages)
    return {kind: sorted(done) for kind, done in found.items()}


def _beside(program, Q, K, V, stages):
    """Law: a softmax begins when its scores are there, and runs beside the product of the block before."""
    if len(K) <= 128:
        return None
    events = [event for event in _run(program, Q, K, V, stages).events if event.by == "consumer 0"]
    scores = {event.j: event.end for event in events if event.kind == "S"}
    if any(event.start < scores[event.j] for event in events if event.kind == "softmax"):
        return (
            "the numbers are right, but a softmax begins before its scores are there. Finish(1) waits for them where "
            "two products run. In the first step there is one: Finish(0)."
        )
    products = [event for event in events if event.kind == "PV"]
    beside = [
        any(softmax.start < product.end and product.start < softmax.end for product in products)
        for softmax in events
        if softmax.kind == "softmax"
    ]
    if not all(beside[1:]):
        return (
            "the numbers are right, but a softmax waits for the product of the block before, so the units take turns. "
            "With two products under way, wait until one is left: Finish(1)."
        )
    return None


def _waits_for_products(program, Q, K, V, stages):
    """Law: a stage is given back after a Finish that waits for its products, however quick a softmax is."""
    try:
        _run(program, Q, K, V, stages, pipeline.Budget(softmax_of_64=1))
    except Race as race:
        return (
            f"the numbers are right, but only because a softmax takes longer than a product. Where it does not: {race}"
        )
    return None


def _tensors(rng, Nq, Nk, d, dv):
    return tuple(np.float32(rng.normal(size=shape)) for shape in ((Nq, d), (Nk, d), (Nk, dv)))


def _draw_tile(rng, size):
    """Draw one tile of queries, keys in up to five blocks, and stages."""
    Nq, Nk, d, dv = (int(rng.integers(1, most + 1)) for most in (128, 64 * size, size, size))
    return *_tensors(rng, Nq, Nk, d, dv), int(rng.integers(1, 5))


def _edge(sentence, Nk, stages):
    return Case(sentence, (*_tensors(np.random.default_rng(Nk), 128, Nk, 16, 16), stages))


def _attended(Q, K, V, stages):
    rows = range(len(Q))
    O, lse = attention(Q, K, V), [logsumexp(Q[i] @ K.T / Q.shape[1] ** 0.5) for i in rows]
    return Attended(O, np.array(lse))


consume = Exercise(
    reference=consumer,
    launch=_attend,
    exact=_attended,
    edges=(
        _edge("two blocks, and two stages: no stage is used twice before the last step", 256, 2),
        _edge("one block of keys: a step with K alone, and one with V alone", 128, 2),
        _edge("four blocks in two stages: stages come up again", 512, 2),
        _edge("five blocks in three stages", 640, 3),
        _edge("one stage, used by every step", 384, 1),
    ),
    draw=_draw_tile,
    draws=20,
    laws=(_each_once, _beside, _waits_for_products),
    sways=True,
    level=3,
    minutes=40,
    hints=(
        "Write the lines of one step in the order of the table, without a condition. Then ask of each line: does it "
        "exist in the first step, where there is no block before? In the last one, where there is no block to come?",
        "Wait for the stage's `full`. Ask for both products. Finish(1) leaves the newer one running. S is done: "
        "take its softmax. Finish(0), and only then arrive at `empty`. In the first step, Finish(0): there is only S.",
        "S_ij = yield pipe.scores(w, this, g); O_i = yield pipe.weighted(before, g, state, S_before.result); "
        "yield Finish(1); yield Work(\"softmax\", this.j, pipe.cost.softmax); yield Finish(0); "
        "yield Arrive(pipe.empty[stage]); state = O_i.result; S_before = S_ij. After the loop: "
        "yield pipe.finish(w, before, state).",
    ),
    mistakes=(
        Mistake("gave the stage back as soon as its products were asked for.",
                "They still read it: arrive at `empty` after Finish(0).",
                "        yield Finish(1 if", "        yield Arrive(pipe.empty[stage])\n        yield Finish(1 if"),
        Mistake("left out arrivals at `empty`.",
                "The producer waits there once all stages are filled: both consumers arrive in each step.",
                "        yield Arrive(pipe.empty[stage])\n", ""),
        Mistake("never changed the phase.", "A stage that comes up again has the other one.",
                "yield Wait(pipe.full[stage], phase)", "yield Wait(pipe.full[stage], 0)"),
        Mistake("inverted the phase.", "A reader waits for the phase that the bytes complete.",
                "yield Wait(pipe.full[stage], phase)", "yield Wait(pipe.full[stage], phase ^ 1)"),
        Mistake("read the tiles without waiting for them.", "Wait for the stage's `full` first.",
                "        yield Wait(pipe.full[stage], phase)\n", ""),
        Mistake("started each step with an empty state.", "Keep the result of the step before.",
                "state = O_i.result", "pass"),
    ),
)  # fmt: skip
