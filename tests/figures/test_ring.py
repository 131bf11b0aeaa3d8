from dataclasses import replace

import pytest

from figures import ring as figure
from flashlab.machine import ranks

STATES = [figure.State(), figure.State(P=2), figure.State(P=8, causal=False), figure.State(P=3)]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_step_is_that_of_the_schedule(state):
    window = (None, 0) if state.causal else (None, None)
    for run in figure.trace(state)["runs"]:
        placement = ranks.placement_of(run["name"], figure.N, state.P)
        steps = [[(rank["owner"], rank["scores"]) for rank in step] for step in run["steps"]]
        expected = [
            [
                ((r - s) % state.P, ranks.pairs(placement[r], placement[(r - s) % state.P], *window))
                for r in range(state.P)
            ]
            for s in range(state.P)
        ]
        assert steps == expected
        assert run["makespan"] == sum(max(count for _, count in step) for step in steps)


@pytest.mark.parametrize("P", figure.CONTROLS["P"].values)
def test_all_placements_send_the_same_and_only_zigzag_never_waits(P):
    trace = figure.trace(figure.State(P=P))
    n = figure.N // P
    assert trace["block"] == n * n and trace["ideal"] * P == figure.N * (figure.N + 1) / 2
    for run in trace["runs"]:
        assert {sum(step[rank]["sent"] for step in run["steps"]) for rank in range(P)} == {
            (P - 1) * 2 * n * figure.D * 4
        }
    contiguous, zigzag, striped = (run["makespan"] / trace["ideal"] for run in trace["runs"])
    assert zigzag == 1 < striped < contiguous


def test_the_strip_shows_the_owners_of_the_tokens():
    strips = {run["name"]: run["tokens"] for run in figure.trace(figure.State(P=3))["runs"]}
    assert strips == {
        "contiguous": [0, 0, 1, 1, 2, 2], "zigzag": [0, 1, 2, 2, 1, 0], "striped": [0, 1, 2, 0, 1, 2]
    }  # fmt: skip


def test_describe_has_the_numbers():
    state = figure.State(step=3, P=4)
    assert figure.describe(state) == (
        "4 processors, causal mask, step 3. Idle so far: contiguous 43%, zigzag 0%, striped 3%. Each has sent 4.61 kB."
    )
    assert "no mask" in figure.describe(replace(state, causal=False))
