"""A check survives whatever it is given, and says what is wrong in words."""

import numpy as np
import pytest

from flashlab import check as checking
from flashlab import online
from flashlab.check import check, edited, find, hint, solution


def said(capsys, attempt, name="online.merge"):
    check(name, attempt)
    return capsys.readouterr().out


def stub(a, b):
    raise NotImplementedError


def mutating(a, b):
    a.l[:] = 0
    return online.merge(a, b)


def printing(a, b):
    print("noise")
    return online.merge(a, b)


def nan(a, b):
    return online.State(*(np.full_like(part, np.nan) for part in a))


BROKEN = {
    "not a function": (3, "expected a function, got a int"),
    "returns nothing": (lambda a, b: None, "got None: does it return its result?"),
    "returns a list": (lambda a, b: [a.m, a.l, a.O], "got a list"),
    "raises": (lambda a, b: a.m / {}, "it raised TypeError"),
    "changes its inputs": (mutating, "it changed its inputs"),
    "returns NaN": (nan, "your m = [nan]"),
    "returns words": (lambda a, b: ("m", "l", "O"), "expected shape"),
    "wrong shape": (lambda a, b: online.merge(a, b)._replace(O=a.O[:, :0]), "your O has (1, 0)"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_try_gets_a_sentence(what, capsys):
    attempt, sentence = BROKEN[what]
    assert sentence in said(capsys, attempt)


def test_a_stub_is_not_attempted(capsys):
    assert said(capsys, stub).startswith("○ online.merge: not attempted yet")


def test_what_a_try_prints_is_swallowed(capsys):
    assert said(capsys, printing) == "✓ online.merge: right in all 7 cases.\n"


def test_a_loop_that_never_ends_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(checking, "TIME_LIMIT", 0.3)

    def forever(a, b):
        while True:
            pass

    assert "still running after" in said(capsys, forever)


def test_the_smallest_failing_input_is_printed(capsys):
    text = said(capsys, lambda a, b: online.State(np.maximum(a.m, b.m), a.l + b.l, a.O + b.O))
    assert "fails for a second part with the larger maximum" in text
    assert "a = m = [0.], l = [1.], O = [[2.]]" in text and "expected l = [2.3679]" in text and "your l = [3.]" in text


def test_a_question_says_why(capsys):
    assert said(capsys, ..., "online.keep").startswith("○")
    assert said(capsys, 2, "online.keep").startswith("✓ online.keep: 2. The block's maximum")
    assert "cannot be added" in said(capsys, 1, "online.keep")
    assert said(capsys, 17, "online.keep").startswith("✗")
    assert said(capsys, None, "online.keep").startswith("✗")


def test_hints_come_in_three_layers(capsys):
    hint("online.merge", 3)
    assert capsys.readouterr().out.startswith("Hint 3 of 3")
    with pytest.raises(ValueError, match="three layers, 1 to 3, got 4"):
        hint("online.merge", 4)


def test_the_solution_is_the_modules_own_source(capsys):
    solution("online.merge")
    assert "def merge(a, b)" in capsys.readouterr().out


def test_an_unknown_exercise_is_named():
    for name in ("online.nonsense", "nonsense.merge", ""):
        with pytest.raises(ValueError, match="there is no exercise"):
            find(name)


def test_an_edit_must_hit_exactly_once():
    with pytest.raises(ValueError, match="found it 0 times"):
        edited(online.merge, "not there", "anything")
    assert edited(online.merge, "alpha * a.l", "a.l") is not online.merge
