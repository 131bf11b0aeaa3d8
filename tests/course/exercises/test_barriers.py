"""barriers: right solutions pass however they are written; the simulator judges a consumer."""

import pytest

from flashlab.course.check import check
from flashlab.course.registry import find
from flashlab.grading.exercise import edited
from flashlab.machine.operations import Arrive, Finish, Wait, Work
from flashlab.reference import barriers, pipeline
from tests.course.exercises import right


def phase_with_divmod(it, stages):
    uses, stage = divmod(it, stages)
    return stage, uses % 2


def phase_by_walking(it, stages):
    stage, bit = 0, False
    for _ in range(it):
        stage += 1
        if stage == stages:
            stage, bit = 0, not bit
    return stage, bit


def phase_in_two_rounds(it, stages):
    return it % stages, int(it % (2 * stages) >= stages)


def consume_with_flags(pipe, w):
    """Conditions on g leave out the scores of the last step and the product of the first."""
    yield Wait(pipe.q_full[w], 0)
    steps = list(pipe.problem.pairs())
    stages, state, finished = pipe.design.stages, None, []
    for g, (this, before) in enumerate(steps):
        yield Wait(pipe.full[g % stages], int(g % (2 * stages) >= stages))
        jobs = []
        if g < len(steps) - 1:
            jobs.append((yield pipe.scores(w, this, g)))
        if g > 0:
            product = yield pipe.weighted(before, g, state, finished[-1])
        if jobs:
            yield Finish(min(g, 1))
            yield Work("softmax", this.j, pipe.cost.softmax)
            finished.append(jobs[0].result)
        yield Finish(0)
        state = product.result if g > 0 else None
        yield Arrive(pipe.empty[g % stages])
    yield pipe.finish(w, steps[-1][1], state)


def the_whole_pipelines_own(pipe, w):
    """The consumer of ``pipeline``, which does more: several tiles, and rescaling on the clock."""
    return pipeline.consume(pipe, w)


RIGHT = {
    "barriers.phase": [phase_with_divmod, phase_by_walking, phase_in_two_rounds],
    "barriers.consume": [consume_with_flags, the_whole_pipelines_own],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_a_known_mistake_that_fails_other_cases_than_the_attempt_is_not_named(capsys):
    check("barriers.phase", lambda it, stages: (it % stages, int(it % (2 * stages) > stages)))
    shown = capsys.readouterr().out
    assert "fails for" in shown and "never changed the phase" not in shown


CONSUME = find("barriers.consume").reference


def test_a_consumer_whose_units_take_turns_gets_a_sentence(capsys):
    check("barriers.consume", edited(CONSUME, "Finish(1 if this and before else 0)", "Finish(0)"))
    assert "so the units take turns" in capsys.readouterr().out


WORK = 'yield Work("softmax", this.j, pipe.cost.softmax)'


@pytest.mark.parametrize(
    "consume, message",
    [
        (edited(CONSUME, WORK, "pass"), "one softmax of pipe.cost.softmax cycles for each block"),
        (edited(CONSUME, WORK, WORK.replace(")", " // 2)")), "one softmax of pipe.cost.softmax cycles for each block"),
        (
            edited(
                CONSUME,
                "if before:\n            state",
                f"if before:\n            {WORK.replace('this', 'before')}\n            state",
            ),
            "one softmax of pipe.cost.softmax cycles for each block",
        ),
        (
            edited(CONSUME, "yield Arrive(pipe.empty[stage])", "yield from [Arrive(pipe.empty[stage])] * w"),
            "You left out arrivals at `empty`.",
        ),
        (
            edited(CONSUME, "yield Arrive", "if this:\n            yield Arrive"),
            "one arrival at the stage's `empty` in each step",
        ),
        (
            edited(CONSUME, "yield pipe.finish(w, before, state)", "yield from [pipe.finish(w, before, state)] * 2"),
            "one store, pipe.finish, after the last step",
        ),
        (lambda pipe, w: None, "consumer 0 is no generator: its function must yield its operations"),
        (lambda pipe, w: iter([3]), "consumer 0 is no generator"),
        (edited(CONSUME, "yield Finish(0)", "yield 0"), "consumer 0 yields 0, which is no operation such as Wait"),
        (edited(CONSUME, "        yield Finish(0)\n", ""), "only because a softmax takes longer than a product"),
        (edited(CONSUME, "Finish(1 if this and before else 0)", "Finish(2)"), "begins before its scores are there"),
    ],
)
def test_a_wrong_consumer_gets_a_sentence(consume, message, capsys):
    check("barriers.consume", consume)
    assert message in capsys.readouterr().out


def test_two_stages_hide_all_products_but_one():
    answer = find("barriers.two_stages").answer
    assert answer == 4 * barriers.COPY + barriers.MULTIPLY
