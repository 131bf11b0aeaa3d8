from dataclasses import replace

import numpy as np
import pytest

from figures import decoding as figure
from flashlab.course import data
from flashlab.reference import decoding
from flashlab.reference.attention import weights


@pytest.mark.parametrize(
    "state", [figure.State(), figure.State(3, 16, 32, 131072), figure.State(5, 64, 1, 1024)], ids=str
)
def test_plans_are_those_of_the_reference(state):
    trace = figure.trace(state)
    for S, part in zip(figure.PARTS, trace["parts"], strict=True):
        plan = decoding.plan(figure.CARD, state.B, state.Hk, state.N, S)
        assert (part["programs"], part["waves"], part["us"]) == (plan.programs, plan.waves, plan.seconds * 1e6)
        programs = part["busiest"] * part["waves"] + (trace["sms"] - part["busiest"]) * (part["waves"] - 1)
        assert programs == plan.programs
    assert trace["rule"] == decoding.splits(state.B * state.Hk, state.N, slots=132)


@pytest.mark.parametrize("S", [1, 4, 33, 64])
def test_weights_are_those_of_the_dense_row(S):
    step = figure.PARTS.index(S)
    ours = figure.trace(figure.State())["parts"][step]["weights"]
    Q, K, _ = data.captured("alice").head()
    P = weights(Q[-1:].astype(float), K.astype(float))[0][0]  # [N]
    theirs = [part.sum() for part in np.array_split(P, S)]
    np.testing.assert_allclose(ours, theirs, 1e-3, 1e-6)
    mixed = figure.trace(figure.State(wrong=True))["parts"][step]
    wrong = mixed["weights"]
    assert mixed["right"] == ours
    assert sum(wrong) == pytest.approx(1, abs=1e-3) and (S == 1 or max(wrong) > max(ours))


def test_describe_has_the_numbers():
    problem, rule = (figure.describe(figure.State(figure.PARTS.index(parts))) for parts in (1, 16))
    first = "1 text of 8,192 keys in 1 part: 8 programs on 132 SMs, 1 wave, 6% of"
    assert problem == figure.describe(figure.State()) and problem.startswith(first)
    assert problem.template.startswith("[1 text](B) of [8,192 keys](N) in [1 part](step):")
    assert "in 16 parts: 128 programs on 132 SMs, 1 wave, 97% of their time used" in rule
    assert "1 program on 132 SMs" in figure.describe(figure.State(Hk=1))
    assert "1,850 µs" in figure.describe(figure.State(N=131072))
    assert "2 waves" in figure.describe(replace(figure.State(), step=figure.PARTS.index(17)))
