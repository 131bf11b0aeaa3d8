"""A check survives whatever it is given, and says what is wrong in words."""

import numpy as np
import pytest

from flashlab.course import judge, progress
from flashlab.course.check import check, edited, hint, overview, solution
from flashlab.course.registry import every, find
from flashlab.reference import online_softmax


def said(capsys, attempt, name="online_softmax.merge"):
    check(name, attempt)
    return capsys.readouterr().out


def stub(a, b):
    raise NotImplementedError


def mutating(a, b):
    a.l[:] = 0
    return online_softmax.merge(a, b)


def printing(a, b):
    print("noise")
    return online_softmax.merge(a, b)


def nan(a, b):
    return online_softmax.State(*(np.full_like(part, np.nan) for part in a))


def leaving(a, b):
    raise SystemExit("goodbye")


BROKEN = {
    "not a function": (3, "expected a function, got a int"),
    "returns nothing": (lambda a, b: None, "got None: does it return its result?"),
    "returns a list": (lambda a, b: [a.m, a.l, a.O], "got a list"),
    "raises": (lambda a, b: a.m / {}, "it raised TypeError"),
    "leaves Python": (leaving, "it raised SystemExit: goodbye"),
    "changes its inputs": (mutating, "it changed its inputs"),
    "returns NaN": (nan, "your m = [nan]"),
    "returns words": (lambda a, b: ("m", "l", "O"), "expected shape"),
    "wrong shape": (lambda a, b: online_softmax.merge(a, b)._replace(O=a.O[:, :0]), "your O has (1, 0)"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_try_gets_a_sentence(what, capsys):
    attempt, sentence = BROKEN[what]
    assert sentence in said(capsys, attempt)


def test_a_stub_is_not_attempted(capsys):
    assert said(capsys, stub).startswith("○ online_softmax.merge: not attempted yet")


def test_what_a_try_prints_is_swallowed(capsys):
    assert said(capsys, printing) == "✓ online_softmax.merge: right in all 8 cases.\n"


def test_a_loop_that_never_ends_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(judge, "PATIENCE", 0.3)

    def forever(a, b):
        while True:
            pass

    assert "still running after" in said(capsys, forever)


def test_the_smallest_failing_input_is_printed(capsys):
    text = said(capsys, lambda a, b: online_softmax.State(np.maximum(a.m, b.m), a.l + b.l, a.O + b.O))
    assert "fails for a second part with the larger maximum" in text
    assert "a = m = [0.], l = [1.], O = [[2.]]" in text and "expected l = [2.3679]" in text and "your l = [3.]" in text


def test_a_question_says_why(capsys):
    assert said(capsys, ..., "online_softmax.keep").startswith("○")
    assert said(capsys, 2, "online_softmax.keep").startswith("✓ online_softmax.keep: 2. The block's maximum")
    assert "cannot be added" in said(capsys, 1, "online_softmax.keep")
    assert said(capsys, 17, "online_softmax.keep").startswith("✗")
    assert said(capsys, None, "online_softmax.keep").startswith("✗")


def test_an_answer_of_another_kind_is_told_what_is_wanted(capsys):
    assert "A number is wanted." in said(capsys, "4", "start_here.twice")
    assert "Choose one of falls, rises, stays." in said(capsys, "Stays", "memory_hierarchy.longer")


def test_a_try_that_returns_no_number_is_told_so(capsys):
    assert "expected 1 result, got None: does it return its result?" in said(capsys, print, "start_here.first")
    assert "your result is '2 bytes'" in said(capsys, lambda N: f"{2 * N * N} bytes", "start_here.first")


def test_tiny_numbers_are_told_apart(capsys):
    """Half a microsecond is not zero: the bytes were not left out, all fractions were."""
    text = said(capsys, lambda F, n, f, b: max(F // f, n // b), "memory_hierarchy.seconds")
    assert "It looks like this: // drops the fraction" in text


def test_hints_come_in_three_layers(capsys):
    hint("online_softmax.merge", 3)
    assert capsys.readouterr().out.startswith("Hint 3 of 3")
    with pytest.raises(ValueError, match="three layers, 1 to 3, got 4"):
        hint("online_softmax.merge", 4)


def test_the_solution_asks_back_and_then_shows_the_modules_own_source(capsys):
    solution("online_softmax.merge")
    assert 'solution("online_softmax.merge", sure=True)' in capsys.readouterr().out
    solution("online_softmax.merge", sure=True)
    assert "def merge(a, b)" in capsys.readouterr().out


def test_an_unknown_exercise_is_named():
    for name in ("online_softmax.nonsense", "nonsense.merge", ""):
        with pytest.raises(ValueError, match="there is no exercise"):
            find(name)


def test_an_edit_must_hit_exactly_once():
    with pytest.raises(ValueError, match="found it 0 times"):
        edited(online_softmax.merge, "not there", "anything")
    assert edited(online_softmax.merge, "alpha * a.l", "a.l") is not online_softmax.merge


def test_progress_remembers_what_was_solved_and_how_the_last_try_failed(capsys):
    check("online_softmax.merge", stub)
    assert progress.read() == {}
    check("online_softmax.merge", nan)
    assert (
        not progress.read()["online_softmax.merge"]["solved"]
        and "your m = [nan]" in progress.read()["online_softmax.merge"]["said"]
    )
    check("online_softmax.merge", online_softmax.merge)
    check("online_softmax.merge", nan)
    assert progress.read()["online_softmax.merge"]["solved"]
    overview()
    assert "✓ online_softmax.merge" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"online_softmax.merge": 3}', '{"online_softmax.merge": {}}'])
def test_a_broken_progress_file_is_as_good_as_none(broken):
    progress.FILE.write_text(broken)
    assert progress.read() == {}
    progress.note("online_softmax.merge", True, "")
    assert progress.read()["online_softmax.merge"]["solved"]


def test_a_write_that_breaks_off_leaves_the_old_progress(monkeypatch):
    progress.note("online_softmax.merge", True, "")
    monkeypatch.setattr(type(progress.FILE), "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    progress.note("online_softmax.update", True, "")
    assert list(progress.read()) == ["online_softmax.merge"] and not list(progress.FILE.parent.glob("*.tmp"))


@pytest.mark.parametrize("name", every())
def test_every_exercise_has_three_hints_a_level_and_a_time(name):
    exercise = find(name)
    assert len(exercise.hints) == 3 and all(exercise.hints) and exercise.level in (1, 2, 3) and exercise.minutes > 0
